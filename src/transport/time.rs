//! Monotonic time, as used by the state machines.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since an epoch chosen by the driver, such as the monotonic clock's or a simulation's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// Returns the time elapsed since `earlier`, or zero if `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Returns the earliest of the instants that are set. They are typically expiry times, nearly all of which
/// are unset.
#[inline]
pub fn earliest<const N: usize>(instants: [Option<Instant>; N]) -> Option<Instant> {
    // Unset counts as latest. Comparing numbers needs no branches, and this runs for every packet.
    let never = u64::MAX;
    let first = instants.into_iter().fold(never, |first, at| first.min(at.map_or(never, |at| at.0)));
    (first != never).then_some(Instant(first))
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, d: Duration) -> Instant {
        Instant(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}
