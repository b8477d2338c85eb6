//! Detector of another thread that competes for the core of a background thread.

use std::time::Duration;

use super::timing::{CROWDED_CORE_BACKOFF, IDLE_TIMEOUT};
use crate::transport::Instant;

/// Multiple of the latest back-off within which a long yield shows that the core is still crowded. A thread
/// that competes all the time is noticed only when packets arrive, for example every 10 ms; single long
/// yields are further apart.
const STILL_CROWDED: u32 = 8;

/// Detector of a crowded core, on which another thread runs each time that the background thread yields.
#[derive(Default)]
pub struct CrowdedCore {
    /// Time until which the core counts as crowded.
    until: Instant,
    /// Duration of the latest back-off.
    backoff: Duration,
}

impl CrowdedCore {
    /// Reports whether the core counts as crowded.
    pub fn is_crowded(&self, now: Instant) -> bool {
        now < self.until
    }

    /// Records that the background thread yielded at time `before` and ran again at `after`. Returns whether
    /// another thread has kept the core for too long.
    pub fn on_yield(&mut self, before: Instant, after: Instant) -> bool {
        if after.since(before) <= IDLE_TIMEOUT {
            return false;
        }
        let (min, max) = CROWDED_CORE_BACKOFF;
        let is_still_crowded = before.since(self.until) < self.backoff * STILL_CROWDED;
        self.backoff = if is_still_crowded { (self.backoff * 2).min(max) } else { min };
        self.until = after + self.backoff;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(3);

    #[test]
    fn core_is_crowded_for_twice_as_long_if_it_still_is_after_the_back_off() {
        let (mut core, mut now) = (CrowdedCore::default(), Instant(1_000_000_000));
        let (min, max) = CROWDED_CORE_BACKOFF;
        let mut expected = min;
        for _ in 0..12 {
            assert!(core.on_yield(now, now + LONG));
            let end = now + LONG + expected;
            assert!(core.is_crowded(end - Duration::from_nanos(1)) && !core.is_crowded(end));
            now = end + expected / 2;
            expected = (expected * 2).min(max);
        }
        assert_eq!(expected, max);
        // Nothing competes for a long time.
        now = now + max * STILL_CROWDED;
        assert!(core.on_yield(now, now + LONG));
        assert!(!core.is_crowded(now + LONG + min));
    }

    #[test]
    fn back_off_reaches_its_maximum_if_packets_arrive_every_10_ms_and_another_thread_competes() {
        let (mut core, mut now) = (CrowdedCore::default(), Instant(1_000_000_000));
        for _ in 0..100 {
            if !core.is_crowded(now) {
                core.on_yield(now, now + LONG);
            }
            now = now + Duration::from_millis(10);
        }
        assert_eq!(core.backoff, CROWDED_CORE_BACKOFF.1);
    }

    #[test]
    fn short_yields_do_not_make_a_core_crowded() {
        let (mut core, now) = (CrowdedCore::default(), Instant(1_000_000_000));
        assert!(!core.on_yield(now, now + IDLE_TIMEOUT));
        assert!(!core.is_crowded(now + IDLE_TIMEOUT));
    }
}
