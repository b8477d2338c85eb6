//! Limits on the number of objects, and of bytes of device memory, per device.

use std::sync::atomic::{AtomicU64, Ordering};

use super::CreateError;

/// Number of existing objects or bytes of one kind, and the limit on that number.
pub(super) struct Quota {
    kind: &'static str,
    used: AtomicU64,
    max: u64,
}

impl Quota {
    pub fn new(kind: &'static str, max: u64) -> Quota {
        Quota { kind, used: AtomicU64::new(0), max }
    }

    /// Counts `n` more objects.
    pub fn acquire(&self, n: u64) -> Result<(), CreateError> {
        let increment = |used: u64| used.checked_add(n).filter(|sum| *sum <= self.max);
        let updated = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, increment);
        updated.map(drop).map_err(|_| CreateError::Exhausted { kind: self.kind, max: self.max as u32 })
    }

    /// Counts `n` objects fewer.
    pub fn release(&self, n: u64) {
        self.used.fetch_sub(n, Ordering::AcqRel);
    }
}
