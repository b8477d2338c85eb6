//! Limits on the number of objects per device.

use std::sync::atomic::{AtomicU32, Ordering};

use super::CreateError;

/// Number of existing objects of one kind, and the limit on that number.
pub(super) struct Quota {
    kind: &'static str,
    used: AtomicU32,
    max: u32,
}

impl Quota {
    pub fn new(kind: &'static str, max: u32) -> Quota {
        Quota { kind, used: AtomicU32::new(0), max }
    }

    /// Counts one more object.
    pub fn acquire(&self) -> Result<(), CreateError> {
        let increment = |used| (used < self.max).then_some(used + 1);
        let updated = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, increment);
        updated.map(drop).map_err(|_| CreateError::Exhausted { kind: self.kind, max: self.max })
    }

    /// Counts one object fewer.
    pub fn release(&self) {
        self.used.fetch_sub(1, Ordering::AcqRel);
    }
}
