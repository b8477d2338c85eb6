use std::time::{SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

use crate::link::fabric::Fabric;
use crate::transport::Instant;

/// Where a NIC's time comes from.
#[derive(Clone)]
pub(super) enum Clock {
    /// The machine's monotonic clock.
    Real,
    /// The fabric's, real or virtual.
    Fabric(Fabric),
}

impl Clock {
    /// An instant as nanoseconds since 1970. Virtual time has but its own beginning.
    pub fn wallclock_ns(&self, at: Instant) -> u64 {
        match self {
            Clock::Fabric(fabric) if fabric.is_virtual() => at.0,
            _ => {
                let (now, wall) = (self.now(), SystemTime::now());
                let wall = wall.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
                wall.saturating_sub(now.0.saturating_sub(at.0))
            }
        }
    }

    pub fn now(&self) -> Instant {
        match self {
            Clock::Real => {
                let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has this clock");
                // Never 0, which stands for "not yet" where instants are kept in atomics.
                Instant(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64 + 1)
            }
            Clock::Fabric(fabric) => fabric.now(),
        }
    }
}
