//! Access flags, protection domain handles, and the errors for denied accesses and refused memory management
//! operations.

use std::fmt;

use bitflags::bitflags;

use crate::wire::{Counted, Qpn};

bitflags! {
    /// Access flags of a region or window. The values are those of `ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u32 {
        /// The NIC may write to the region on behalf of local work requests: received data, and the results
        /// of READs and atomics.
        const LOCAL_WRITE = 0x1;
        /// Peers may WRITE.
        const REMOTE_WRITE = 0x2;
        /// Peers may READ.
        const REMOTE_READ = 0x4;
        /// Peers may execute atomics.
        const REMOTE_ATOMIC = 0x8;
        /// Memory windows may be bound to the region.
        const MW_BIND = 0x10;
        /// The region or window is addressed by offset from its start, not by virtual address.
        const ZERO_BASED = 0x20;
        /// On-demand paging: pages may be mapped and unmapped at any time, and each access checks that they
        /// are mapped.
        const ON_DEMAND = 0x40;
        /// Huge page hint: accepted without effect.
        const HUGETLB = 0x80;
        /// Peers may FLUSH to the global visibility level.
        const FLUSH_GLOBAL = 0x100;
        /// Peers may FLUSH to the persistence level.
        const FLUSH_PERSISTENT = 0x200;
        /// The device may reorder its accesses: accepted without effect.
        const RELAXED_ORDERING = 0x10_0000;
    }
}

impl Access {
    /// Local reads only.
    pub const LOCAL_READ: Access = Access::empty();
    /// Local writes, and remote WRITE, READ and atomics, as most test programs request.
    pub const ALL: Access = Access::from_bits_retain(0xf);

    /// Flags that a device may ignore silently (`IBV_ACCESS_OPTIONAL_RANGE`).
    const OPTIONAL: Access = Access::from_bits_retain(0x3ff0_0000);

    /// Returns the flags that are neither known nor optional, which have to be rejected.
    pub const fn unknown(self) -> Access {
        self.difference(Access::all().union(Access::OPTIONAL))
    }

    /// Reports whether peers may modify the memory (WRITE or atomics).
    pub const fn allows_remote_modification(self) -> bool {
        self.intersects(Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC))
    }

    /// Reports whether peers may WRITE, READ or execute atomics.
    pub const fn is_remote(self) -> bool {
        self.allows_remote_modification() || self.allows(Access::REMOTE_READ)
    }

    /// Reports whether all flags of `needed` are set.
    pub const fn allows(self, needed: Access) -> bool {
        self.contains(needed)
    }
}

impl fmt::Display for Access {
    /// Writes the names of the flags, such as `REMOTE_WRITE | REMOTE_READ`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() { f.write_str("LOCAL_READ") } else { bitflags::parser::to_writer(self, f) }
    }
}

/// Handle of a protection domain, unique within its NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PdId(pub u32);

impl fmt::Display for PdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PD {}", self.0)
    }
}

/// Identity checked on each memory access: a queue pair and its protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accessor {
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// Queue pair number.
    pub qpn: Qpn,
}

impl Accessor {
    /// Checks that `pd`, the protection domain of a key's object, is that of the queue pair.
    pub(super) fn check_pd(self, key: u32, pd: PdId) -> Result<(), AccessError> {
        if self.pd == pd { Ok(()) } else { Err(AccessError::WrongPd { key, region: pd, used: self.pd }) }
    }
}

