use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{CreateError, Pd, PostError, Qp, SendFlags, SendWr};
use crate::memory::{Access, Bind, Buffer, FastReg, RegionInfo, WindowKind};
use crate::transport::WrOp;
use crate::wire::{LKey, RKey};

/// The key that the low byte of which is one higher.
fn next(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

/// A memory window: opens a part of a region to peers while it is bound. Dropping it closes and frees it.
pub struct Mw {
    pd: Pd,
    kind: WindowKind,
    /// The key that it got first: its handle.
    first: RKey,
    key: AtomicU32,
}

impl Pd {
    /// A memory window, bound to nothing.
    ///
    /// # Errors
    /// [`CreateError::Exhausted`].
    pub fn alloc_mw(&self, kind: WindowKind) -> Result<Mw, CreateError> {
        let first = self.insert(|table| table.alloc_window(self.id(), kind))?;
        Ok(Mw { pd: self.clone(), kind, first, key: AtomicU32::new(first.0) })
    }

    /// `len` zero bytes of which work requests open a part at a time (fast registration).
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn alloc_mr(&self, len: usize) -> Result<FastMr, CreateError> {
        self.check(len, Access::LOCAL_WRITE)?;
        let buffer = Buffer::zeroed(len);
        // SAFETY: the buffer is owned by the `FastMr`, which deregisters before it frees.
        let first = self.insert(|table| unsafe { table.register_fast(self.id(), buffer.addr(), len) })?;
        Ok(FastMr { pd: self.clone(), first, key: AtomicU32::new(first.lkey.0), buffer })
    }
}

impl Mw {
    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// What kind it is.
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// The key of the last bind.
    pub fn rkey(&self) -> RKey {
        RKey(self.key.load(Ordering::Relaxed))
    }

    /// The next key to bind a window of type 2 under (`ibv_inc_rkey`); [`rkey`](Self::rkey) says it too from now
    /// on.
    pub fn next_rkey(&self) -> RKey {
        let step = |key| Some(next(key));
        let old = self.key.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
        RKey(next(old.unwrap_or_else(|key| key)))
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.pd.with_table(|table| table.free_window(self.first));
    }
}

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mw({:?}, {:?})", self.kind, self.rkey())
    }
}

impl Qp {
    /// Binds a window of type 1 to a part of a region, or, with no bytes, to nothing; `bind.rkey` does not count.
    /// The window has the key that is returned from now on (`ibv_bind_mw`).
    ///
    /// # Errors
    /// [`PostError`]; a window of type 2 is bound by [`SendWr::bind_mw`].
    pub fn bind_mw(&self, mw: &Mw, wr_id: u64, bind: &Bind, flags: SendFlags) -> Result<RKey, PostError> {
        if mw.kind != WindowKind::Type1 {
            return Err(PostError::WindowKind(mw.kind));
        }
        let rkey = RKey(next(mw.rkey().0));
        self.post_send(&SendWr { flags, ..SendWr::bind_mw(wr_id, Bind { rkey, ..*bind }) })?;
        mw.key.store(rkey.0, Ordering::Relaxed);
        Ok(rkey)
    }
}

impl<'a> SendWr<'a> {
    /// Binds a window.
    pub fn bind_mw(wr_id: u64, bind: Bind) -> SendWr<'a> {
        Self::new(wr_id, WrOp::BindMw(bind), &[])
    }

    /// Opens a part of a fast region.
    pub fn reg_mr(wr_id: u64, reg: FastReg) -> SendWr<'a> {
        Self::new(wr_id, WrOp::RegMr(reg), &[])
    }

    /// Closes a window of type 2 or a fast region of ours.
    pub fn local_inv(wr_id: u64, rkey: RKey) -> SendWr<'a> {
        Self::new(wr_id, WrOp::LocalInv(rkey), &[])
    }
}

/// Memory of which work requests open a part at a time. Dropping it closes and frees it.
pub struct FastMr {
    pd: Pd,
    /// The key that it got first: its handle.
    first: RegionInfo,
    key: AtomicU32,
    buffer: Buffer,
}

impl FastMr {
    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// What to post to open `len` bytes from `offset` on, under a new key and with `iova` as their first address.
    pub fn reg(&self, offset: u64, len: u64, iova: u64, access: Access) -> FastReg {
        let step = |key| Some(next(key));
        let old = self.key.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
        FastReg { key: LKey(next(old.unwrap_or_else(|key| key))), offset, len, iova, access }
    }

    /// The local key of the last registration.
    pub fn lkey(&self) -> LKey {
        LKey(self.key.load(Ordering::Relaxed))
    }

    /// The remote key of the last registration.
    pub fn rkey(&self) -> RKey {
        RKey(self.lkey().0)
    }

    /// Its memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

impl Drop for FastMr {
    fn drop(&mut self) {
        let _ = self.pd.with_table(|table| table.revoke(self.first.lkey));
    }
}

impl fmt::Debug for FastMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FastMr({} bytes, {:?})", self.buffer.len(), self.lkey())
    }
}
