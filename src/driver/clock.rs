//! A NIC's clock: the machine's monotonic clock or a fabric's clock, which may be virtual.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

use crate::fabric::Fabric;
use crate::transport::Instant;

/// A NIC's clock.
#[derive(Clone)]
pub(crate) enum Clock {
    /// The machine's monotonic clock.
    Real,
    /// A fabric's clock, real or virtual.
    Fabric(Fabric),
}

impl Clock {
    /// Returns the time from the Unix epoch to this clock's origin, in nanoseconds; 0 in virtual time, which
    /// is taken to begin at the epoch. `last` holds the previous result, initially 0, and is updated.
    ///
    /// The wall clock and the monotonic clock run at the same rate, so the offset changes only when the wall
    /// clock is set. A measurement yields bounds between which the offset lies. The lower bound is kept and
    /// only ever raised, unless the wall clock was set back, so that times computed with it do not go
    /// backwards.
    pub fn wallclock_offset(&self, last: &AtomicU64) -> u64 {
        if matches!(self, Clock::Fabric(fabric) if fabric.is_virtual()) {
            return 0;
        }
        let (before, wall, after) = (self.now(), SystemTime::now(), self.now());
        let wall = wall.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let (min, max) = (wall.saturating_sub(after.0), wall.saturating_sub(before.0));
        let next = |last| if last > max { min } else { min.max(last) };
        let last = last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        last.map_or(min, next)
    }

    pub fn now(&self) -> Instant {
        match self {
            // Not rustix's, which calls the vDSO itself: its search for the vDSO crashes under valgrind.
            Clock::Real => {
                let time =
                    clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC is available on Linux");
                // Never 0, which means "not set" where instants are stored in atomics.
                Instant(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64 + 1)
            }
            Clock::Fabric(fabric) => fabric.now(),
        }
    }
}
