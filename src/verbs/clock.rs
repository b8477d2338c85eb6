use std::sync::OnceLock;

use crate::link::fabric::Fabric;
use crate::transport::Instant;

/// Where a NIC's time comes from.
#[derive(Clone)]
pub(super) enum Clock {
    /// The machine's monotonic clock, counted from the first use in this process.
    Real,
    /// The fabric's, real or virtual.
    Fabric(Fabric),
}

impl Clock {
    pub fn now(&self) -> Instant {
        static EPOCH: OnceLock<std::time::Instant> = OnceLock::new();
        match self {
            // Never 0, which stands for "not yet" where instants are kept in atomics.
            Clock::Real => {
                Instant(EPOCH.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64 + 1)
            }
            Clock::Fabric(fabric) => fabric.now(),
        }
    }
}
