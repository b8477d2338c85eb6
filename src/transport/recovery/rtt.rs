//! Round-trip time estimator (RFC 6298). The resulting retransmission/probe timeout (RTO/PTO) detects tail
//! losses before the local ACK timeout expires.

use std::time::Duration;

use crate::transport::congestion::RoundTrip;
use crate::transport::{Instant, Tuning};
use crate::wire::Psn;

/// Longest RTT sample in nanoseconds, 36 years: sums of eight do not overflow. Only virtual time has longer
/// ones.
const MAX_SAMPLE: u64 = 1 << 60;

/// Round-trip time estimator, which times one packet at a time.
#[derive(Debug, Default)]
pub(super) struct RttEstimator {
    /// Statistics of the samples; `None` before the first.
    pub measured: Option<RoundTrip>,
    timing: Option<(Psn, Instant)>,
}

impl RttEstimator {
    /// Starts timing a packet that requests a response when it is first sent, unless another packet is being
    /// timed.
    pub fn on_sent(&mut self, psn: Psn, now: Instant) {
        self.timing.get_or_insert((psn, now));
    }

    /// Takes an RTT sample if the timed packet has been acknowledged, that is, precedes `snd_una`.
    pub fn on_ack(&mut self, snd_una: Psn, now: Instant) {
        let Some((_, at)) = self.timing.take_if(|(psn, _)| psn.is_before(snd_una)) else { return };
        let sample = (now.since(at).as_nanos() as u64).min(MAX_SAMPLE);
        self.measured = Some(match self.measured {
            None => RoundTrip { smoothed: sample, deviation: sample / 2, min: sample, latest: sample },
            Some(RoundTrip { smoothed, deviation, min, .. }) => RoundTrip {
                smoothed: (7 * smoothed + sample) / 8,
                deviation: (3 * deviation + smoothed.abs_diff(sample)) / 4,
                min: min.min(sample),
                latest: sample,
            },
        });
    }

    /// Discards the running measurement after a retransmission, because an acknowledgement would not reveal
    /// which transmission it is for (Karn's algorithm).
    pub fn discard_sample(&mut self) {
        self.timing = None;
    }

    /// Discards the running measurement like [`discard_sample`](Self::discard_sample), unless it is the
    /// first. A sample that is too long is better than none: without one, only the local ACK timeout
    /// detects that a retransmission was lost.
    pub fn discard_later_sample(&mut self) {
        if self.measured.is_some() {
            self.discard_sample();
        }
    }

    /// Returns the retransmission/probe timeout (RTO/PTO): SRTT + 4 * RTTVAR, at least
    /// [`Tuning::min_probe_timeout`]. `None` before the first RTT sample.
    pub fn probe_timeout(&self, tuning: &Tuning) -> Option<Duration> {
        let RoundTrip { smoothed, deviation, .. } = self.measured?;
        Some(Duration::from_nanos(smoothed + 4 * deviation).max(tuning.min_probe_timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rto_follows_smoothed_rtt_and_deviation_down_to_its_minimum() {
        let tuning = Tuning { min_probe_timeout: Duration::from_micros(50), ..Tuning::default() };
        let (mut rtt, mut now) = (RttEstimator::default(), Instant(1000));
        let mut sample = |rtt: &mut RttEstimator, micros| {
            rtt.on_sent(Psn::new(5), now);
            rtt.on_sent(Psn::new(6), now + Duration::from_secs(9));
            rtt.on_ack(Psn::new(5), now + Duration::from_secs(9));
            now = now + Duration::from_micros(micros);
            rtt.on_ack(Psn::new(6), now);
        };
        let round_trip = |rtt: &RttEstimator| rtt.measured.map(|r| (r.smoothed / 1000, r.min / 1000));
        assert_eq!((rtt.probe_timeout(&tuning), round_trip(&rtt)), (None, None));
        sample(&mut rtt, 100);
        assert_eq!(rtt.probe_timeout(&tuning), Some(Duration::from_micros(300)));
        assert_eq!(round_trip(&rtt), Some((100, 100)));
        (0..100).for_each(|_| sample(&mut rtt, 100));
        assert!(rtt.probe_timeout(&tuning).unwrap() < Duration::from_micros(101));
        sample(&mut rtt, 500);
        assert_eq!(rtt.probe_timeout(&tuning), Some(Duration::from_micros(550)));
        assert_eq!(round_trip(&rtt), Some((150, 100)));
        (0..100).for_each(|_| sample(&mut rtt, 1));
        assert_eq!(rtt.probe_timeout(&tuning), Some(tuning.min_probe_timeout));
        rtt.on_sent(Psn::new(7), now);
        rtt.discard_sample();
        rtt.on_ack(Psn::new(9), now + Duration::from_secs(9));
        assert_eq!(rtt.probe_timeout(&tuning), Some(tuning.min_probe_timeout));
    }

    #[test]
    fn samples_of_centuries_do_not_overflow() {
        let (mut rtt, mut longest) = (RttEstimator::default(), Duration::ZERO);
        for sample in [u64::MAX, 1, u64::MAX, u64::MAX, 1] {
            rtt.on_sent(Psn::new(5), Instant(0));
            rtt.on_ack(Psn::new(6), Instant(sample));
            longest = longest.max(rtt.probe_timeout(&Tuning::default()).unwrap());
        }
        assert!(
            longest > Duration::from_nanos(MAX_SAMPLE) && longest <= Duration::from_nanos(5 * MAX_SAMPLE)
        );
    }
}
