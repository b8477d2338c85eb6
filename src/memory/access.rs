use std::ops::{BitAnd, BitOr, BitOrAssign};

use crate::wire::Qpn;

/// What a region allows, with the bit values of verbs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Access(pub u32);

impl Access {
    /// Local reads only.
    pub const LOCAL_READ: Access = Access(0);
    /// The NIC may write it for its own side: receives, READ and atomic results.
    pub const LOCAL_WRITE: Access = Access(0x1);
    /// Peers may WRITE.
    pub const REMOTE_WRITE: Access = Access(0x2);
    /// Peers may READ.
    pub const REMOTE_READ: Access = Access(0x4);
    /// Peers may do atomics.
    pub const REMOTE_ATOMIC: Access = Access(0x8);
    /// Memory windows may be bound to it.
    pub const MW_BIND: Access = Access(0x10);
    /// Its addresses count from 0.
    pub const ZERO_BASED: Access = Access(0x20);
    /// Its pages may come and go: each use sees whether they are there.
    pub const ON_DEMAND: Access = Access(0x40);
    /// Huge pages were asked for: taken, and of no effect.
    pub const HUGETLB: Access = Access(0x80);
    /// Peers may FLUSH to global visibility.
    pub const FLUSH_GLOBAL: Access = Access(0x100);
    /// Peers may FLUSH to persistence.
    pub const FLUSH_PERSISTENT: Access = Access(0x200);
    /// The device may reorder its accesses: taken, and of no effect.
    pub const RELAXED_ORDERING: Access = Access(0x10_0000);
    /// Local write, and all that RC's first operations need of a peer: what a test's region usually wants.
    pub const ALL: Access = Access(0xf);

    /// What a device with memory windows, atomics and flushes takes.
    const KNOWN: u32 = 0x10_03ff;
    /// The flags that a device may ignore without a word (`IBV_ACCESS_OPTIONAL_RANGE`).
    const OPTIONAL: u32 = 0x3ff0_0000;

    /// The flags that nobody knows, and that may not be ignored.
    pub const fn unknown(self) -> Access {
        Access(self.0 & !(Self::KNOWN | Self::OPTIONAL))
    }

    /// Whether peers may change memory.
    pub const fn lets_peers_write(self) -> bool {
        self.0 & (Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0) != 0
    }

    /// Whether peers may do anything with it.
    pub const fn is_remote(self) -> bool {
        self.lets_peers_write() || self.allows(Access::REMOTE_READ)
    }

    /// Whether all of `needed` is allowed.
    pub const fn allows(self, needed: Access) -> bool {
        self.0 & needed.0 == needed.0
    }
}

impl BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, other: Access) {
        self.0 |= other.0;
    }
}

impl BitAnd for Access {
    type Output = Access;
    fn bitand(self, other: Access) -> Access {
        Access(self.0 & other.0)
    }
}

/// A protection domain's handle, unique in its NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PdId(pub u32);

/// The accessor of memory: a queue pair and its protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accessor {
    /// The domain.
    pub pd: PdId,
    /// The queue pair.
    pub qpn: Qpn,
}

/// Why a key does not give access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// No such key now: never given out, its region deregistered, its window not bound.
    #[error("key {key:#x} names no region and no bound window")]
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// The region belongs to another protection domain.
    #[error("the region of key {key:#x} is of {region:?}, not of {used:?}")]
    WrongPd {
        /// The key.
        key: u32,
        /// The region's domain.
        region: PdId,
        /// The domain of the QP that used the key.
        used: PdId,
    },
    /// The window was bound by another queue pair.
    #[error("the window of key {key:#x} was bound by QP {bound}, not by {used}")]
    WrongQp {
        /// The key.
        key: u32,
        /// The queue pair that bound it.
        bound: Qpn,
        /// The queue pair that used it.
        used: Qpn,
    },
    /// The program has no memory there, or none that can be written: there never was any in a region on demand, or it was
    /// unmapped, protected or cut off.
    #[error("{len} bytes at {addr:#x} of the region of key {key:#x} are not mapped, or not so")]
    NotMapped {
        /// The key.
        key: u32,
        /// First address asked for.
        addr: u64,
        /// Bytes asked for.
        len: u64,
    },
    /// Not all of the range is inside the region.
    #[error(
        "{len} bytes at {addr:#x} are not inside the region of key {key:#x}: {region_len} bytes at {start:#x}"
    )]
    OutOfRange {
        /// The key.
        key: u32,
        /// First address asked for.
        addr: u64,
        /// Bytes asked for.
        len: u64,
        /// The region's first address.
        start: u64,
        /// The region's bytes.
        region_len: u64,
    },
    /// The region does not allow this.
    #[error("the region of key {key:#x} allows {allowed:?}, not {needed:?}")]
    Permission {
        /// The key.
        key: u32,
        /// What the region allows.
        allowed: Access,
        /// What was needed.
        needed: Access,
    },
}

