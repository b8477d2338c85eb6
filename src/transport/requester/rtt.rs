//! How long answers take, as measured (RFC 6298): a loss that no later packet shows is noticed after that, not only
//! after the local ACK timeout.

use std::time::Duration;

use crate::transport::{Instant, Tuning};
use crate::wire::Psn;

/// One packet is timed at a time.
#[derive(Debug, Default)]
pub(super) struct Rtt {
    measured: Option<Measured>,
    timing: Option<(Psn, Instant)>,
}

/// Nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Measured {
    /// Smoothed, as is the mean deviation from it.
    mean: u64,
    deviation: u64,
    least: u64,
}

impl Rtt {
    /// A packet that is to be answered was sent for the first time.
    pub fn sent(&mut self, psn: Psn, now: Instant) {
        self.timing.get_or_insert((psn, now));
    }

    /// All before `unacked` was answered.
    pub fn answered(&mut self, unacked: Psn, now: Instant) {
        let Some((_, at)) = self.timing.take_if(|(psn, _)| psn.is_before(unacked)) else { return };
        let sample = now.since(at).as_nanos() as u64;
        self.measured = Some(match self.measured {
            None => Measured { mean: sample, deviation: sample / 2, least: sample },
            Some(Measured { mean, deviation, least }) => Measured {
                mean: (7 * mean + sample) / 8,
                deviation: (3 * deviation + mean.abs_diff(sample)) / 4,
                least: least.min(sample),
            },
        });
    }

    /// Packets are sent again: whose answer comes, nobody knows.
    pub fn forget(&mut self) {
        self.timing = None;
    }

    /// How long to wait for an answer before asking again. `None` before one was timed.
    pub fn patience(&self, tuning: &Tuning) -> Option<Duration> {
        let Measured { mean, deviation, .. } = self.measured?;
        Some(Duration::from_nanos(mean + 4 * deviation).max(tuning.min_patience))
    }

    /// How much of what is in flight is on its way; the rest waits in queues, for which answers take longer than the
    /// quickest did. Nothing before one was timed.
    pub fn without_queues(&self, in_flight: u64) -> u64 {
        self.measured.map_or(0, |m| (in_flight as u128 * m.least as u128 / m.mean.max(1) as u128) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_what_was_measured() {
        let tuning = Tuning { min_patience: Duration::from_micros(50), ..Tuning::default() };
        let (mut rtt, mut now) = (Rtt::default(), Instant(1000));
        let mut sample = |rtt: &mut Rtt, micros| {
            rtt.sent(Psn::new(5), now);
            rtt.sent(Psn::new(6), now + Duration::from_secs(9));
            rtt.answered(Psn::new(5), now + Duration::from_secs(9));
            now = now + Duration::from_micros(micros);
            rtt.answered(Psn::new(6), now);
        };
        assert_eq!((rtt.patience(&tuning), rtt.without_queues(1000)), (None, 0));
        sample(&mut rtt, 100);
        assert_eq!(
            (rtt.patience(&tuning), rtt.without_queues(1000)),
            (Some(Duration::from_micros(300)), 1000)
        );
        (0..100).for_each(|_| sample(&mut rtt, 100));
        assert!(rtt.patience(&tuning).unwrap() < Duration::from_micros(101));
        sample(&mut rtt, 500);
        // The mean is 150 now.
        assert_eq!(
            (rtt.patience(&tuning), rtt.without_queues(1500)),
            (Some(Duration::from_micros(550)), 1000)
        );
        (0..100).for_each(|_| sample(&mut rtt, 1));
        assert_eq!(rtt.patience(&tuning), Some(tuning.min_patience));
        rtt.sent(Psn::new(7), now);
        rtt.forget();
        rtt.answered(Psn::new(9), now + Duration::from_secs(9));
        assert_eq!(rtt.patience(&tuning), Some(tuning.min_patience));
    }
}
