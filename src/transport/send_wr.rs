//! Send work requests, with a constructor for each operation.

use std::marker::PhantomData;

use super::service::{Connected, Datagrams, Reliable, Untyped};
use super::{Destination, Placement, RemoteAddr, SendFlags, Sge, SrqId, WrData, WrOp};
use crate::memory::{AtomicOp, Bind, FastReg};
use crate::wire::RKey;

/// Send work request. The constructors choose the operation; the other methods set options.
///
/// A new work request is signaled and has no fence and no solicited event. `S` is the
/// [service](super::service) of the queue pair to which it is posted, and determines the constructors; the
/// compiler infers it from the post.
///
/// ```
/// # use std::time::Duration;
/// # use urxe::verbs::*;
/// # let (a, b) = Fabric::new().pair()?;
/// # let (src, dst) = (a.pd.reg_mr(4096, Access::ALL)?, b.pd.reg_mr(4096, Access::ALL)?);
/// a.qp.post_send_list(
///     &[
///         SendWr::write(1, &[src.sge(0..4096)], dst.remote(0)).signaled(false),
///         SendWr::write(2, &[], dst.remote(0)).inline(b"head"),
///         SendWr::fetch_add(3, &[src.sge(8..16)], dst.remote(8), 1).fence(),
///     ],
///     ListPolicy::UntilRejected,
/// )?;
/// assert_eq!(a.cq.wait(Duration::from_secs(5))?.wr_id, 2);
/// assert_eq!(a.cq.wait(Duration::from_secs(5))?.wr_id, 3);
/// assert_eq!(&dst.to_vec()[..4], b"head");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a work request has no effect before it is posted"]
#[non_exhaustive]
pub struct SendWr<'a, S = Untyped> {
    /// Identifier, returned in the completion.
    pub wr_id: u64,
    /// Operation to perform.
    pub op: WrOp,
    /// Data to send, or memory in which response data is stored.
    pub data: WrData<'a>,
    /// Flags: completion, solicited event and fence.
    pub flags: SendFlags,
    /// Destination, for UD and XRC queue pairs; all others send to their connected peer.
    pub to: Option<Destination>,
    pub(crate) service: PhantomData<S>,
}

/// Constructors, one per operation. `sges` is the data to send or, for READs and atomics, the memory in which
/// the response is stored.
impl<'a, S: Connected> SendWr<'a, S> {
    /// Creates a SEND.
    pub const fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self::of(wr_id, WrOp::Send, sges)
    }

    /// Creates a SEND with immediate data.
    pub const fn send_imm(wr_id: u64, sges: &'a [Sge], imm: u32) -> Self {
        Self::of(wr_id, WrOp::SendWithImm(imm), sges)
    }

    /// Creates an RDMA WRITE.
    pub const fn write(wr_id: u64, sges: &'a [Sge], to: RemoteAddr) -> Self {
        Self::of(wr_id, WrOp::Write { va: to.va, rkey: to.rkey }, sges)
    }

    /// Creates an RDMA WRITE with immediate data.
    pub const fn write_imm(wr_id: u64, sges: &'a [Sge], to: RemoteAddr, imm: u32) -> Self {
        Self::of(wr_id, WrOp::WriteWithImm { va: to.va, rkey: to.rkey, imm }, sges)
    }

    /// Creates a BIND_MW work request, which binds a type 2 memory window; for type 1, see
    /// [`Qp::bind_mw`](crate::verbs::Qp::bind_mw).
    pub const fn bind_mw(wr_id: u64, bind: Bind) -> Self {
        Self::of(wr_id, WrOp::BindMw(bind), &[])
    }

    /// Creates a REG_MR work request, which registers a range of a fast-registered region.
    pub const fn reg_mr(wr_id: u64, reg: FastReg) -> Self {
        Self::of(wr_id, WrOp::RegMr(reg), &[])
    }

    /// Creates a LOCAL_INV work request, which invalidates the key of a local type 2 memory window or
    /// fast-registered region.
    pub const fn local_inv(wr_id: u64, rkey: RKey) -> Self {
        Self::of(wr_id, WrOp::LocalInv(rkey), &[])
    }
}

/// Constructors of the operations that only reliable services have.
impl<'a, S: Reliable> SendWr<'a, S> {
    /// Creates a SEND with invalidate, which also invalidates `rkey`, the key of a memory window or
    /// fast-registered region at the peer.
    pub const fn send_inval(wr_id: u64, sges: &'a [Sge], rkey: RKey) -> Self {
        Self::of(wr_id, WrOp::SendWithInv(rkey), sges)
    }

    /// Creates an RDMA READ into `sges`.
    pub const fn read(wr_id: u64, sges: &'a [Sge], from: RemoteAddr) -> Self {
        Self::of(wr_id, WrOp::Read { va: from.va, rkey: from.rkey }, sges)
    }

