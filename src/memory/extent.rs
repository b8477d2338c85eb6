//! The extent of host memory to which a key refers, with its range and permission checks.

use super::{Access, AccessError};

/// Extent of host memory, with the addresses under which it is accessed and the permitted access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Host address of the first byte.
    pub addr: usize,
    /// Length in bytes.
    pub len: u64,
    /// Address under which work requests and peers access the first byte.
    pub iova: u64,
    /// Permitted access.
    pub access: Access,
}

impl Extent {
    /// All memory of the process, accessed by host addresses.
    pub const WHOLE_PROCESS: Extent = Extent { addr: 0, len: u64::MAX, iova: 0, access: Access::ON_DEMAND };

    /// Reports whether this is the extent of an implicit on-demand region, which covers all memory of the
    /// process.
    pub fn is_whole_process(&self) -> bool {
        self.len == Extent::WHOLE_PROCESS.len
    }

    /// Returns the host address of the `len` bytes at `va`.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`] if the range is not entirely inside the extent.
    #[inline]
    pub fn find(&self, key: u32, va: u64, len: u64) -> Result<usize, AccessError> {
        let room = |offset| self.len.checked_sub(offset);
        match va.checked_sub(self.iova) {
            Some(offset) if room(offset).is_some_and(|room| len <= room) => Ok(self.addr + offset as usize),
            _ => {
                let (start, region_len) = (self.iova, self.len);
                Err(AccessError::OutOfRange { key, addr: va, len, start, region_len })
            }
        }
    }

    /// Checks that all of `needed` is permitted.
    ///
    /// # Errors
    /// [`AccessError::Permission`] if it is not.
    #[inline]
    pub fn permit(&self, key: u32, needed: Access) -> Result<(), AccessError> {
        if self.access.allows(needed) {
            Ok(())
        } else {
            Err(AccessError::Permission { key, allowed: self.access, needed })
        }
    }
}
