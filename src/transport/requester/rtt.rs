//! Round-trip time estimator (RFC 6298). The retransmission/probe timeout (RTO/PTO) it yields detects tail
//! losses before the local ACK timeout expires.

use std::time::Duration;

use crate::transport::{Instant, Tuning};
use crate::wire::Psn;

/// Round-trip time estimator. One packet is timed at a time.
#[derive(Debug, Default)]
pub(super) struct Rtt {
    measured: Option<Measured>,
    timing: Option<(Psn, Instant)>,
}

/// Smoothed round-trip time, its deviation and its minimum, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Measured {
    /// Smoothed RTT (SRTT). `deviation` is the smoothed mean deviation from it (RTTVAR).
    mean: u64,
    deviation: u64,
    least: u64,
}

impl Rtt {
    /// Starts a measurement, unless one is running, when a packet that requests a response is sent for the
    /// first time.
    pub fn sent(&mut self, psn: Psn, now: Instant) {
        self.timing.get_or_insert((psn, now));
    }

    /// Takes an RTT sample if the timed packet is acknowledged, that is, lies before `unacked`.
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

    /// Discards the running measurement after a retransmission (Karn's algorithm): an acknowledgement no
    /// longer tells which transmission it is for.
    pub fn forget(&mut self) {
        self.timing = None;
    }

    /// Retransmission/probe timeout (RTO/PTO): SRTT + 4 * RTTVAR, at least [`Tuning::min_patience`]. `None`
    /// before the first RTT sample.
    pub fn patience(&self, tuning: &Tuning) -> Option<Duration> {
        let Measured { mean, deviation, .. } = self.measured?;
        Some(Duration::from_nanos(mean + 4 * deviation).max(tuning.min_patience))
    }

    /// Bandwidth-delay product estimate: the share of `in_flight` that is on the wire, scaled by minimum RTT
    /// over smoothed RTT; the remainder waits in queues, which lengthen the RTT. 0 before the first RTT
    /// sample.
    pub fn without_queues(&self, in_flight: u64) -> u64 {
        self.measured.map_or(0, |m| (in_flight as u128 * m.least as u128 / m.mean.max(1) as u128) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rto_follows_smoothed_rtt_and_deviation_down_to_its_minimum() {
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
        // The smoothed RTT is 150 microseconds now.
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
