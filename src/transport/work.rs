//! Work requests, as posted by an application, and their completions.

use bitflags::bitflags;

use super::codes::codes;
use super::{InjectedError, QpType};
use crate::memory::{Access, AtomicOp, Bind, FastReg, PdId, WindowKind};
use crate::wire::opcode::HeaderSet;
use crate::wire::{Feth, LKey, Operation, QKey, Qpn, RKey};

/// Maximum message length: 2^31 bytes (IBA 9.4.1).
pub const MAX_MESSAGE: u64 = 1 << 31;

/// Scatter/gather element: a range within a registered region. It has the layout of C's `struct ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte, in the region's address space.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: LKey,
}

/// Operation of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrOp {
    /// SEND: sends a message to the peer's next receive.
    Send,
    /// SEND with four bytes of immediate data, which the receive's completion reports.
    SendWithImm(u32),
    /// SEND that invalidates an rkey at the peer, which must be the key of a type 2 memory window or
    /// fast-registered region.
    SendWithInv(RKey),
    /// RDMA WRITE: writes to the peer's memory.
    Write {
        /// Address at the peer.
        va: u64,
        /// Remote key of the peer's region or memory window.
        rkey: RKey,
    },
    /// RDMA WRITE that also completes the peer's next receive, with four bytes of immediate data.
    WriteWithImm {
        /// Address at the peer.
        va: u64,
        /// Remote key of the peer's region or memory window.
        rkey: RKey,
        /// Immediate data.
        imm: u32,
    },
    /// RDMA READ: reads the peer's memory.
    Read {
        /// Address at the peer.
        va: u64,
        /// Remote key of the peer's region or memory window.
        rkey: RKey,
    },
    /// Atomic operation on 8 bytes of the peer's memory, which returns the original value.
    Atomic {
        /// Address at the peer, a multiple of 8.
        va: u64,
        /// Remote key of the peer's region or memory window.
        rkey: RKey,
        /// Operation to perform.
        op: AtomicOp,
    },
    /// ATOMIC WRITE: atomically stores 8 bytes in the peer's memory.
    AtomicWrite {
        /// Address at the peer, a multiple of 8.
        va: u64,
        /// Remote key of the peer's region or memory window.
        rkey: RKey,
        /// Bytes to store.
        value: [u8; 8],
    },
    /// FLUSH: completes once all earlier WRITEs to the range have reached the requested placement.
    Flush {
        /// Address of the first byte at the peer.
        va: u64,
        /// Remote key of the peer's region or memory window.
        rkey: RKey,
        /// Length of the range in bytes.
        len: u32,
        /// Requested placement.
        placement: Placement,
        /// Whether the whole region is flushed, regardless of the range.
        whole_region: bool,
    },
    /// BIND_MW: binds a memory window.
    BindMw(Bind),
    /// REG_MR: registers a range of a fast-registered region.
    RegMr(FastReg),
    /// LOCAL_INV: invalidates the key of a local type 2 memory window or fast-registered region, once all
    /// earlier work requests are complete.
    LocalInv(RKey),
}

bitflags! {
    /// FLUSH placement types, with the bit values of the FETH.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Placement: u32 {
        /// Global visibility: every reader at the peer sees the data.
        const GLOBAL = Feth::GLOBAL;
        /// Persistence: the data survives a power loss, provided that the memory does.
        const PERSISTENT = Feth::PERSISTENT;
    }
}

impl Placement {
    /// Returns the access flags that the peer's region must grant.
    pub fn access(self) -> Access {
        let global = if self.contains(Placement::GLOBAL) { Access::FLUSH_GLOBAL } else { Access::empty() };
        global | if self.contains(Placement::PERSISTENT) { Access::FLUSH_PERSISTENT } else { Access::empty() }
    }
}

