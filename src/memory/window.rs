use crossbeam_utils::atomic::AtomicCell;

use super::grant::Grant;
use super::{Access, AccessError, Accessor, ManagementError, PdId};
use crate::wire::{LKey, Qpn, RKey};

/// Types of memory windows: the queue pairs that may use one, and the maker of its keys (IBA 10.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WindowKind {
    /// Every QP of its protection domain; bound anew at will, never invalidated.
    Type1,
    /// The QP that bound it.
    Type2A,
    /// The QP that bound it, which must be of its protection domain at each use too.
    Type2B,
}

impl WindowKind {
    /// Whether it is of type 2: bound where it is not yet, and invalidated.
    pub const fn is_type_2(self) -> bool {
        !matches!(self, WindowKind::Type1)
    }
}

/// A memory window: a part of a region that is open to peers while it is bound.
#[derive(Debug)]
pub(super) struct Window {
    pub pd: PdId,
    pub kind: WindowKind,
    /// Every packet under its key reads it: without a lock, unless it changes at that moment.
    state: AtomicCell<State>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    /// The low byte of its key.
    key: u8,
    bound: Option<Binding>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Binding {
    grant: Grant,
    /// Slot of the region.
    region: u32,
    /// The queue pair that bound it.
    qpn: Qpn,
}

/// What a bind opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// Which window, by its index, and the low byte of its key from now on.
    pub rkey: RKey,
    /// The region.
    pub region: LKey,
    /// First byte, as the region's addresses count.
    pub addr: u64,
    /// Bytes; none unbind a window of type 1.
    pub len: u64,
    /// What peers may do: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, and ZERO_BASED where they are to count from 0.
    pub access: Access,
}

impl Window {
    pub fn new(pd: PdId, kind: WindowKind, key: u8) -> Window {
        Window { pd, kind, state: AtomicCell::new(State { key, bound: None }) }
    }

    /// The low byte of its key.
    pub fn key(&self) -> u8 {
        self.state.load().key
    }

    /// What a peer may use under `rkey` through a queue pair.
    pub fn grant(&self, rkey: RKey, by: Accessor) -> Result<Grant, AccessError> {
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
        Ok(binding.grant)
    }

    /// What of a bind depends on the window alone.
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

    /// Opens `grant` of the region in slot `region`, or nothing. The region that was bound before.
    pub fn bind(&self, rkey: RKey, by: Accessor, part: Option<(u32, Grant)>) -> Option<u32> {
        let bound = part.map(|(region, grant)| Binding { grant, region, qpn: by.qpn });
        let before = self.state.swap(State { key: rkey.generation(), bound });
        before.bound.map(|b| b.region)
    }

    /// Closes it, as a work request or a peer asks. The region that was bound.
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
        // Unless another was faster.
        let closed = self.state.compare_exchange(state, State { bound: None, ..state });
        closed.map(|_| bound.region).map_err(|_| unknown)
    }

    /// Closes it if it is bound to a region; whether it was.
    pub fn release(&self, region: u32) -> bool {
        let close =
            |state: State| state.bound.filter(|b| b.region == region).map(|_| State { bound: None, ..state });
        self.state.fetch_update(close).is_ok()
    }

    /// The region that it is bound to.
    pub fn region(&self) -> Option<u32> {
        self.state.load().bound.map(|b| b.region)
    }
}
