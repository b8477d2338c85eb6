//! Send work requests that are built call by call and posted at once, as from `ibv_wr_start` to
//! `ibv_wr_complete`.

use std::fmt;
use std::ops::Range;

use super::{Ah, Qp, RemoteAddr};
use crate::memory::{AtomicOp, Bind, FastReg};
use crate::transport::{Destination, Placement, PostBatchError, SendFlags, SendWr, Sge, SrqId, WrData, WrOp};
use crate::wire::{QKey, Qpn, RKey};

/// A session that builds send work requests, from [`Qp::wr_start`] to [`complete`](Self::complete) or
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
/// The session holds no lock: other threads may post meanwhile, and their work requests then come first.
#[must_use = "nothing is posted before `complete`"]
pub struct WrSession<'q> {
    /// ID of the work requests begun from now on.
    pub wr_id: u64,
    /// Flags of the work requests begun from now on; initially signaled.
    pub flags: SendFlags,
    qp: &'q Qp,
    /// Collected work requests; `None` only once `drop` has returned the buffers to the queue pair.
    batch: Option<Box<Batch>>,
}

/// The work request begun last, for setting its data and destination. Without data it has length 0; setting
/// the data again replaces it.
#[derive(Debug)]
pub struct WrBuilder<'s> {
    batch: &'s mut Batch,
}

/// Work requests collected by a session. The queue pair keeps the buffers for the next session, so that
/// sessions stop allocating after the first ones.
#[derive(Debug, Default)]
pub(super) struct Batch {
    wrs: Vec<PendingWr>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

#[derive(Debug)]
struct PendingWr {
    wr_id: u64,
    op: WrOp,
    flags: SendFlags,
    to: Option<Destination>,
    data: Data,
}

/// Part of the batch's lists that holds the data of a work request.
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
    /// Begins a session that builds send work requests, which [`WrSession::complete`] posts.
    pub fn wr_start(&self) -> WrSession<'_> {
        let batch = self.spare_batch.take().unwrap_or_default();
        WrSession { wr_id: 0, flags: SendFlags::SIGNALED, qp: self, batch: Some(batch) }
    }
}

impl WrSession<'_> {
    fn batch(&self) -> &Batch {
        self.batch.as_ref().expect("the batch is present until drop")
    }

    fn batch_mut(&mut self) -> &mut Batch {
        self.batch.as_mut().expect("the batch is present until drop")
    }

    /// Begins a work request with the current `wr_id` and `flags`.
    pub fn wr(&mut self, op: WrOp) -> WrBuilder<'_> {
        let (wr_id, flags, batch) = (self.wr_id, self.flags, self.batch_mut());
        let at = batch.sges.len();
        batch.wrs.push(PendingWr { wr_id, op, flags, to: None, data: Data::Sges(at..at) });
        WrBuilder { batch }
    }

    /// Begins a SEND.
    pub fn wr_send(&mut self) -> WrBuilder<'_> {
        self.wr(WrOp::Send)
    }

    /// Begins a SEND with immediate data.
    pub fn wr_send_imm(&mut self, imm: u32) -> WrBuilder<'_> {
        self.wr(WrOp::SendWithImm(imm))
    }

    /// Begins an RDMA WRITE.
    pub fn wr_rdma_write(&mut self, to: RemoteAddr) -> WrBuilder<'_> {
        self.wr(WrOp::Write { va: to.va, rkey: to.rkey })
    }

    /// Begins an RDMA WRITE with immediate data.
    pub fn wr_rdma_write_imm(&mut self, to: RemoteAddr, imm: u32) -> WrBuilder<'_> {
        self.wr(WrOp::WriteWithImm { va: to.va, rkey: to.rkey, imm })
    }

    /// Begins an RDMA READ.
    pub fn wr_rdma_read(&mut self, from: RemoteAddr) -> WrBuilder<'_> {
        self.wr(WrOp::Read { va: from.va, rkey: from.rkey })
    }

    /// Begins an atomic compare-and-swap on 8 bytes; the original value is stored in the 8 bytes of its
    /// element.
    pub fn wr_atomic_cmp_swp(&mut self, at: RemoteAddr, compare: u64, swap: u64) -> WrBuilder<'_> {
        self.wr(WrOp::Atomic { va: at.va, rkey: at.rkey, op: AtomicOp::CompareSwap { compare, swap } })
    }

    /// Begins an atomic fetch-and-add on 8 bytes; the original value is stored in the 8 bytes of its element.
    pub fn wr_atomic_fetch_add(&mut self, at: RemoteAddr, add: u64) -> WrBuilder<'_> {
        self.wr(WrOp::Atomic { va: at.va, rkey: at.rkey, op: AtomicOp::FetchAdd(add) })
    }

    /// Begins a SEND with invalidate: it closes the memory window or fast region that `rkey` opens at the
    /// peer.
    pub fn wr_send_inv(&mut self, rkey: RKey) -> WrBuilder<'_> {
        self.wr(WrOp::SendWithInv(rkey))
    }

    /// Begins an ATOMIC WRITE of 8 bytes.
    pub fn wr_atomic_write(&mut self, at: RemoteAddr, value: [u8; 8]) -> WrBuilder<'_> {
        self.wr(WrOp::AtomicWrite { va: at.va, rkey: at.rkey, value })
    }

    /// Begins a FLUSH, which completes when earlier WRITEs to the `len` bytes at `at` have the given
    /// placement.
    pub fn wr_flush(&mut self, at: RemoteAddr, len: u32, placement: Placement) -> WrBuilder<'_> {
        self.wr(WrOp::Flush { va: at.va, rkey: at.rkey, len, placement, whole_region: false })
    }

    /// Begins a bind of a memory window of type 2.
    pub fn wr_bind_mw(&mut self, bind: Bind) -> WrBuilder<'_> {
        self.wr(WrOp::BindMw(bind))
    }

    /// Begins a fast registration of a part of a fast region.
    pub fn wr_reg_mr(&mut self, reg: FastReg) -> WrBuilder<'_> {
        self.wr(WrOp::RegMr(reg))
    }

    /// Begins a local invalidate of a memory window of type 2 or of a fast region.
    pub fn wr_local_inv(&mut self, rkey: RKey) -> WrBuilder<'_> {
        self.wr(WrOp::LocalInv(rkey))
    }

    /// Returns the work request begun last, if there is one.
    pub fn current(&mut self) -> Option<WrBuilder<'_>> {
        (!self.is_empty()).then(|| WrBuilder { batch: self.batch_mut() })
    }

    /// Returns the number of work requests begun.
    pub fn len(&self) -> usize {
        self.batch().wrs.len()
    }

    /// Reports whether no work request has been begun.
    pub fn is_empty(&self) -> bool {
        self.batch().wrs.is_empty()
    }

    /// Posts all work requests, or none (`ibv_wr_complete`).
    ///
    /// # Errors
    /// [`PostBatchError`] of the first work request that is refused; then none is posted.
    pub fn complete(self) -> Result<(), PostBatchError> {
        self.qp.post_all(self.batch().send_wrs())
    }

    /// Ends the session without posting (`ibv_wr_abort`).
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

