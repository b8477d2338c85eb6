//! Polling detector, from which the background thread learns how an application polls, and how long to back
//! off for it.

use std::time::Duration;

use super::timing::{DISTRUST_TIME, DISTRUSTED_POLL_GAP, IDLE_TIMEOUT, MAX_BACKOFF, TIMER_GRANULARITY};
use crate::transport::Instant;

/// Bounds of the back-off time. While backing off, the background thread leaves the NIC to a polling
/// application. Within these bounds, the back-off time is one eighth of the time for which the application
/// has been polling.
const BACKOFF: (Duration, Duration) = (IDLE_TIMEOUT, MAX_BACKOFF);

/// Bounds of the back-off time for a distrusted application.
const DISTRUSTED_BACKOFF: (Duration, Duration) = (DISTRUSTED_POLL_GAP, TIMER_GRANULARITY);

/// Detector of an application's polling: whether and for how long it has been polling, and whether it polls
/// for received packets.
#[derive(Default)]
pub struct PollDetector {
    /// Time of the first check in the current series that has found the application polling.
    since: Option<Instant>,
    /// Whether the background thread last backed off for a trusted application.
    backed_off: bool,
    distrust: Duration,
    distrusted_until: Instant,
}

impl PollDetector {
    /// Reports whether the application is distrusted, because it polls for something other than received
    /// packets.
    pub fn is_distrusted(&self, now: Instant) -> bool {
        now < self.distrusted_until
    }

    /// Returns how long to back off for an application that last polled at `last_poll`, or `None` if the
    /// application is not expected to poll again soon.
    pub fn backoff(&mut self, now: Instant, last_poll: Instant) -> Option<Duration> {
        let distrusted = self.is_distrusted(now);
        let (max_gap, bounds) =
            if distrusted { (DISTRUSTED_POLL_GAP, DISTRUSTED_BACKOFF) } else { (IDLE_TIMEOUT, BACKOFF) };
        if now.since(last_poll) >= max_gap {
            return None;
        }
        let polls_for = now.since(*self.since.get_or_insert(now));
        if !distrusted && polls_for > self.distrust {
            self.distrust = Duration::ZERO;
        }
        self.backed_off = !distrusted;
        Some((polls_for / 8).clamp(bounds.0, bounds.1))
    }

    /// Records a check that found the application not polling. If packets had accumulated during the back-off
    /// (`received`), distrusts the application for some time.
    pub fn on_not_polling(&mut self, now: Instant, received: bool) {
        self.since = None;
        if std::mem::take(&mut self.backed_off) && received {
            self.distrust = (self.distrust * 2).clamp(DISTRUST_TIME.0, DISTRUST_TIME.1);
            self.distrusted_until = now + self.distrust;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn back_off_of_the_background_thread_grows_with_the_polling_time() {
        let (mut poll_detector, start) = (PollDetector::default(), Instant(1_000_000_000));
        let backoff_after = |p: &mut PollDetector, last_poll: Duration| {
            p.backoff(start + last_poll, start + last_poll).unwrap()
        };
        assert_eq!(backoff_after(&mut poll_detector, Duration::ZERO), BACKOFF.0);
        assert_eq!(backoff_after(&mut poll_detector, 80 * MS), 10 * MS);
        assert_eq!(backoff_after(&mut poll_detector, Duration::from_secs(9)), BACKOFF.1);
        // The application stopped polling, so the count starts anew.
        poll_detector.on_not_polling(start + 100 * MS, false);
        let now = start + 200 * MS;
        assert_eq!(poll_detector.backoff(now, start), None);
        assert_eq!(poll_detector.backoff(now, now), Some(BACKOFF.0));
    }

    #[test]
    fn distrust_of_a_polling_application_doubles_with_each_missed_packet() {
        let (mut poll_detector, mut now) = (PollDetector::default(), Instant(1_000_000_000));
        let mut last = Duration::ZERO;
        for _ in 0..12 {
            assert_eq!(poll_detector.backoff(now, now), Some(BACKOFF.0));
            poll_detector.on_not_polling(now, true);
            let distrust = (last * 2).clamp(DISTRUST_TIME.0, DISTRUST_TIME.1);
            assert!(poll_detector.is_distrusted(now + distrust - Duration::from_nanos(1)));
            // The background thread still backs off while the application polls, but not for long.
            let half = now + distrust / 2;
            assert_eq!(poll_detector.backoff(half, now), None);
            assert_eq!(poll_detector.backoff(half, half), Some(DISTRUSTED_BACKOFF.0));
            // Packets that arrive during distrust are no further evidence.
            poll_detector.on_not_polling(half, true);
            now = now + distrust;
            assert!(!poll_detector.is_distrusted(now));
            last = distrust;
        }
        assert_eq!(last, DISTRUST_TIME.1);
        let later = now + 2 * DISTRUST_TIME.1;
        assert!(poll_detector.backoff(now, now).is_some() && poll_detector.backoff(later, later).is_some());
        poll_detector.on_not_polling(later, true);
        assert!(!poll_detector.is_distrusted(later + DISTRUST_TIME.0));
    }
}
