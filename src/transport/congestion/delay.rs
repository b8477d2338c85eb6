//! Delay-based congestion control: a window that grows while the round-trip time is near its minimum, and
//! shrinks while packets wait in queues (Kumar et al., "Swift: Delay is Simple and Effective for Congestion
//! Control in the Datacenter", SIGCOMM 2020). It needs no ECN marks.

use std::time::Duration;

use super::PathState;
use super::cost::packet_cost;
use super::parameters::CongestionParameter::{self, *};
use super::rate::Rate;
use crate::transport::Instant;

/// Window in packets after the first acknowledgement (RFC 6928).
const INITIAL_PACKETS: f64 = 10.0;

/// Delay-based controller.
#[derive(Debug)]
pub struct Delay {
    /// Window in packets of the path MTU; below 1, single packets are paced.
    window: f64,
    /// Flight cost of a packet; 0 before the first acknowledgement.
    packet: u64,
    /// Whether the delay has never been above its target; the window then grows with all acknowledged data.
    is_slow_start: bool,
    /// Time of the last reduction.
    reduced: Option<Instant>,
    /// Pacing rate while the window is below one packet.
    pace: Option<Rate>,
}

impl Default for Delay {
    /// Returns a controller that lets a single packet be in flight, whose round-trip time contains no
    /// queueing behind others, and then [`INITIAL_PACKETS`].
    fn default() -> Delay {
        Delay { window: INITIAL_PACKETS, packet: 0, is_slow_start: true, reduced: None, pace: None }
    }
}

impl Delay {
    /// Returns the congestion window, at most `limit`.
    pub fn window(&self, limit: u64) -> u64 {
        limit.min((self.window.max(1.0) * self.packet as f64) as u64)
    }

    /// Handles the acknowledgement of packets with a total flight cost of `acked`.
    pub fn on_ack(&mut self, acked: u64, path: &PathState<'_>) {
        let Some(rtt) = path.rtt else { return };
        let target = rtt.min + 1000 * u64::from(path.config.control.get(DelayTarget));
        self.adopt_limit(path);
        if rtt.latest <= target {
            let packets = acked as f64 / self.packet as f64;
            self.window += match self.is_slow_start {
                true => packets,
                false => fraction(path, DelayAi) * packets / self.window.max(1.0),
            };
        } else if self.may_reduce(path.now, rtt.latest) {
            let excess = (rtt.latest - target) as f64 / rtt.latest as f64;
            self.reduce(fraction(path, DelayBeta) * excess, path);
        }
        self.settle(path, rtt.latest);
    }

    /// Handles the loss of a packet.
    pub fn on_loss(&mut self, path: &PathState<'_>) {
        self.adopt_limit(path);
        let rtt = path.rtt.map_or(0, |rtt| rtt.latest);
        if self.may_reduce(path.now, rtt) {
            self.reduce(1.0, path);
        }
        self.settle(path, rtt);
    }

    /// Returns the pacing rate; `None` if the window is at least one packet.
    pub fn rate(&self) -> Option<Rate> {
        self.pace
    }

    /// Limits the window to that of the link.
    fn adopt_limit(&mut self, path: &PathState<'_>) {
        self.packet = packet_cost(path.mtu.bytes() as u64);
        self.window = self.window.min(path.peer_window as f64 / self.packet as f64);
    }

    /// Reports whether a round trip has passed since the last reduction.
    fn may_reduce(&self, now: Instant, rtt: u64) -> bool {
        self.reduced.is_none_or(|at| now.since(at) >= Duration::from_nanos(rtt))
    }

    /// Reduces the window by a fraction, up to `delay_max_mdf`.
    fn reduce(&mut self, by: f64, path: &PathState<'_>) {
        self.window *= 1.0 - by.min(fraction(path, DelayMaxMdf));
        (self.reduced, self.is_slow_start) = (Some(path.now), false);
    }

    /// Applies the limits of the window, and derives the pacing rate.
    fn settle(&mut self, path: &PathState<'_>, rtt: u64) {
        self.adopt_limit(path);
        self.window = self.window.max(fraction(path, DelayMinWindow));
        let bits = self.window * path.mtu.bytes() as f64 * 8.0;
        self.pace = (self.window < 1.0 && rtt > 0)
            .then(|| Rate::from_bits_per_second(bits / Duration::from_nanos(rtt).as_secs_f64()));
    }
}

