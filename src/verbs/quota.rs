//! Limits on the number of objects of a device.

use std::sync::atomic::{AtomicU32, Ordering};

use super::CreateError;

/// Counter of the objects of one kind, with a limit.
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

    /// Counts one object less.
    pub fn release(&self) {
        self.used.fetch_sub(1, Ordering::AcqRel);
    }
}