/// Why a memory management work request, or a peer's invalidation, was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ManagementError {
    /// The key names nothing of the kind, or nothing that is open.
    #[error("key {key:#x} names no window or region that this can be done to")]
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// Of another protection domain.
    #[error("key {key:#x} is of {object:?}, not of {used:?}")]
    WrongPd {
        /// The key.
        key: u32,
        /// The object's domain.
        object: PdId,
        /// The queue pair's.
        used: PdId,
    },
    /// Bound by another queue pair.
    #[error("the window of key {key:#x} was bound by QP {bound}, not by {used}")]
    WrongQp {
        /// The key.
        key: u32,
        /// The queue pair that bound it.
        bound: Qpn,
        /// The queue pair that asked.
        used: Qpn,
    },
    /// A window of type 2 that is bound, or a fast region that is open: invalidate it first.
    #[error("what key {key:#x} names is in use: invalidate it first")]
    InUse {
        /// The key.
        key: u32,
    },
    /// Not all bytes are there, or there are none.
    #[error("{len} bytes at {addr:#x} cannot be opened under key {key:#x}")]
    Range {
        /// The key.
        key: u32,
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The access asked for does not go together, or with what the region allows.
    #[error("{access:?} is not to be had under key {key:#x}")]
    Access {
        /// The key.
        key: u32,
        /// As asked for.
        access: Access,
    },
    /// A plain region, or a window of type 1.
    #[error("what key {key:#x} names is not to be invalidated")]
    NotInvalidatable {
        /// The key.
        key: u32,
    },
    /// Windows are bound to the region.
    #[error("{count} windows are bound to the region of key {key:#x}")]
    WindowsBound {
        /// The key.
        key: u32,
        /// How many.
        count: u32,
    },
}

impl From<AccessError> for ManagementError {
    fn from(e: AccessError) -> Self {
        match e {
            AccessError::UnknownKey { key } | AccessError::NotMapped { key, .. } => {
                ManagementError::UnknownKey { key }
            }
            AccessError::WrongPd { key, region, used } => {
                ManagementError::WrongPd { key, object: region, used }
            }
            AccessError::WrongQp { key, bound, used } => ManagementError::WrongQp { key, bound, used },
            AccessError::OutOfRange { key, addr, len, .. } => ManagementError::Range { key, addr, len },
            AccessError::Permission { key, needed, .. } => ManagementError::Access { key, access: needed },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_a_set() {
        let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
        assert_eq!((read | write, read | read), (Access(6), Access(4)));
        assert_eq!(((read | write) & write, read & write), (write, Access::LOCAL_READ));
        let mut both = read;
        both |= write;
        both |= write;
        assert_eq!(both, Access(6));
    }

    #[test]
    fn what_peers_may_do() {
        for (access, writes, anything) in [
            (Access::LOCAL_WRITE | Access::MW_BIND, false, false),
            (Access::REMOTE_READ, false, true),
            (Access::REMOTE_WRITE, true, true),
            (Access::REMOTE_ATOMIC, true, true),
            (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC, true, true),
        ] {
            assert_eq!((access.lets_peers_write(), access.is_remote()), (writes, anything), "{access:?}");
        }
    }

    #[test]
    fn which_flags_are_known() {
        let known = (0..32).filter(|bit| Access(1 << bit).unknown() == Access::LOCAL_READ);
        assert_eq!(known.collect::<Vec<_>>(), (0..10).chain(20..30).collect::<Vec<_>>());
    }
}
