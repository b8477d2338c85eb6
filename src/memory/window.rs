//! Memory windows: binding, invalidation, and the checks of their use.

use crossbeam_utils::atomic::AtomicCell;

use super::extent::Extent;
use super::{Access, AccessError, Accessor, ManagementError, PdId};
use crate::wire::{LKey, Qpn, RKey};

/// Type of a memory window, which determines the queue pairs that may use it and the party that chooses its
/// keys (IBA 10.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WindowKind {
    /// Usable by every queue pair of its protection domain; rebound at will, never invalidated.
    Type1,
    /// Usable by the queue pair that bound it.
    Type2A,
    /// Usable by the queue pair that bound it, as long as that queue pair is in the protection domain of the
    /// window.
    Type2B,
}

impl WindowKind {
    /// Reports whether the window is of type 2: a bind needs it unbound, and it can be invalidated.
    pub const fn is_type_2(self) -> bool {
        !matches!(self, WindowKind::Type1)
    }
}

/// Memory window: a part of a region that peers can access while the window is bound.
#[derive(Debug)]
pub(super) struct Window {
    pub pd: PdId,
    pub kind: WindowKind,
    /// Current binding. It is read for every packet that uses the key of the window; the read takes no lock,
    /// except while the binding changes.
    state: AtomicCell<State>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    /// Low byte of the key.
    key: u8,
    bound: Option<Binding>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Binding {
    extent: Extent,
    /// Table slot of the region.
    region: u32,
    /// Queue pair that bound the window.
    qpn: Qpn,
}

/// Parameters of a bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// Key after the bind: its index identifies the window, and its low byte becomes the low byte of the
    /// window's key.
    pub rkey: RKey,
    /// Key of the region.
    pub region: LKey,
    /// First byte, in the addresses of the region.
    pub addr: u64,
    /// Length in bytes; 0 unbinds a type 1 window.
    pub len: u64,
    /// Access of peers: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, and ZERO_BASED if their addresses count
    /// from 0.
    pub access: Access,
}

impl Window {
    pub fn new(pd: PdId, kind: WindowKind, key: u8) -> Window {
        Window { pd, kind, state: AtomicCell::new(State { key, bound: None }) }
    }

    /// Returns the low byte of the key.
    pub fn key(&self) -> u8 {
        self.state.load().key
    }

    /// Returns the extent that a peer may access under `rkey` through a queue pair.
    pub fn extent(&self, rkey: RKey, by: Accessor) -> Result<Extent, AccessError> {
        let key = rkey.0;
        let state = self.state.load();
        let binding =
            state.bound.filter(|_| state.key == rkey.generation()).ok_or(AccessError::UnknownKey { key })?;
        if self.kind != WindowKind::Type2A && self.pd != by.pd {
            return Err(AccessError::WrongPd { key, region: self.pd, used: by.pd });
        }
        if self.kind.is_type_2() && binding.qpn != by.qpn {
            return Err(AccessError::WrongQp { key, bound: binding.qpn, used: by.qpn });
        }
        Ok(binding.extent)
    }

    /// Checks those conditions of a bind that depend on the window alone.
    pub fn check(&self, bind: &Bind, by: Accessor) -> Result<(), ManagementError> {
        let key = bind.rkey.0;
        // C10-72.
        if self.pd != by.pd {
            return Err(ManagementError::WrongPd { key, object: self.pd, used: by.pd });
        }
        let (bound, zero_based) = (self.state.load().bound.is_some(), bind.access.allows(Access::ZERO_BASED));
        match self.kind {
            // o10-36.2.2.
            WindowKind::Type1 if zero_based => Err(ManagementError::Access { key, access: bind.access }),
            WindowKind::Type1 => Ok(()),
            // o10-37.2.30.
            _ if bound => Err(ManagementError::InUse { key }),
            // o10-37.2.40.
            _ if bind.len == 0 => Err(ManagementError::Range { key, addr: bind.addr, len: 0 }),
            _ => Ok(()),
        }
    }

    /// Binds the window to `part`, an extent of the region in a slot, or unbinds it if `part` is `None`.
    /// Returns the slot of the region to which the window was bound before.
    pub fn bind(&self, rkey: RKey, by: Accessor, part: Option<(u32, Extent)>) -> Option<u32> {
        let bound = part.map(|(region, extent)| Binding { extent, region, qpn: by.qpn });
        let before = self.state.swap(State { key: rkey.generation(), bound });
        before.bound.map(|b| b.region)
    }

    /// Invalidates the window for a work request or a peer. Returns the slot of the region to which the
    /// window was bound.
    pub fn invalidate(&self, rkey: RKey, by: Accessor) -> Result<u32, ManagementError> {
        let key = rkey.0;
        // o10-37.2.26.
        if !self.kind.is_type_2() {
            return Err(ManagementError::NotInvalidatable { key });
        }
        let state = self.state.load();
        let unknown = ManagementError::UnknownKey { key };
        let bound = state.bound.filter(|_| state.key == rkey.generation()).ok_or(unknown)?;
        if self.kind == WindowKind::Type2B && self.pd != by.pd {
            return Err(ManagementError::WrongPd { key, object: self.pd, used: by.pd });
        }
        if bound.qpn != by.qpn {
            return Err(ManagementError::WrongQp { key, bound: bound.qpn, used: by.qpn });
        }
        // Fails if the binding has changed meanwhile.
        let unbound = self.state.compare_exchange(state, State { bound: None, ..state });
        unbound.map(|_| bound.region).map_err(|_| unknown)
    }

    /// Unbinds the window if it is bound to the region in slot `region`. Returns whether it was bound to that
    /// region.
    pub fn release(&self, region: u32) -> bool {
        let unbind =
            |state: State| state.bound.filter(|b| b.region == region).map(|_| State { bound: None, ..state });
        self.state.fetch_update(unbind).is_ok()
    }

    /// Returns the slot of the region to which the window is bound.
    pub fn region(&self) -> Option<u32> {
        self.state.load().bound.map(|b| b.region)
    }
}