impl WrBuilder<'_> {
    fn set(&mut self, f: impl FnOnce(&mut PendingWr)) {
        // Never empty: a `WrBuilder` exists only after a work request was begun.
        if let Some(wr) = self.batch.wrs.last_mut() {
            f(wr);
        }
    }

    /// Sets the data to one range of registered memory.
    pub fn set_sge(self, sge: Sge) -> Self {
        self.set_sge_list(&[sge])
    }

    /// Sets the data to several ranges of registered memory.
    pub fn set_sge_list(mut self, sges: &[Sge]) -> Self {
        let start = self.batch.sges.len();
        self.batch.sges.extend_from_slice(sges);
        let range = start..self.batch.sges.len();
        self.set(|wr| wr.data = Data::Sges(range));
        self
    }

    /// Sets the data to a copy of `data`.
    pub fn set_inline_data(self, data: &[u8]) -> Self {
        self.set_inline_data_list(&[data])
    }

    /// Sets the data to a copy of all `pieces`, one after the other.
    pub fn set_inline_data_list(mut self, pieces: &[&[u8]]) -> Self {
        let start = self.batch.inline.len();
        pieces.iter().for_each(|piece| self.batch.inline.extend_from_slice(piece));
        let range = start..self.batch.inline.len();
        self.set(|wr| wr.data = Data::Inline(range));
        self
    }

    /// Appends a copy of `piece` to the inline data.
    pub fn add_inline_data(mut self, piece: &[u8]) -> Self {
        let at = self.batch.inline.len();
        self.batch.inline.extend_from_slice(piece);
        let end = self.batch.inline.len();
        self.set(|wr| {
            // The work request was begun last, so its data is at the end of the list.
            let start = if let Data::Inline(range) = &wr.data { range.start } else { at };
            wr.data = Data::Inline(start..end);
        });
        self
    }

    /// Sets the shared receive queue at the peer, for an XRC queue pair.
    pub fn set_xrc_srqn(mut self, srq: SrqId) -> Self {
        self.set(|wr| wr.to = Some(Destination::Srq(srq)));
        self
    }

    /// Sets the destination of a datagram.
    pub fn set_ud_addr(mut self, ah: &Ah, qpn: Qpn, qkey: QKey) -> Self {
        let to = ah.to(qpn, qkey);
        self.set(|wr| wr.to = Some(to));
        self
    }
}