impl WrOp {
    /// Returns the packets' operation, and the header (ImmDt or IETH) that the last packet carries in
    /// addition. Returns `None` for a local operation, which has no packets.
    pub fn on_wire(self) -> Option<(Operation, HeaderSet)> {
        Some(match self {
            WrOp::Send => (Operation::Send, HeaderSet::NONE),
            WrOp::SendWithImm(_) => (Operation::Send, HeaderSet::IMMDT),
            WrOp::SendWithInv(_) => (Operation::Send, HeaderSet::IETH),
            WrOp::Write { .. } => (Operation::Write, HeaderSet::NONE),
            WrOp::WriteWithImm { .. } => (Operation::Write, HeaderSet::IMMDT),
            WrOp::Read { .. } => (Operation::ReadRequest, HeaderSet::NONE),
            WrOp::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => {
                (Operation::CompareSwap, HeaderSet::NONE)
            }
            WrOp::Atomic { op: AtomicOp::FetchAdd(_), .. } => (Operation::FetchAdd, HeaderSet::NONE),
            WrOp::AtomicWrite { .. } => (Operation::AtomicWrite, HeaderSet::NONE),
            WrOp::Flush { .. } => (Operation::Flush, HeaderSet::NONE),
            WrOp::BindMw(_) | WrOp::RegMr(_) | WrOp::LocalInv(_) => return None,
        })
    }

    /// Reports whether the operation is completed by a response of its own rather than by an acknowledgement.
    pub const fn awaits_response(self) -> bool {
        matches!(
            self,
            WrOp::Read { .. } | WrOp::Atomic { .. } | WrOp::AtomicWrite { .. } | WrOp::Flush { .. }
        )
    }

    /// Reports whether the operation consumes a receive at the peer.
    pub const fn takes_receive(self) -> bool {
        matches!(self, WrOp::Send | WrOp::SendWithImm(_) | WrOp::SendWithInv(_) | WrOp::WriteWithImm { .. })
    }

    /// Reports whether the response stores data in the scatter/gather elements.
    pub const fn brings_data(self) -> bool {
        matches!(self, WrOp::Read { .. } | WrOp::Atomic { .. })
    }

    /// Reports whether this is a local operation, which has no packets.
    pub const fn is_local(self) -> bool {
        matches!(self, WrOp::BindMw(_) | WrOp::RegMr(_) | WrOp::LocalInv(_))
    }

    /// Reports whether the operation takes scatter/gather elements or inline data.
    pub const fn has_data(self) -> bool {
        !self.is_local() && !matches!(self, WrOp::AtomicWrite { .. } | WrOp::Flush { .. })
    }

    /// Returns the access flags that the scatter/gather elements' regions must grant.
    pub const fn local_access(self) -> Access {
        if self.brings_data() { Access::LOCAL_WRITE } else { Access::LOCAL_READ }
    }

    /// Returns the opcode that the completion reports.
    pub const fn completion_opcode(self) -> WcOpcode {
        match self {
            WrOp::Send | WrOp::SendWithImm(_) | WrOp::SendWithInv(_) => WcOpcode::Send,
            WrOp::Write { .. } | WrOp::WriteWithImm { .. } => WcOpcode::RdmaWrite,
            WrOp::Read { .. } => WcOpcode::RdmaRead,
            WrOp::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => WcOpcode::CompSwap,
            WrOp::Atomic { op: AtomicOp::FetchAdd(_), .. } => WcOpcode::FetchAdd,
            WrOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            WrOp::Flush { .. } => WcOpcode::Flush,
            WrOp::BindMw(_) => WcOpcode::BindMw,
            WrOp::RegMr(_) => WcOpcode::RegMr,
            WrOp::LocalInv(_) => WcOpcode::LocalInv,
        }
    }
}

/// Flags of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendFlags {
    /// Whether the work request generates a completion on success; errors always generate one.
    pub signaled: bool,
    /// Whether the message requests a solicited event at the peer's completion queue.
    pub solicited: bool,
    /// Whether the work request waits for all earlier READs and atomics on its queue.
    pub fence: bool,
}

