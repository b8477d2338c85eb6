use super::{Access, AccessError};

/// A run of host memory, the addresses that name it, and what may be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    /// Host address of the first byte.
    pub addr: usize,
    /// Bytes.
    pub len: u64,
    /// The address by which work requests and peers name the first byte.
    pub iova: u64,
    /// What is allowed.
    pub access: Access,
}

impl Grant {
    /// All that there is, by its own addresses.
    pub const WHOLE_PROCESS: Grant = Grant { addr: 0, len: u64::MAX, iova: 0, access: Access::ON_DEMAND };

    /// Whether it is of no memory in particular.
    pub fn is_whole_process(&self) -> bool {
        self.len == Grant::WHOLE_PROCESS.len
    }

    /// Host address of the `len` bytes named `va`, if all are inside.
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

    /// Whether all of `needed` is allowed.
    #[inline]
    pub fn permit(&self, key: u32, needed: Access) -> Result<(), AccessError> {
        if self.access.allows(needed) {
            Ok(())
        } else {
            Err(AccessError::Permission { key, allowed: self.access, needed })
        }
    }
}
