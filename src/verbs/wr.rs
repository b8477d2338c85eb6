//! Send work requests that are put together call by call and posted at once, as by `ibv_wr_start` to
//! `ibv_wr_complete`.

use std::fmt;
use std::ops::Range;

use super::{Ah, Qp, RemoteAddr};
use crate::memory::{AtomicOp, Bind, FastReg};
use crate::transport::{Destination, Placement, PostBatchError, SendFlags, SendWr, Sge, SrqId, WrData, WrOp};
use crate::wire::{QKey, Qpn, RKey};

/// Work requests in the making, from [`Qp::wr_start`] to [`complete`](Self::complete) or
/// [`abort`](Self::abort). Dropping it posts nothing.
///
/// ```
/// # use urxe::verbs::*;
/// # let (a, b) = Fabric::new().pair()?;
/// # let (src, dst) = (a.pd.reg_mr(4096, Access::ALL)?, b.pd.reg_mr(4096, Access::ALL)?);
/// let mut wr = a.qp.wr_start();
/// wr.flags = SendFlags::default();
/// wr.wr_rdma_write(dst.remote(0)).set_sge(src.sge(0..4096));
/// (wr.wr_id, wr.flags) = (1, SendFlags::SIGNALED);
/// wr.wr_rdma_write(dst.remote(0)).set_inline_data_list(&[b"he", b"ad"]);
/// wr.complete()?;
/// assert_eq!(a.cq.wait(std::time::Duration::from_secs(5))?.wr_id, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It holds no lock: other threads may post meanwhile, and their work requests then come first.
#[must_use = "nothing is posted before `complete`"]
pub struct WrSession<'q> {
    /// Of the work requests begun from now on.
    pub wr_id: u64,
    /// Of the work requests begun from now on; at first signaled.
    pub flags: SendFlags,
    qp: &'q Qp,
    /// There until the session is dropped, which gives it back.
    batch: Option<Box<Batch>>,
}

/// The work request begun last, which gets its data and destination here. One that gets no data has none; what
/// is set again replaces what was there.
#[derive(Debug)]
pub struct BegunWr<'s> {
    batch: &'s mut Batch,
}

/// What a session has collected. The queue pair keeps it for the next one, so that none allocates once warm.
#[derive(Debug, Default)]
pub(super) struct Batch {
    wrs: Vec<Begun>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

#[derive(Debug)]
struct Begun {
    wr_id: u64,
    op: WrOp,
    flags: SendFlags,
    to: Option<Destination>,
    data: Data,
}

/// Which part of the batch's lists a work request has.
#[derive(Clone, Debug)]
enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl Batch {
    fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
    }

    fn send_wrs(&self) -> impl Iterator<Item = SendWr<'_>> {
        self.wrs.iter().map(|wr| SendWr {
            wr_id: wr.wr_id,
            op: wr.op,
            data: match &wr.data {
                Data::Sges(range) => WrData::Sges(&self.sges[range.clone()]),
                Data::Inline(range) => WrData::Inline(&self.inline[range.clone()]),
            },
            flags: wr.flags,
            to: wr.to,
        })
    }
}

impl Qp {
    /// Begins to put send work requests together, which [`WrSession::complete`] posts.
    pub fn wr_start(&self) -> WrSession<'_> {
        let batch = self.spare_batch.take().unwrap_or_default();
        WrSession { wr_id: 0, flags: SendFlags::SIGNALED, qp: self, batch: Some(batch) }
    }
}