impl SendFlags {
    /// Flags of a signaled work request that has neither a solicited event nor a fence.
    pub const SIGNALED: SendFlags = SendFlags { signaled: true, solicited: false, fence: false };
}

/// Data of a send work request: registered memory or inline bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrData<'a> {
    /// Scatter/gather elements in registered memory.
    Sges(&'a [Sge]),
    /// Inline data, which is copied when posted, so that the buffer can be reused immediately.
    Inline(&'a [u8]),
    /// Inline data in several pieces, which are concatenated.
    InlineList(&'a [&'a [u8]]),
}

impl<'a> WrData<'a> {
    /// Returns the pieces of inline data; none if the data is not inline.
    pub(super) fn inline(&self) -> &[&'a [u8]] {
        match self {
            WrData::Sges(_) => &[],
            WrData::Inline(piece) => std::slice::from_ref(piece),
            WrData::InlineList(pieces) => pieces,
        }
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            WrData::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
            _ => self.inline().iter().map(|piece| piece.len() as u64).sum(),
        }
    }

    /// Reports whether there are neither scatter/gather elements nor inline bytes.
    pub fn is_empty(&self) -> bool {
        match self {
            WrData::Sges(sges) => sges.is_empty(),
            _ => self.inline().iter().all(|piece| piece.is_empty()),
        }
    }
}

/// Address and key of a peer's memory, for WRITEs, READs, atomics and FLUSHes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteAddr {
    /// Address of the first byte.
    pub va: u64,
    /// Key of the region.
    pub rkey: RKey,
}

/// Destination of a work request, for services whose connection does not determine it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// Destination of a datagram.
    Qp {
        /// Protection domain of the address handle, which must be the QP's.
        pd: PdId,
        /// Address vector of the peer.
        av: super::AddressVector,
        /// QP number of the peer.
        qpn: Qpn,
        /// Queue key of the peer. If its most significant bit is set, the QP's own queue key is sent
        /// instead (IBA 10.2.5).
        qkey: QKey,
    },
    /// Shared receive queue at the peer (XRC), which supplies the receives and their protection domain.
    Srq(super::SrqId),
}

/// A receive work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a work request has no effect before it is posted"]
#[non_exhaustive]
pub struct RecvWr<'a> {
    /// Identifier, returned in the completion.
    pub wr_id: u64,
    /// Buffers for the data of a SEND, filled in order.
    pub sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// Creates a receive into `sges`, which are filled in order. If `sges` is empty, the receive accepts only
    /// messages without data.
    pub const fn new(wr_id: u64, sges: &'a [Sge]) -> RecvWr<'a> {
        RecvWr { wr_id, sges }
    }

    /// Creates a receive for a message without data: an empty SEND, or a WRITE with immediate.
    pub const fn empty(wr_id: u64) -> RecvWr<'static> {
        RecvWr { wr_id, sges: &[] }
    }
}

/// Reason why a work request in a list was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("work request {index} of the list was not posted: {error}")]
pub struct PostListError {
    /// Index of the first work request that was refused. Whether those before it were posted depends on
    /// the [policy](crate::verbs::ListPolicy).
    pub index: usize,
    /// Reason why the work request was refused.
    pub error: PostError,
}

codes! {
    /// Completion status, with the values of `enum ibv_wc_status`.
    #[derive(Default)]
    #[non_exhaustive]
    WcStatus {
        /// Success.
        #[default]
        Success = 0, "success";
        /// Message longer than the receive's buffers.
        LocLenErr = 1, "local length error";
        /// Operation that the QP does not support or permit.
        LocQpOpErr = 2, "local QP operation error";
        /// Local key, range or permission violation.
        LocProtErr = 4, "local protection error";
        /// Flushed: the QP entered the error state before the work request was complete.
        WrFlushErr = 5, "work request flushed";
        /// Memory management operation error: a failed window bind, fast registration or invalidation.
        MwBindErr = 6, "memory management operation error";
        /// Malformed response.
        BadRespErr = 7, "bad response error";
        /// Access violation at the responder during a remote operation.
        LocAccessErr = 8, "local access error";
        /// The peer rejected the request as invalid.
        RemInvReqErr = 9, "remote invalid request error";
        /// The peer denied the memory access: key, range or permission violation.
        RemAccessErr = 10, "remote access error";
        /// The peer failed to execute the request.
        RemOpErr = 11, "remote operation error";
        /// The peer did not respond before the retries were used up.
        RetryExcErr = 12, "transport retry counter exceeded";
        /// The peer did not post a receive before the RNR retries were used up.
        RnrRetryExcErr = 13, "RNR retry counter exceeded";
    }
}

