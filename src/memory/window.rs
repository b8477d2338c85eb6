//! Memory windows: binding, invalidation and access checks.

use crossbeam_utils::atomic::AtomicCell;

use super::extent::Extent;
use super::{Access, AccessError, Accessor, ManagementError, PdId};
use crate::wire::{LKey, Qpn, RKey};

/// Type of a memory window, which determines which queue pairs may use it and who chooses its keys (IBA
/// 10.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WindowKind {
    /// Usable through any queue pair in its protection domain; can be rebound at any time, but not
    /// invalidated.
    Type1,
    /// Usable only through the queue pair that bound it.
    Type2A,
    /// Usable only through the queue pair that bound it, and only if that queue pair is in the window's
    /// protection domain.
    Type2B,
}

impl WindowKind {
    /// Reports whether the window is of type 2, and therefore has to be unbound before a bind, and can be
    /// invalidated.
    pub const fn is_type_2(self) -> bool {
        !matches!(self, WindowKind::Type1)
    }
}

/// Memory window: a part of a region that peers can access while the window is bound.
#[derive(Debug)]
pub(super) struct Window {
    pub pd: PdId,
    pub kind: WindowKind,
    /// Current binding, read for every packet that uses the window's key. Reading takes no lock unless the
    /// binding is changing.
    state: AtomicCell<State>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    /// Low byte of the key.
    key: u8,
    bound: Option<Binding>,
}

impl State {
    /// Returns the state after a bind to `part`, the table slot of a region and an extent within it.
    fn new(rkey: RKey, by: Accessor, part: Option<(u32, Extent)>) -> State {
        let bound = part.map(|(region, extent)| Binding { extent, region, qpn: by.qpn });
        State { key: rkey.generation(), bound }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Binding {
    extent: Extent,
    /// Table slot of the region that the window is bound to.
    region: u32,
    /// Queue pair that bound the window.
    qpn: Qpn,
}

/// Parameters of a bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// New key: its index identifies the window, and its low byte becomes the low byte of the window's key.
    pub rkey: RKey,
    /// Key of the region.
    pub region: LKey,
    /// Address of the first byte, within the region's address range.
    pub addr: u64,
    /// Length in bytes; 0 unbinds a type 1 window.
    pub len: u64,
    /// Operations permitted to peers: REMOTE_WRITE, REMOTE_READ and REMOTE_ATOMIC; ZERO_BASED if they
    /// address the window by offset from its start.
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

    /// Returns the extent that the peer of `by` may access through `rkey`.
    pub fn extent(&self, rkey: RKey, by: Accessor) -> Result<Extent, AccessError> {
        let key = rkey.0;
        let state = self.state.load();
        let binding =
            state.bound.filter(|_| state.key == rkey.generation()).ok_or(AccessError::UnknownKey { key })?;
        if self.kind != WindowKind::Type2A {
            by.check_pd(key, self.pd)?;
        }
        if self.kind.is_type_2() && binding.qpn != by.qpn {
            return Err(AccessError::WrongQp { key, bound: binding.qpn, used: by.qpn });
        }
        Ok(binding.extent)
    }

    /// Checks the conditions for a bind that depend on the window alone.
    pub fn check(&self, bind: &Bind, by: Accessor) -> Result<(), ManagementError> {
        let key = bind.rkey.0;
        // C10-72.
        by.check_pd(key, self.pd)?;
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

    /// Binds the window to `part`, the table slot of a region and an extent within it, or unbinds it if
    /// `part` is `None`. Returns the slot of the region that the window was bound to before.
    pub fn bind(&self, rkey: RKey, by: Accessor, part: Option<(u32, Extent)>) -> Option<u32> {
        self.state.swap(State::new(rkey, by, part)).bound.map(|b| b.region)
    }

    /// Reverses a bind, unless the window has changed meanwhile. Returns whether it did.
    pub fn unbind(&self, rkey: RKey, by: Accessor, part: Option<(u32, Extent)>) -> bool {
        let state = State::new(rkey, by, part);
        self.state.compare_exchange(state, State { bound: None, ..state }).is_ok()
    }

    /// Invalidates the window, on behalf of a work request or a peer. Returns the slot of the region that the
    /// window was bound to.
    pub fn invalidate(&self, rkey: RKey, by: Accessor) -> Result<u32, ManagementError> {
        let key = rkey.0;
        // o10-37.2.26.
        if !self.kind.is_type_2() {
            return Err(ManagementError::NotInvalidatable { key });
        }
        let state = self.state.load();
        let unknown = ManagementError::UnknownKey { key };
        let bound = state.bound.filter(|_| state.key == rkey.generation()).ok_or(unknown)?;
        if self.kind == WindowKind::Type2B {
            by.check_pd(key, self.pd)?;
        }
        if bound.qpn != by.qpn {
            return Err(ManagementError::WrongQp { key, bound: bound.qpn, used: by.qpn });
        }
        // Fails if the binding has changed meanwhile.
        let unbound = self.state.compare_exchange(state, State { bound: None, ..state });
        unbound.map(|_| bound.region).map_err(|_| unknown)
    }

    /// Unbinds the window if it is bound to the region in slot `region`. Returns whether it was.
    pub fn release(&self, region: u32) -> bool {
        let unbind =
            |state: State| state.bound.filter(|b| b.region == region).map(|_| State { bound: None, ..state });
        self.state.fetch_update(unbind).is_ok()
    }

    /// Returns the slot of the region that the window is bound to.
    pub fn region(&self) -> Option<u32> {
        self.state.load().bound.map(|b| b.region)
    }
}