impl WrSession<'_> {
    fn batch(&self) -> &Batch {
        self.batch.as_ref().expect("taken by drop only")
    }

    fn batch_mut(&mut self) -> &mut Batch {
        self.batch.as_mut().expect("taken by drop only")
    }

    /// Begins a work request, with the `wr_id` and `flags` of now.
    pub fn wr(&mut self, op: WrOp) -> BegunWr<'_> {
        let (wr_id, flags, batch) = (self.wr_id, self.flags, self.batch_mut());
        let at = batch.sges.len();
        batch.wrs.push(Begun { wr_id, op, flags, to: None, data: Data::Sges(at..at) });
        BegunWr { batch }
    }

    /// A SEND.
    pub fn wr_send(&mut self) -> BegunWr<'_> {
        self.wr(WrOp::Send)
    }

    /// A SEND with immediate.
    pub fn wr_send_imm(&mut self, imm: u32) -> BegunWr<'_> {
        self.wr(WrOp::SendWithImm(imm))
    }

    /// An RDMA WRITE.
    pub fn wr_rdma_write(&mut self, to: RemoteAddr) -> BegunWr<'_> {
        self.wr(WrOp::Write { va: to.va, rkey: to.rkey })
    }

    /// An RDMA WRITE with immediate.
    pub fn wr_rdma_write_imm(&mut self, to: RemoteAddr, imm: u32) -> BegunWr<'_> {
        self.wr(WrOp::WriteWithImm { va: to.va, rkey: to.rkey, imm })
    }

    /// An RDMA READ.
    pub fn wr_rdma_read(&mut self, from: RemoteAddr) -> BegunWr<'_> {
        self.wr(WrOp::Read { va: from.va, rkey: from.rkey })
    }

    /// A compare-and-swap; the old value goes to 8 bytes of its element.
    pub fn wr_atomic_cmp_swp(&mut self, at: RemoteAddr, compare: u64, swap: u64) -> BegunWr<'_> {
        self.wr(WrOp::Atomic { va: at.va, rkey: at.rkey, op: AtomicOp::CompareSwap { compare, swap } })
    }

    /// A fetch-and-add; the old value goes to 8 bytes of its element.
    pub fn wr_atomic_fetch_add(&mut self, at: RemoteAddr, add: u64) -> BegunWr<'_> {
        self.wr(WrOp::Atomic { va: at.va, rkey: at.rkey, op: AtomicOp::FetchAdd(add) })
    }

    /// A SEND that closes what a key at the peer opens.
    pub fn wr_send_inv(&mut self, rkey: RKey) -> BegunWr<'_> {
        self.wr(WrOp::SendWithInv(rkey))
    }

    /// Stores 8 bytes at once.
    pub fn wr_atomic_write(&mut self, at: RemoteAddr, value: [u8; 8]) -> BegunWr<'_> {
        self.wr(WrOp::AtomicWrite { va: at.va, rkey: at.rkey, value })
    }

    /// Waits until earlier WRITEs to `len` bytes are placed.
    pub fn wr_flush(&mut self, at: RemoteAddr, len: u32, placement: Placement) -> BegunWr<'_> {
        self.wr(WrOp::Flush { va: at.va, rkey: at.rkey, len, placement, whole_region: false })
    }

    /// Binds a window of type 2.
    pub fn wr_bind_mw(&mut self, bind: Bind) -> BegunWr<'_> {
        self.wr(WrOp::BindMw(bind))
    }

    /// Opens a part of a fast region.
    pub fn wr_reg_mr(&mut self, reg: FastReg) -> BegunWr<'_> {
        self.wr(WrOp::RegMr(reg))
    }

    /// Closes a window of type 2 or a fast region of ours.
    pub fn wr_local_inv(&mut self, rkey: RKey) -> BegunWr<'_> {
        self.wr(WrOp::LocalInv(rkey))
    }

    /// The work request begun last, if there is one.
    pub fn current(&mut self) -> Option<BegunWr<'_>> {
        (!self.is_empty()).then(|| BegunWr { batch: self.batch_mut() })
    }

    /// Work requests begun.
    pub fn len(&self) -> usize {
        self.batch().wrs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.batch().wrs.is_empty()
    }

    /// Posts all of them, or none.
    ///
    /// # Errors
    /// [`PostBatchError`] of the first that is refused.
    pub fn complete(self) -> Result<(), PostBatchError> {
        self.qp.post_all(self.batch().send_wrs())
    }

    /// Posts nothing.
    pub fn abort(self) {}
}

impl Drop for WrSession<'_> {
    fn drop(&mut self) {
        self.batch_mut().clear();
        self.qp.spare_batch.store(self.batch.take());
    }
}

impl fmt::Debug for WrSession<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrSession({:?}, {} work requests)", self.qp, self.len())
    }
}

impl BegunWr<'_> {
    fn set(&mut self, f: impl FnOnce(&mut Begun)) {
        // There is one: that is what this stands for.
        if let Some(wr) = self.batch.wrs.last_mut() {
            f(wr);
        }
    }

    /// Its data: one run of registered memory.
    pub fn set_sge(self, sge: Sge) -> Self {
        self.set_sge_list(&[sge])
    }

    /// Its data: several runs.
    pub fn set_sge_list(mut self, sges: &[Sge]) -> Self {
        let start = self.batch.sges.len();
        self.batch.sges.extend_from_slice(sges);
        let range = start..self.batch.sges.len();
        self.set(|wr| wr.data = Data::Sges(range));
        self
    }

    /// Its data, copied.
    pub fn set_inline_data(self, data: &[u8]) -> Self {
        self.set_inline_data_list(&[data])
    }

    /// Its data in several pieces, copied.
    pub fn set_inline_data_list(mut self, pieces: &[&[u8]]) -> Self {
        let start = self.batch.inline.len();
        pieces.iter().for_each(|piece| self.batch.inline.extend_from_slice(piece));
        let range = start..self.batch.inline.len();
        self.set(|wr| wr.data = Data::Inline(range));
        self
    }

    /// More of its data, copied behind the inline data that it has.
    pub fn add_inline_data(mut self, piece: &[u8]) -> Self {
        let at = self.batch.inline.len();
        self.batch.inline.extend_from_slice(piece);
        let end = self.batch.inline.len();
        self.set(|wr| {
            // It was begun last, so its data is last too.
            let start = if let Data::Inline(range) = &wr.data { range.start } else { at };
            wr.data = Data::Inline(start..end);
        });
        self
    }

    /// The shared receive queue at the peer, of an XRC queue pair.
    pub fn set_xrc_srqn(mut self, srq: SrqId) -> Self {
        self.set(|wr| wr.to = Some(Destination::Srq(srq)));
        self
    }

    /// Where a datagram goes.
    pub fn set_ud_addr(mut self, ah: &Ah, qpn: Qpn, qkey: QKey) -> Self {
        let to = ah.to(qpn, qkey);
        self.set(|wr| wr.to = Some(to));
        self
    }
}