impl std::error::Error for WcStatus {}

codes! {
    /// Kind of a completed work request, with the values of `enum ibv_wc_opcode` except for
    /// [`RegMr`](Self::RegMr).
    #[derive(Default)]
    #[non_exhaustive]
    WcOpcode {
        /// A SEND.
        #[default]
        Send = 0, "SEND";
        /// An RDMA WRITE.
        RdmaWrite = 1, "RDMA WRITE";
        /// An RDMA READ.
        RdmaRead = 2, "RDMA READ";
        /// A compare-and-swap.
        CompSwap = 3, "compare-and-swap";
        /// A fetch-and-add.
        FetchAdd = 4, "fetch-and-add";
        /// A memory window bind.
        BindMw = 5, "memory window bind";
        /// A local invalidation.
        LocalInv = 6, "local invalidate";
        /// A FLUSH.
        Flush = 8, "FLUSH";
        /// An ATOMIC WRITE.
        AtomicWrite = 9, "ATOMIC WRITE";
        /// Fast registration, for which libibverbs has no opcode. 135 is the first value reserved for drivers
        /// (`IBV_WC_DRIVER1`).
        RegMr = 135, "fast registration";
        /// A receive consumed by a SEND.
        Recv = 128, "receive";
        /// A receive consumed by a WRITE with immediate.
        RecvRdmaWithImm = 129, "receive (WRITE with immediate)";
    }
}

impl WcOpcode {
    /// Reports whether the work request was a receive.
    pub fn is_receive(self) -> bool {
        matches!(self, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm)
    }
}

/// A work completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Completion {
    /// Identifier of the work request.
    pub wr_id: u64,
    /// Status of the work request. If it is an error, only `wr_id`, `status`, `qpn` and `vendor_err` are
    /// valid.
    pub status: WcStatus,
    /// Kind of work request.
    pub opcode: WcOpcode,
    /// Number of bytes received, read or swapped; for sends, the message length. For a UD receive, it
    /// includes the 40 bytes of the routing header.
    pub byte_len: u32,
    /// Immediate data, if the message carried any.
    pub imm: Option<u32>,
    /// Local key invalidated by the SEND, if any.
    pub invalidated: Option<RKey>,
    /// Number of the QP.
    pub qpn: Qpn,
    /// QP number of the peer or, for a datagram, of its sender.
    pub src_qpn: Qpn,
    /// Vendor-specific error code that refines the status; 0 for none.
    pub vendor_err: u32,
    /// Whether the peer requested a solicited event.
    pub solicited: bool,
    /// Whether the first 40 bytes of the receive hold the routing header (UD).
    pub grh: bool,
    /// Whether the routing header is an IPv4 header, in the last 20 of the 40 bytes, instead of an IPv6
    /// header (UD).
    pub over_ipv4: bool,
    /// Partition key table index of the message's partition key.
    pub pkey_index: u16,
}

impl Completion {
    /// Returns a completion without data, for testing code that handles completions.
    pub fn new(wr_id: u64, qpn: Qpn, opcode: WcOpcode, status: WcStatus) -> Completion {
        Completion { wr_id, status, opcode, qpn, ..Completion::default() }
    }
}

/// Handle of a completion queue, unique within its context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CqId(pub u32);