/// Returns a parameter whose unit is a thousandth.
fn fraction(path: &PathState<'_>, parameter: CongestionParameter) -> f64 {
    f64::from(path.config.control.get(parameter)) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::congestion::{CongestionConfig, QpController, RoundTrip};
    use crate::wire::Mtu;

    const PACKET: u64 = packet_cost(4096);
    const LINK: u64 = 400 * PACKET;
    /// Minimum round-trip time in nanoseconds.
    const MIN: u64 = 10_000;

    /// Returns the path state at `micros`, with a queueing delay in microseconds.
    fn path(micros: u64, queueing: u64) -> PathState<'static> {
        let rtt = RoundTrip { smoothed: MIN, deviation: 0, min: MIN, latest: MIN + 1000 * queueing };
        PathState {
            peer_window: LINK,
            mtu: Mtu::Mtu4096,
            rtt: Some(rtt),
            now: Instant(1000 * micros),
            config: &CongestionConfig::DEFAULT,
        }
    }

    #[test]
    fn window_grows_by_a_packet_in_each_round_trip_up_to_that_of_the_link() {
        let mut delay = Delay::default();
        assert_eq!(delay.window(LINK), 0, "one packet, as nothing is in flight");
        delay.on_ack(PACKET, &path(0, 0));
        assert_eq!(delay.window(LINK), 11 * PACKET);
        delay.on_ack(11 * PACKET, &path(0, 0));
        assert_eq!(delay.window(LINK), 22 * PACKET);
        delay.on_ack(LINK, &path(0, 0));
        assert_eq!(delay.window(LINK), LINK);
        for micros in [0, 500_000, 1_000_100] {
            delay.on_ack(PACKET, &path(micros, 1_000_000));
        }
        assert_eq!(delay.window(LINK) / PACKET, 100, "two cuts by half, one refused within the round trip");
        let window = delay.window(LINK);
        delay.on_ack(window, &path(3_000_000, 0));
        assert!((window + PACKET - 1..=window + PACKET + 1).contains(&delay.window(LINK)));
        (0..1000).for_each(|_| delay.on_ack(LINK, &path(3_000_000, 50)));
        assert_eq!(delay.window(LINK), LINK);
    }

    #[test]
    fn reduction_follows_the_excess_of_the_delay_once_per_round_trip() {
        let mut delay = Delay::default();
        delay.on_ack(LINK, &path(0, 0));
        // Round trip of 75 µs, target of 60 µs: 0.8 of 20 % less.
        delay.on_ack(PACKET, &path(0, 65));
        assert_eq!(delay.window(LINK), (LINK as f64 * (1.0 - 0.8 * 0.2)) as u64);
        let window = delay.window(LINK);
        delay.on_ack(PACKET, &path(74, 65));
        assert_eq!(delay.window(LINK), window);
        delay.on_ack(PACKET, &path(75, 65));
        assert!(delay.window(LINK) < window);
        delay.on_loss(&path(1000, 0));
        let halved = delay.window(LINK);
        delay.on_loss(&path(1001, 0));
        assert_eq!(delay.window(LINK), halved);
    }

    #[test]
    fn window_below_one_packet_paces_packets() {
        let mut delay = QpController::Delay(Delay::default());
        let mut micros = 0;
        let mut rate = None;
        for _ in 0..40 {
            micros += 2_000;
            delay.on_ack(PACKET, &path(micros, 990));
            rate = delay.rate(Instant(0), &CongestionConfig::DEFAULT);
        }
        assert_eq!(delay.window(LINK), PACKET);
        // A hundredth of a packet in each round trip of 1 ms.
        let expected = 0.01 * 4096.0 * 8.0 * 1e3;
        assert!((rate.unwrap().bits_per_second() / expected - 1.0).abs() < 1e-9, "{rate:?}");
        assert_eq!(delay.response_rate(Instant(0), &CongestionConfig::DEFAULT), None);
        (0..200).for_each(|_| delay.on_ack(PACKET, &path(micros, 0)));
        assert_eq!(delay.rate(Instant(0), &CongestionConfig::DEFAULT), None);
    }
}
