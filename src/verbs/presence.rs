//! Polling detector: what the background thread knows about an application that polls, and the adaptive
//! back-off that follows from it.

use std::time::Duration;

use crate::transport::Instant;

/// Bounds of the back-off, the time for which the background thread leaves the NIC to a polling application
/// before it checks again: an eighth of the time for which the application has polled, within these bounds.
/// An application that stops polling without an announcement may delay its peers by this much, once. Each
/// check takes 20 µs from a thread that polls on the same core, and twice 250 checks a second would show in
/// the 99th percentile of a ping-pong.
const STAND_BACK: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(16));

/// Bounds of the back-off for a distrusted application.
const WARY: (Duration, Duration) = (Duration::from_micros(10), Duration::from_millis(1));

/// Time since the last poll within which the application is expected to poll again. Meanwhile the background
/// thread keeps away from the socket, or both threads would wake for every packet.
const POLLING: Duration = Duration::from_micros(200);

/// Time since the last poll within which a distrusted application is expected to poll again.
const AT_IT: Duration = Duration::from_micros(10);

/// Bounds of the time for which an application is distrusted, twice as long each time. Packets that
/// accumulated during a back-off show that the application polls for something other than them, for example
/// one that waits for a byte of its memory to change and polls for its own sends in between; the background
/// thread then checks more often.
const DISTRUST: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// Tracks whether an application polls, for how long it has, and whether it polls for what the NIC receives.
#[derive(Default)]
pub(super) struct Presence {
    /// Time since which every check found the application polling.
    since: Option<Instant>,
    /// Whether the last decision was to back off for a trusted application.
    stood_back: bool,
    distrust: Duration,
    distrusted_until: Instant,
}

impl Presence {
    /// Reports whether the application polls for something other than received packets.
    pub fn is_distrusted(&self, now: Instant) -> bool {
        now < self.distrusted_until
    }

    /// Returns how long to back off for an application that last polled at `polled`, or `None` if it is not
    /// expected to poll again soon.
    pub fn rest(&mut self, now: Instant, polled: Instant) -> Option<Duration> {
        let distrusted = self.is_distrusted(now);
        let (soon, bounds) = if distrusted { (AT_IT, WARY) } else { (POLLING, STAND_BACK) };
        if now.since(polled) >= soon {
            return None;
        }
        let polls_for = now.since(*self.since.get_or_insert(now));
        if !distrusted && polls_for > self.distrust {
            self.distrust = Duration::ZERO;
        }
        self.stood_back = !distrusted;
        Some((polls_for / 8).clamp(bounds.0, bounds.1))
    }

    /// Records a check that found the application not polling; `received` tells whether packets had
    /// accumulated.
    pub fn missed(&mut self, now: Instant, received: bool) {
        self.since = None;
        if std::mem::take(&mut self.stood_back) && received {
            self.distrust = (self.distrust * 2).clamp(DISTRUST.0, DISTRUST.1);
            self.distrusted_until = now + self.distrust;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn back_off_grows_with_the_polling_time() {
        let (mut presence, start) = (Presence::default(), Instant(1_000_000_000));
        let rest_after = |p: &mut Presence, polled: Duration| p.rest(start + polled, start + polled).unwrap();
        assert_eq!(rest_after(&mut presence, Duration::ZERO), STAND_BACK.0);
        assert_eq!(rest_after(&mut presence, 80 * MS), 10 * MS);
        assert_eq!(rest_after(&mut presence, Duration::from_secs(9)), STAND_BACK.1);
        // The application stopped polling, so the count starts anew.
        presence.missed(start + 100 * MS, false);
        let now = start + 200 * MS;
        assert_eq!(presence.rest(now, start), None);
        assert_eq!(presence.rest(now, now), Some(STAND_BACK.0));
    }

    #[test]
    fn distrust_doubles_with_each_missed_packet_and_resets_after_good_behaviour() {
        let (mut presence, mut now) = (Presence::default(), Instant(1_000_000_000));
        let mut last = Duration::ZERO;
        for _ in 0..12 {
            assert_eq!(presence.rest(now, now), Some(STAND_BACK.0));
            presence.missed(now, true);
            let distrust = (last * 2).clamp(DISTRUST.0, DISTRUST.1);
            assert!(presence.is_distrusted(now + distrust - Duration::from_nanos(1)));
            // The background thread still backs off while the application polls, but not for long.
            let half = now + distrust / 2;
            assert_eq!(presence.rest(half, now), None);
            assert_eq!(presence.rest(half, half), Some(WARY.0));
            // Packets that arrive during distrust are no further evidence.
            presence.missed(half, true);
            now = now + distrust;
            assert!(!presence.is_distrusted(now));
            last = distrust;
        }
        assert_eq!(last, DISTRUST.1);
        let later = now + 2 * DISTRUST.1;
        assert!(presence.rest(now, now).is_some() && presence.rest(later, later).is_some());
        presence.missed(later, true);
        assert!(!presence.is_distrusted(later + DISTRUST.0));
    }
}