/// Reason why a work request was not posted; the queue is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The device has failed ([`AsyncEvent::DeviceFatal`](super::AsyncEvent::DeviceFatal)).
    #[error("the device has failed and accepts no work requests: close the context and open another")]
    DeviceFatal,
    /// A fault on the call, which was not executed.
    #[error(transparent)]
    Injected(InjectedError),
    /// The QP's state does not permit posting.
    #[error("a QP in state {0} does not accept this work request")]
    State(super::QpState),
    /// The queue is full: all slots hold incomplete work requests.
    #[error("the queue is full: all {0} work requests are outstanding")]
    QueueFull(u32),
    /// There are more scatter/gather elements than the queue permits.
    #[error("{got} scatter/gather elements exceed the queue's limit of {max}")]
    TooManySges {
        /// Number of scatter/gather elements given.
        got: usize,
        /// Limit of the queue.
        max: u32,
    },
    /// There is more inline data than the queue permits.
    #[error("{got} bytes of inline data exceed the queue's limit of {max}")]
    InlineTooLong {
        /// Number of bytes given.
        got: usize,
        /// Limit of the queue.
        max: u32,
    },
    /// The operation cannot have inline data: READs and atomics return data rather than send it.
    #[error("{0:?} cannot have inline data")]
    InlineNotAllowed(WcOpcode),
    /// The message exceeds 2^31 bytes.
    #[error("{0} bytes exceed the longest message, 2^31")]
    TooLong(u64),
    /// The scatter/gather elements of an atomic do not total 8 bytes (all personalities except `strict`
    /// accept more than 8).
    #[error("an atomic needs 8 bytes for its result, not {0}")]
    AtomicLength(u64),
    /// Scatter/gather elements or inline data were given for an operation without data.
    #[error("{0:?} does not accept scatter/gather elements or inline data")]
    NoData(WcOpcode),
    /// `bind_mw` binds only type 1 memory windows.
    #[error("bind_mw does not bind a window of {0:?}: post a BIND_MW work request")]
    WindowKind(WindowKind),
    /// The FLUSH has no placement type.
    #[error("a FLUSH needs a placement type: global visibility, persistence or both")]
    NoPlacement,
    /// The service does not support this operation.
    #[error("a {0:?} QP does not support {1:?}")]
    Unsupported(QpType, WcOpcode),
    /// The destination does not suit the service: UD requires a QP, XRC a shared receive queue, and other
    /// services none.
    #[error(
        "the destination does not fit the service: UD needs a QP, XRC a shared receive queue, other services none"
    )]
    Destination,
    /// The address handle and the QP belong to different protection domains.
    #[error(
        "the address handle belongs to {handle}, the QP to {qp}: create the handle in the QP's protection domain"
    )]
    HandlePd {
        /// Protection domain of the handle.
        handle: PdId,
        /// Protection domain of the QP.
        qp: PdId,
    },
    /// The port cannot use the address vector.
    #[error("no path to the destination: {0}")]
    Address(super::AddressError),
    /// The QP uses a shared receive queue, to which receives must be posted instead.
    #[error("the QP has a shared receive queue: post the receive there")]
    SharedQueue,
    /// The QP was configured without resources for READs and atomics (max_rd_atomic is 0).
    #[error("READs and atomics need max_rd_atomic above 0")]
    NoReadResources,
}

impl QpType {
    /// Reports whether the service supports an operation (IBA 9.8).
    pub const fn offers(self, op: &WrOp) -> bool {
        match op {
            _ if matches!(self, QpType::XrcRecv) => false,
            WrOp::Send | WrOp::SendWithImm(_) => true,
            WrOp::Write { .. } | WrOp::WriteWithImm { .. } => self.is_connected(),
            WrOp::BindMw(_) | WrOp::RegMr(_) | WrOp::LocalInv(_) => self.is_connected(),
            WrOp::SendWithInv(_) | WrOp::AtomicWrite { .. } | WrOp::Flush { .. } => self.is_reliable(),
            WrOp::Read { .. } | WrOp::Atomic { .. } => self.is_reliable(),
        }
    }
}
