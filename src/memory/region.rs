//! Memory regions: ordinary regions, and fast-registered regions, which work requests register and
//! invalidate.

use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_utils::atomic::AtomicCell;

use super::extent::Extent;
use super::{Access, AccessError, ManagementError, PdId};
use crate::sys::pinned::Pinned;
use crate::wire::LKey;

/// Ordinary region, which changes only by deregistration, re-registration or revocation.
#[derive(Debug)]
pub(super) struct Region {
    pub pd: PdId,
    pub extent: Extent,
    /// Whether all accesses to the region fail.
    pub revoked: AtomicBool,
    /// Set if the program may unmap the memory.
    pub pinned: Option<Pinned>,
}

impl Region {
    /// Watches from now on for parts of the memory that the program unmaps. In an on-demand region it may do
    /// so.
    pub fn pin(&mut self) {
        let is_pinned = !self.extent.access.allows(Access::ON_DEMAND);
        self.pinned = is_pinned.then(|| Pinned::new(self.extent.addr, self.extent.len));
    }

    /// Reports whether any of the `len` bytes at the host address `addr` were unmapped after the
    /// registration.
    pub fn is_unmapped(&self, addr: usize, len: usize) -> bool {
        self.pinned.as_ref().is_some_and(|pinned| pinned.is_unmapped(addr, len))
    }

    #[inline]
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }
}

/// Fast-registered region: work requests register a part of its memory, and later invalidate the
/// registration.
#[derive(Debug)]
pub(super) struct FastRegion {
    pub pd: PdId,
    /// Host address of the first byte that may be registered.
    addr: usize,
    len: u64,
    /// Current registration, read for every packet that uses one of the region's keys. Reading takes no lock
    /// unless the registration is changing.
    state: AtomicCell<FastState>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FastState {
    /// Low byte of both keys, chosen by the application with each registration.
    key: u8,
    fast_reg: Option<Extent>,
}

/// Parameters of a fast registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastReg {
    /// New key: its index identifies the region, and its low byte becomes the low byte of the region's keys.
    pub key: LKey,
    /// Offset of the first registered byte in the region's memory.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Address that work requests and peers use for the first byte.
    pub iova: u64,
    /// Permitted operations.
    pub access: Access,
}

impl FastRegion {
    /// Creates a region without a valid registration.
    pub fn new(pd: PdId, addr: usize, len: u64, key: u8) -> FastRegion {
        FastRegion { pd, addr, len, state: AtomicCell::new(FastState { key, fast_reg: None }) }
    }

    /// Returns the current low byte of the region's keys.
    pub fn key(&self) -> u8 {
        self.state.load().key
    }

    /// Returns the registered extent, if `key` is the key of a valid registration.
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
        let extent = Extent { addr: self.addr + offset as usize, len: len as usize, iova, access };
        let registered = FastState { key: key.generation(), fast_reg: Some(extent) };
        // Fails if another queue pair has registered meanwhile.
        self.state.compare_exchange(state, registered).map(drop).map_err(|_| in_use)
    }

    /// Ends the registration, if there is one. Returns whether there was.
    pub fn revoke(&self) -> bool {
        let end = |state: FastState| state.fast_reg.map(|_| FastState { fast_reg: None, ..state });
        self.state.fetch_update(end).is_ok()
    }

    /// Invalidates the registration. Fails unless `windows`, the number of windows bound to the region, is 0.
    /// With `remote` (a request from a peer), also fails if the registration permits no remote access.
    pub fn invalidate(&self, key: LKey, remote: bool, windows: u32) -> Result<(), ManagementError> {
        let state = self.state.load();
        let unknown = ManagementError::UnknownKey { key: key.0 };
        let extent = state.fast_reg.filter(|_| state.key == key.generation()).ok_or(unknown)?;
        if windows > 0 {
            return Err(ManagementError::WindowsBound { key: key.0, count: windows });
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
