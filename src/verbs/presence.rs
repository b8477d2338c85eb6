//! What the background thread knows of an application that polls.

use std::time::Duration;

use crate::transport::Instant;

/// How long the background thread leaves an application that polls alone before it looks again: an eighth of the time that
/// the application has polled for, within these bounds. That is what one that stops polling without a word may delay its
/// peers by, once. Each look takes 20 µs from who polls on its core, and twice 250 a second would show in the 99th
/// percentile of a ping-pong.
const STAND_BACK: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(16));

/// Those times for an application that is distrusted.
const WARY: (Duration, Duration) = (Duration::from_micros(10), Duration::from_millis(1));

/// An application that polled less than this ago will poll again: the background thread keeps away from the
/// socket, or both would wake for every packet.
const POLLING: Duration = Duration::from_micros(200);

/// That time for an application that is distrusted.
const AT_IT: Duration = Duration::from_micros(10);

/// Where packets lay about meanwhile, the application polls for something else than them, as one that waits for a byte of
/// its memory to change and polls for its own sends in between: the thread keeps an eye on it for so long, twice as
/// long each time.
const DISTRUST: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// Whether an application polls, for how long it has, and whether it polls for what the NIC receives.
#[derive(Default)]
pub(super) struct Presence {
    /// Since when it was found polling, each time.
    since: Option<Instant>,
    /// The last thing was to stand back for it.
    stood_back: bool,
    distrust: Duration,
    distrusted_until: Instant,
}

impl Presence {
    /// It polls for something else than what comes.
    pub fn is_distrusted(&self, now: Instant) -> bool {
        now < self.distrusted_until
    }

    /// It polled last at `polled`: how long to stand back. `None` if it will not poll again soon.
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

    /// It does not poll; whether there were packets.
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
    fn the_longer_it_polls_the_longer_it_is_left_alone() {
        let (mut presence, start) = (Presence::default(), Instant(1_000_000_000));
        let rest_after = |p: &mut Presence, polled: Duration| p.rest(start + polled, start + polled).unwrap();
        assert_eq!(rest_after(&mut presence, Duration::ZERO), STAND_BACK.0);
        assert_eq!(rest_after(&mut presence, 80 * MS), 10 * MS);
        assert_eq!(rest_after(&mut presence, Duration::from_secs(9)), STAND_BACK.1);
        // It stopped: the count starts anew.
        presence.missed(start + 100 * MS, false);
        let now = start + 200 * MS;
        assert_eq!(presence.rest(now, start), None);
        assert_eq!(presence.rest(now, now), Some(STAND_BACK.0));
    }

    #[test]
    fn who_leaves_packets_about_is_distrusted_twice_as_long_each_time_until_it_behaves() {
        let (mut presence, mut now) = (Presence::default(), Instant(1_000_000_000));
        let mut last = Duration::ZERO;
        for _ in 0..12 {
            assert_eq!(presence.rest(now, now), Some(STAND_BACK.0));
            presence.missed(now, true);
            let distrust = (last * 2).clamp(DISTRUST.0, DISTRUST.1);
            assert!(presence.is_distrusted(now + distrust - Duration::from_nanos(1)));
            // It is left alone where it is at it, and not for long.
            let half = now + distrust / 2;
            assert_eq!(presence.rest(half, now), None);
            assert_eq!(presence.rest(half, half), Some(WARY.0));
            // Packets that came meanwhile say nothing new about it.
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
