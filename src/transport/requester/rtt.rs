//! How long answers take, as measured (RFC 6298): a loss that no later packet shows is noticed after that, not only
//! after the local ACK timeout.

use std::time::Duration;

use crate::transport::{Instant, Tuning};
use crate::wire::Psn;

/// Nanoseconds; one packet is timed at a time.
#[derive(Debug, Default)]
pub(super) struct Rtt {
    /// Mean and mean deviation, both smoothed.
    measured: Option<(u64, u64)>,
    timing: Option<(Psn, Instant)>,
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
            None => (sample, sample / 2),
            Some((mean, deviation)) => ((7 * mean + sample) / 8, (3 * deviation + mean.abs_diff(sample)) / 4),
        });
    }

    /// Packets are sent again: whose answer comes, nobody knows.
    pub fn forget(&mut self) {
        self.timing = None;
    }

    /// How long to wait for an answer before asking again. `None` before one was timed.
    pub fn patience(&self, tuning: &Tuning) -> Option<Duration> {
        let (mean, deviation) = self.measured.filter(|_| tuning.adaptive)?;
        Some(Duration::from_nanos(mean + 4 * deviation).max(tuning.max_ack_silence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_what_was_measured() {
        let tuning =
            Tuning { max_ack_silence: Duration::from_micros(50), adaptive: true, ..Tuning::default() };
        let (mut rtt, mut now) = (Rtt::default(), Instant(1000));
        let mut sample = |rtt: &mut Rtt, micros| {
            rtt.sent(Psn::new(5), now);
            rtt.sent(Psn::new(6), now + Duration::from_secs(9));
            rtt.answered(Psn::new(5), now + Duration::from_secs(9));
            now = now + Duration::from_micros(micros);
            rtt.answered(Psn::new(6), now);
        };
        assert_eq!(rtt.patience(&tuning), None);
        sample(&mut rtt, 100);
        assert_eq!(rtt.patience(&tuning), Some(Duration::from_micros(300)));
        (0..100).for_each(|_| sample(&mut rtt, 100));
        assert!(rtt.patience(&tuning).unwrap() < Duration::from_micros(101));
        sample(&mut rtt, 500);
        assert_eq!(rtt.patience(&tuning), Some(Duration::from_micros(550)));
        (0..100).for_each(|_| sample(&mut rtt, 1));
        assert_eq!(rtt.patience(&tuning), Some(tuning.max_ack_silence));
        rtt.sent(Psn::new(7), now);
        rtt.forget();
        rtt.answered(Psn::new(9), now + Duration::from_secs(9));
        assert_eq!(rtt.patience(&tuning), Some(tuning.max_ack_silence));
    }
}
