use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::atomic::AtomicCell;

use super::grant::Grant;
use super::{Access, AccessError, ManagementError, PdId};
use crate::wire::LKey;

/// A region as it was registered; only deregistering or registering it anew changes it.
#[derive(Debug)]
pub(super) struct Region {
    pub pd: PdId,
    pub grant: Grant,
    pub windows: Bound,
}

/// How many windows are bound to a region: it stays while there are any (C10-70).
#[derive(Debug, Default)]
pub(super) struct Bound(AtomicU32);

impl Bound {
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

/// Memory of which work requests open a part and close it again (fast registration).
#[derive(Debug)]
pub(super) struct FastRegion {
    pub pd: PdId,
    /// Host address of what may be opened.
    addr: usize,
    len: u64,
    /// Every packet under its keys reads it: without a lock, unless it changes at that moment.
    state: AtomicCell<FastState>,
    pub windows: Bound,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FastState {
    /// The low byte of its keys: the application's choice with each registration.
    key: u8,
    open: Option<Grant>,
}

/// What a fast registration opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastReg {
    /// Which region, by its index, and the low byte of its keys from now on.
    pub key: LKey,
    /// First byte, counted from the region's memory.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The address by which work requests and peers are to name the first byte.
    pub iova: u64,
    /// What is allowed.
    pub access: Access,
}

impl FastRegion {
    /// With nothing open.
    pub fn new(pd: PdId, addr: usize, len: u64, key: u8) -> FastRegion {
        FastRegion {
            pd,
            addr,
            len,
            state: AtomicCell::new(FastState { key, open: None }),
            windows: Bound::default(),
        }
    }

    /// The low byte of its keys.
    pub fn key(&self) -> u8 {
        self.state.load().key
    }

    /// What is open under `key`.
    pub fn grant(&self, key: LKey) -> Result<Grant, AccessError> {
        let state = self.state.load();
        state.open.filter(|_| state.key == key.generation()).ok_or(AccessError::UnknownKey { key: key.0 })
    }

    /// Opens a part. Only where nothing is open (IBA 10.6.5.2).
    pub fn open(&self, reg: &FastReg) -> Result<(), ManagementError> {
        let FastReg { key, offset, len, iova, access } = *reg;
        let state = self.state.load();
        let in_use = ManagementError::InUse { key: key.0 };
        if state.open.is_some() {
            return Err(in_use);
        }
        if len == 0 || self.len.checked_sub(offset).is_none_or(|room| len > room) {
            return Err(ManagementError::Range { key: key.0, addr: offset, len });
        }
        if access.lets_peers_write() && !access.allows(Access::LOCAL_WRITE) {
            return Err(ManagementError::Access { key: key.0, access });
        }
        let grant = Grant { addr: self.addr + offset as usize, len, iova, access };
        let opened = FastState { key: key.generation(), open: Some(grant) };
        // Unless another queue pair was faster.
        self.state.compare_exchange(state, opened).map(drop).map_err(|_| in_use)
    }

    /// Closes it. A peer may only where it has access at all; nobody while windows are bound to it.
    pub fn close(&self, key: LKey, remote: bool) -> Result<(), ManagementError> {
        let state = self.state.load();
        let unknown = ManagementError::UnknownKey { key: key.0 };
        let grant = state.open.filter(|_| state.key == key.generation()).ok_or(unknown)?;
        if self.windows.count() > 0 {
            return Err(ManagementError::WindowsBound { key: key.0, count: self.windows.count() });
        }
        if remote && !grant.access.is_remote() {
            return Err(ManagementError::Access { key: key.0, access: grant.access });
        }
        self.state.compare_exchange(state, FastState { open: None, ..state }).map(drop).map_err(|_| unknown)
    }
}
