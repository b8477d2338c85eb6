use std::ops::{BitAnd, BitOr, BitOrAssign};

/// What a region allows, with the bit values of verbs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Access(pub u32);

impl Access {
    /// Local reads only.
    pub const LOCAL_READ: Access = Access(0);
    /// The NIC may write it for its own side: receives, READ and atomic results.
    pub const LOCAL_WRITE: Access = Access(1 << 0);
    /// Peers may WRITE.
    pub const REMOTE_WRITE: Access = Access(1 << 1);
    /// Peers may READ.
    pub const REMOTE_READ: Access = Access(1 << 2);
    /// Peers may do atomics.
    pub const REMOTE_ATOMIC: Access = Access(1 << 3);
    /// Everything above: what a test's region usually wants.
    pub const ALL: Access = Access(0xf);

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

/// Why a key does not give access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// No such key now: never given out, or its region is deregistered.
    #[error("key {key:#x} names no region")]
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