    /// Creates an atomic compare-and-swap on 8 bytes. The original value is stored in `sges`, which must hold
    /// 8 bytes.
    pub const fn compare_swap(wr_id: u64, sges: &'a [Sge], at: RemoteAddr, compare: u64, swap: u64) -> Self {
        let op = AtomicOp::CompareSwap { compare, swap };
        Self::of(wr_id, WrOp::Atomic { va: at.va, rkey: at.rkey, op }, sges)
    }

    /// Creates an atomic fetch-and-add on 8 bytes. The original value is stored in `sges`, which must hold 8
    /// bytes.
    pub const fn fetch_add(wr_id: u64, sges: &'a [Sge], at: RemoteAddr, add: u64) -> Self {
        let op = AtomicOp::FetchAdd(add);
        Self::of(wr_id, WrOp::Atomic { va: at.va, rkey: at.rkey, op }, sges)
    }

    /// Creates an ATOMIC WRITE of 8 bytes at an address that is a multiple of 8.
    pub const fn atomic_write(wr_id: u64, at: RemoteAddr, value: [u8; 8]) -> Self {
        Self::of(wr_id, WrOp::AtomicWrite { va: at.va, rkey: at.rkey, value }, &[])
    }

    /// Creates a FLUSH, which completes once all earlier WRITEs to the `len` bytes at `at` have reached the
    /// given placement.
    pub const fn flush(wr_id: u64, at: RemoteAddr, len: u32, placement: Placement) -> Self {
        let op = WrOp::Flush { va: at.va, rkey: at.rkey, len, placement, whole_region: false };
        Self::of(wr_id, op, &[])
    }
}

/// Constructors of datagrams.
impl<'a, S: Datagrams> SendWr<'a, S> {
    /// Creates a SEND of a datagram to `to` ([`Ah::to`](crate::verbs::Ah::to)).
    pub const fn send_to(wr_id: u64, sges: &'a [Sge], to: Destination) -> Self {
        SendWr { to: Some(to), ..Self::of(wr_id, WrOp::Send, sges) }
    }

    /// Creates a SEND of a datagram to `to` ([`Ah::to`](crate::verbs::Ah::to)), with immediate data.
    pub const fn send_imm_to(wr_id: u64, sges: &'a [Sge], to: Destination, imm: u32) -> Self {
        SendWr { to: Some(to), ..Self::of(wr_id, WrOp::SendWithImm(imm), sges) }
    }
}

impl<'a> SendWr<'a> {
    /// Creates a work request for any operation.
    pub const fn new(wr_id: u64, op: WrOp, sges: &'a [Sge]) -> SendWr<'a> {
        Self::of(wr_id, op, sges)
    }

    /// Sets the destination of a datagram ([`Ah::to`](crate::verbs::Ah::to)).
    pub fn to(mut self, destination: impl Into<Option<Destination>>) -> SendWr<'a> {
        self.to = destination.into();
        self
    }

    /// Sets the peer's shared receive queue as the destination (XRC).
    pub fn to_srq(self, srq: SrqId) -> SendWr<'a> {
        self.to(Destination::Srq(srq))
    }
}

impl<'a, S> SendWr<'a, S> {
    /// Sets all flags.
    pub const fn flags(mut self, flags: SendFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Sets whether the work request generates a completion on success; errors always generate one.
    pub const fn signaled(mut self, signaled: bool) -> Self {
        self.flags.signaled = signaled;
        self
    }

    /// Requests a solicited event at the peer's completion queue.
    pub const fn solicited(mut self) -> Self {
        self.flags.solicited = true;
        self
    }

    /// Makes the work request wait for all earlier READs and atomics on its queue.
    pub const fn fence(mut self) -> Self {
        self.flags.fence = true;
        self
    }

    /// Replaces the data.
    pub const fn data(mut self, data: WrData<'a>) -> Self {
        self.data = data;
        self
    }

    /// Replaces the data with scatter/gather elements in registered memory.
    pub const fn sges(mut self, sges: &'a [Sge]) -> Self {
        self.data = WrData::Sges(sges);
        self
    }

    /// Replaces the data with `bytes`, which are copied when posted: the buffer need not be registered and
    /// can be reused immediately. Supported for SENDs and WRITEs, up to the queue's
    /// [`max_inline`](crate::transport::SendCaps::max_inline) bytes.
    pub const fn inline(mut self, bytes: &'a [u8]) -> Self {
        self.data = WrData::Inline(bytes);
        self
    }

    /// Replaces the data with the concatenated `pieces`, which are copied like [`inline`](Self::inline) data.
    pub const fn inline_list(mut self, pieces: &'a [&'a [u8]]) -> Self {
        self.data = WrData::InlineList(pieces);
        self
    }

    /// Returns the same work request for a queue pair of any service, which checks the service when it is
    /// posted.
    pub const fn untyped(self) -> SendWr<'a> {
        let SendWr { wr_id, op, data, flags, to, .. } = self;
        SendWr { wr_id, op, data, flags, to, service: PhantomData }
    }

    const fn of(wr_id: u64, op: WrOp, sges: &'a [Sge]) -> Self {
        let (data, flags) = (WrData::Sges(sges), SendFlags::SIGNALED);
        SendWr { wr_id, op, data, flags, to: None, service: PhantomData }
    }
}
