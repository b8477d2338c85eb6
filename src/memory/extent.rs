//! The extent of host memory that a key refers to, with range and permission checks.

use super::{Access, AccessError};

/// Extent of host memory: its location, the addresses that work requests and peers use for it, and the
/// operations permitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Host address of the first byte.
    pub addr: usize,
    /// Length in bytes.
    pub len: usize,
    /// Address that work requests and peers use for the first byte.
    pub iova: u64,
    /// Permitted operations.
    pub access: Access,
}

impl Extent {
    /// The process's entire memory, addressed by host address.
    pub(super) const WHOLE_PROCESS: Extent =
        Extent { addr: 0, len: usize::MAX, iova: 0, access: Access::ON_DEMAND };

    /// Reports whether this is the extent of an implicit on-demand region, which covers the process's entire
    /// memory.
    pub(super) fn is_whole_process(&self) -> bool {
        self.len == Extent::WHOLE_PROCESS.len
    }

    /// Returns the host address of the `len` bytes at `va`.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`] if the range is not entirely inside the extent.
    #[inline]
    pub(super) fn find(&self, key: u32, va: u64, len: u64) -> Result<usize, AccessError> {
        let room = |offset| (self.len as u64).checked_sub(offset);
        match va.checked_sub(self.iova) {
            Some(offset) if room(offset).is_some_and(|room| len <= room) => Ok(self.addr + offset as usize),
            _ => {
                let (start, region_len) = (self.iova, self.len as u64);
                Err(AccessError::OutOfRange { key, addr: va, len, start, region_len })
            }
        }
    }

    /// Checks that the extent permits all operations in `needed`.
    ///
    /// # Errors
    /// [`AccessError::Permission`] if it is not.
    #[inline]
    pub(super) fn permit(&self, key: u32, needed: Access) -> Result<(), AccessError> {
        if self.access.allows(needed) {
            Ok(())
        } else {
            Err(AccessError::Permission { key, allowed: self.access, needed })
        }
    }
}