/// Reason why an access by key is denied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The key is not valid: it was never allocated, its region was deregistered or invalidated, or its
    /// window is not bound.
    #[error("key {key:#x} does not refer to a region or a bound window")]
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// The region or window belongs to another protection domain.
    #[error("the region of key {key:#x} belongs to {region}, not to {used}")]
    WrongPd {
        /// The key.
        key: u32,
        /// Protection domain of the region or window.
        region: PdId,
        /// Protection domain of the queue pair that used the key.
        used: PdId,
    },
    /// The window was bound by another queue pair.
    #[error("the window of key {key:#x} was bound by QP {bound}, not by {used}")]
    WrongQp {
        /// The key.
        key: u32,
        /// Queue pair that bound the window.
        bound: Qpn,
        /// Queue pair that used the key.
        used: Qpn,
    },
    /// The memory is not mapped, or not with the needed permission: an on-demand region has no mapping there,
    /// or the memory was unmapped, protected or truncated after registration, whatever is mapped there now.
    #[error(
        "the region of key {key:#x} is not mapped with the needed permission, or was unmapped after the registration, in the {} at {addr:#x}",
        Counted(*len, "byte")
    )]
    NotMapped {
        /// The key.
        key: u32,
        /// First address of the access.
        addr: u64,
        /// Length of the access in bytes.
        len: u64,
    },
    /// The range is not entirely within the region.
    #[error(
        "the region of key {key:#x}, {} at {start:#x}, does not contain {} at {addr:#x}: the range {}",
        Counted(*region_len, "byte"),
        Counted(*len, "byte"),
        excess(*addr, *len, *start, *region_len)
    )]
    OutOfRange {
        /// The key.
        key: u32,
        /// First address of the access.
        addr: u64,
        /// Length of the access in bytes.
        len: u64,
        /// First address of the region.
        start: u64,
        /// Length of the region in bytes.
        region_len: u64,
    },
    /// The region does not allow the access.
    #[error("the region of key {key:#x} allows {allowed}: {} is missing", needed.difference(*allowed))]
    Permission {
        /// The key.
        key: u32,
        /// Operations that the region allows.
        allowed: Access,
        /// Permissions that the operation needs.
        needed: Access,
    },
}

/// Returns by how much a range of `len` bytes at `addr` exceeds a region of `region_len` bytes at `start`.
fn excess(addr: u64, len: u64, start: u64, region_len: u64) -> String {
    let (first, last) = (u128::from(addr), u128::from(addr) + u128::from(len));
    let (start, end) = (u128::from(start), u128::from(start) + u128::from(region_len));
    let bytes = |count: u128| Counted(count, "byte");
    match (start.saturating_sub(first), last.saturating_sub(end)) {
        _ if last <= start => format!("ends {} before the region", bytes(start - last)),
        _ if first >= end => format!("begins {} behind the region", bytes(first - end)),
        (before, 0) => format!("begins {} too early", bytes(before)),
        (0, after) => format!("is {} too long", bytes(after)),
        (before, after) => format!("begins {} too early and ends {} too late", bytes(before), bytes(after)),
    }
}

impl AccessError {
    /// Returns the key that was used.
    pub fn key(&self) -> u32 {
        match *self {
            AccessError::UnknownKey { key }
            | AccessError::WrongPd { key, .. }
            | AccessError::WrongQp { key, .. }
            | AccessError::NotMapped { key, .. }
            | AccessError::OutOfRange { key, .. }
            | AccessError::Permission { key, .. } => key,
        }
    }
}

