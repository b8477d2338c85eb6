//! Memory windows and fast registration.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::faults::Call;
use super::{CreateError, Pd, PostError, Qp, RawMr, SendFlags, SendWr};
use crate::memory::{Access, Bind, Buffer, FastReg, RegionInfo, WindowKind};
use crate::transport::service::Connected;
use crate::wire::{LKey, RKey};

/// Returns `key` with its low byte incremented modulo 256, as `ibv_inc_rkey` does.
fn next(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

/// Replaces a key by the next one, which it returns.
fn advance(key: &AtomicU32) -> u32 {
    let step = |key| Some(next(key));
    next(key.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).unwrap_or_else(|key| key))
}

/// A memory window, which gives peers access to part of a region while bound. Dropping it unbinds and frees
/// it.
///
/// ```
/// # use std::time::Duration;
/// # use urxe::verbs::*;
/// # use urxe::verbs::memory::WindowKind;
/// # let (a, b) = Fabric::new().pair()?;
/// let mr = b.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
/// let window = b.pd.alloc_mw(WindowKind::Type1)?;
/// let bind = window.bind(&mr, 0..64, Access::REMOTE_WRITE);
/// let rkey = b.qp.bind_mw(&window, 1, &bind, SendFlags::SIGNALED)?;
/// b.cq.wait(Duration::from_secs(5))?;
/// let to = RemoteAddr { va: bind.addr, rkey };
/// a.qp.post_send(&SendWr::write(2, &[], to).inline(b"through the window"))?;
/// a.cq.wait(Duration::from_secs(5))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Mw {
    pd: Pd,
    kind: WindowKind,
    /// Key assigned at allocation, which identifies the window in the key table.
    first: RKey,
    key: AtomicU32,
}

impl Pd {
    /// Allocates an unbound memory window (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// [`CreateError::Exhausted`]; [`CreateError::DeviceFatal`].
    pub fn alloc_mw(&self, kind: WindowKind) -> Result<Mw, CreateError> {
        self.context().inject(Call::ibv_alloc_mw)?;
        let first = self.insert(|table| table.alloc_window(self.id(), kind))?;
        Ok(Mw { pd: self.clone(), kind, first, key: AtomicU32::new(first.0) })
    }

    /// Allocates a region of `len` zeroed bytes for fast registration: work requests register one part of it
    /// at a time ([`SendWr::reg_mr`]).
    ///
    /// # Errors
    /// [`CreateError::Value`] for a length of 0 or above the device's limit; [`CreateError::Exhausted`];
    /// [`CreateError::DeviceFatal`].
    pub fn alloc_mr(&self, len: usize) -> Result<FastMr, CreateError> {
        self.check(len, Access::LOCAL_WRITE)?;
        let buffer = Buffer::zeroed(len);
        // SAFETY: the `FastMr` owns the buffer, and its `drop` revokes the registration before the buffer is
        // freed.
        let first = self.insert(|table| unsafe { table.register_fast(self.id(), buffer.addr(), len) })?;
        Ok(FastMr { pd: self.clone(), first, key: AtomicU32::new(first.lkey.0), buffer })
    }
}

impl Mw {
    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the window's type.
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Returns the key of the last bind, or of a later call to [`next_rkey`](Self::next_rkey).
    pub fn rkey(&self) -> RKey {
        RKey(self.key.load(Ordering::Relaxed))
    }

    /// Advances the key of a type 2 window for its next bind (`ibv_inc_rkey`). Returns the new key, which
    /// [`rkey`](Self::rkey) then returns too.
    pub fn next_rkey(&self) -> RKey {
        RKey(advance(&self.key))
    }

    /// Returns the parameters for binding the window to the given byte range of a region: by [`Qp::bind_mw`]
    /// for type 1 or [`SendWr::bind_mw`] for type 2. For type 2 they include the
    /// [`next_rkey`](Self::next_rkey). A range outside the region is rejected only when the window is bound.
    pub fn bind(&self, region: &RawMr, range: Range<usize>, access: Access) -> Bind {
        let rkey = match self.kind {
            WindowKind::Type1 => self.rkey(),
            WindowKind::Type2A | WindowKind::Type2B => self.next_rkey(),
        };
        let len = range.end.saturating_sub(range.start) as u64;
        Bind { rkey, region: region.lkey(), addr: region.addr() + range.start as u64, len, access }
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

impl<S: Connected> Qp<S> {
    /// Posts a work request that binds a type 1 window to part of a region or, with length 0, unbinds it
    /// (`ibv_bind_mw`). Returns the window's new key; `bind.rkey` is ignored.
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::WindowKind`] for a window of type 2, which is bound by
    /// [`SendWr::bind_mw`].
    pub fn bind_mw(&self, mw: &Mw, wr_id: u64, bind: &Bind, flags: SendFlags) -> Result<RKey, PostError> {
        if mw.kind != WindowKind::Type1 {
            return Err(PostError::WindowKind(mw.kind));
        }
        let rkey = RKey(next(mw.rkey().0));
        self.0.post_send(&SendWr::bind_mw(wr_id, Bind { rkey, ..*bind }).flags(flags))?;
        mw.key.store(rkey.0, Ordering::Relaxed);
        Ok(rkey)
    }
}

/// A region for fast registration: work requests register one part of its memory at a time. Dropping it
/// invalidates and frees it.
pub struct FastMr {
    pd: Pd,
    /// Keys assigned at allocation, which identify the region in the key table.
    first: RegionInfo,
    key: AtomicU32,
    buffer: Buffer,
}

impl FastMr {
    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the parameters for a fast registration of the `len` bytes at `offset`, with a new key and with
    /// `iova` as the address of the first byte. Post them with [`SendWr::reg_mr`].
    pub fn reg(&self, offset: u64, len: u64, iova: u64, access: Access) -> FastReg {
        FastReg { key: LKey(advance(&self.key)), offset, len, iova, access }
    }

    /// Returns the local key from the last call to [`reg`](Self::reg).
    pub fn lkey(&self) -> LKey {
        LKey(self.key.load(Ordering::Relaxed))
    }

    /// Returns the remote key from the last call to [`reg`](Self::reg).
    pub fn rkey(&self) -> RKey {
        RKey(self.lkey().0)
    }

    /// Returns the region's memory.
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
