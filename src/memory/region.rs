//! Memory regions: ordinary ones, and fast-registered regions whose registration work requests change.

use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::atomic::AtomicCell;

use super::extent::Extent;
use super::{Access, AccessError, ManagementError, PdId};
use crate::wire::LKey;

/// An ordinary region. Only deregistration and re-registration change it.
#[derive(Debug)]
pub(super) struct Region {
    pub pd: PdId,
    pub extent: Extent,
    pub windows: BoundWindows,
}

/// Number of windows bound to a region, which cannot be deregistered while there are any (C10-70).
#[derive(Debug, Default)]
pub(super) struct BoundWindows(AtomicU32);

impl BoundWindows {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Fast-registered region: memory of which work requests register a part and later invalidate the
/// registration.
#[derive(Debug)]
pub(super) struct FastRegion {
    pub pd: PdId,
    /// Host address of the memory that may be registered.
    addr: usize,
    len: u64,
    /// Current registration. It is read for every packet that uses a key of the region; the read takes no
    /// lock, except while the registration changes.
    state: AtomicCell<FastState>,
    pub windows: BoundWindows,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FastState {
    /// Low byte of the keys, which the application chooses with each registration.
    key: u8,
    fast_reg: Option<Extent>,
}

/// Parameters of a fast registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastReg {
    /// Key after the registration: its index identifies the region, and its low byte becomes the low byte of
    /// the region's keys.
    pub key: LKey,
    /// Offset of the first byte in the memory of the region.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Address under which work requests and peers access the first byte.
    pub iova: u64,
    /// Permitted access.
    pub access: Access,
}

impl FastRegion {
    /// Creates a region without a valid registration.
    pub fn new(pd: PdId, addr: usize, len: u64, key: u8) -> FastRegion {
        FastRegion {
            pd,
            addr,
            len,
            state: AtomicCell::new(FastState { key, fast_reg: None }),
            windows: BoundWindows::default(),
        }
    }

    /// Returns the low byte of the keys.
    pub fn key(&self) -> u8 {
        self.state.load().key
    }

    /// Returns the extent that is registered under `key`.
    pub fn extent(&self, key: LKey) -> Result<Extent, AccessError> {
        let state = self.state.load();
        state.fast_reg.filter(|_| state.key == key.generation()).ok_or(AccessError::UnknownKey { key: key.0 })
    }

    /// Registers a part of the region. Fails if a registration is already valid (IBA 10.6.5.2).
    pub fn fast_reg(&self, reg: &FastReg) -> Result<(), ManagementError> {
        let FastReg { key, offset, len, iova, access } = *reg;
        let state = self.state.load();
        let in_use = ManagementError::InUse { key: key.0 };
        if state.fast_reg.is_some() {
            return Err(in_use);
        }
        if len == 0 || self.len.checked_sub(offset).is_none_or(|room| len > room) {
            return Err(ManagementError::Range { key: key.0, addr: offset, len });
        }
        if access.allows_remote_modification() && !access.allows(Access::LOCAL_WRITE) {
            return Err(ManagementError::Access { key: key.0, access });
        }
        let extent = Extent { addr: self.addr + offset as usize, len, iova, access };
        let registered = FastState { key: key.generation(), fast_reg: Some(extent) };
        // Fails if another queue pair has registered meanwhile.
        self.state.compare_exchange(state, registered).map(drop).map_err(|_| in_use)
    }

    /// Invalidates the registration. Fails while windows are bound to the region, and for a peer if the
    /// registration permits no remote access.
    pub fn invalidate(&self, key: LKey, remote: bool) -> Result<(), ManagementError> {
        let state = self.state.load();
        let unknown = ManagementError::UnknownKey { key: key.0 };
        let extent = state.fast_reg.filter(|_| state.key == key.generation()).ok_or(unknown)?;
        if self.windows.count() > 0 {
            return Err(ManagementError::WindowsBound { key: key.0, count: self.windows.count() });
        }
        if remote && !extent.access.is_remote() {
            return Err(ManagementError::Access { key: key.0, access: extent.access });
        }
        self.state
            .compare_exchange(state, FastState { fast_reg: None, ..state })
            .map(drop)
            .map_err(|_| unknown)
    }
}