/// Reason why a memory management work request, or an invalidation by a peer, is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagementError {
    /// The key does not refer to a window or region of the required kind, or to one that is bound or
    /// registered.
    #[error("key {key:#x} does not refer to a suitable window or region")]
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// The window or region belongs to another protection domain.
    #[error("key {key:#x} belongs to {object}, not to {used}")]
    WrongPd {
        /// The key.
        key: u32,
        /// Protection domain of the window or region.
        object: PdId,
        /// Protection domain of the queue pair.
        used: PdId,
    },
    /// The window was bound by another queue pair.
    #[error("the window of key {key:#x} was bound by QP {bound}, not by {used}")]
    WrongQp {
        /// The key.
        key: u32,
        /// Queue pair that bound the window.
        bound: Qpn,
        /// Queue pair that made the request.
        used: Qpn,
    },
    /// The key refers to a type 2 window that is bound, or a fast-registered region whose registration is
    /// valid: it has to be invalidated first.
    #[error("the window or region of key {key:#x} is in use: invalidate it first")]
    InUse {
        /// The key.
        key: u32,
    },
    /// The range exceeds the region, or is empty.
    #[error("not a valid range for key {key:#x}: {} at {addr:#x}", Counted(*len, "byte"))]
    Range {
        /// The key.
        key: u32,
        /// First byte of the range: an address, or an offset into a fast-registered region.
        addr: u64,
        /// Length of the range in bytes.
        len: u64,
    },
    /// The requested permissions are contradictory or exceed the region's, or the region's permissions forbid
    /// the operation.
    #[error("access {access} is not permitted for key {key:#x}")]
    Access {
        /// The key.
        key: u32,
        /// The requested permissions, or the region's own permissions if those forbid the operation.
        access: Access,
    },
    /// The key refers to an ordinary or null region or a type 1 window, none of which can be invalidated.
    #[error("the window or region of key {key:#x} cannot be invalidated")]
    NotInvalidatable {
        /// The key.
        key: u32,
    },
    /// Memory windows are bound to the region.
    #[error("the region of key {key:#x} has {} bound to it", Counted(*count, "window"))]
    WindowsBound {
        /// The key.
        key: u32,
        /// Number of bound windows.
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
    fn access_flags_have_the_values_of_verbs_and_combine_as_a_set() {
        let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
        assert_eq!(((read | write).bits(), (read | read).bits()), (6, 4));
        assert_eq!(((read | write) & write, read & write), (write, Access::LOCAL_READ));
        assert_eq!((Access::ALL.bits(), Access::all().bits()), (0xf, 0x10_03ff));
        assert_eq!((read | write).to_string(), "REMOTE_WRITE | REMOTE_READ");
        assert_eq!(Access::LOCAL_READ.to_string(), "LOCAL_READ");
    }

    #[test]
    fn denied_access_is_explained_with_flags_and_excess() {
        let permission = AccessError::Permission {
            key: 0x12,
            allowed: Access::LOCAL_WRITE | Access::REMOTE_READ,
            needed: Access::REMOTE_WRITE,
        };
        assert_eq!(
            permission.to_string(),
            "the region of key 0x12 allows LOCAL_WRITE | REMOTE_READ: REMOTE_WRITE is missing"
        );
        for (addr, len, text) in [
            (0x1000, 9, "9 bytes at 0x1000: the range is 1 byte too long"),
            (0xffe, 1, "1 byte at 0xffe: the range ends 1 byte before the region"),
            (0x100a, 2, "2 bytes at 0x100a: the range begins 2 bytes behind the region"),
            (0xffe, 4, "4 bytes at 0xffe: the range begins 2 bytes too early"),
            (0xfff, 11, "11 bytes at 0xfff: the range begins 1 byte too early and ends 2 bytes too late"),
        ] {
            let error = AccessError::OutOfRange { key: 0x12, addr, len, start: 0x1000, region_len: 8 };
            let text = format!("the region of key 0x12, 8 bytes at 0x1000, does not contain {text}");
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn remote_flags_decide_what_peers_may_do() {
        for (access, writes, remote) in [
            (Access::LOCAL_WRITE | Access::MW_BIND, false, false),
            (Access::REMOTE_READ, false, true),
            (Access::REMOTE_WRITE, true, true),
            (Access::REMOTE_ATOMIC, true, true),
            (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC, true, true),
        ] {
            assert_eq!(
                (access.allows_remote_modification(), access.is_remote()),
                (writes, remote),
                "{access:?}"
            );
        }
    }

    #[test]
    fn unknown_flags_are_those_outside_the_defined_and_optional_ranges() {
        let known = (0..32).filter(|bit| Access::from_bits_retain(1 << bit).unknown().is_empty());
        assert_eq!(known.collect::<Vec<_>>(), (0..10).chain(20..30).collect::<Vec<_>>());
    }
}
