//! Congestion window: the per-peer window of the link, reduced where packets are lost.

use super::rtt::RttEstimator;
use crate::transport::Tuning;
use crate::transport::send_queue::packet_cost;
use crate::wire::Mtu;

/// Upper bound of the window as a fraction (1/`LOSS_INTERVAL_PARTS`) of the data delivered between two
/// losses, because go-back-N retransmits a whole window per loss.
const LOSS_INTERVAL_PARTS: u64 = 10;

/// Packets that keep both ends busy. The bound by [`LOSS_INTERVAL_PARTS`] does not go below them, unless
/// losses are less than two such windows apart.
const BUSY_PACKETS: u64 = 48;

/// Smallest congestion window, in packets, however many were lost.
const MIN_PACKETS: u64 = 2;

/// Congestion window, in flight cost. A loss reduces it by a quarter, or by half if nothing has been
/// acknowledged since the previous loss: a queue on the path was full, and going back to the lost packet with
/// the whole previous window would overflow it again. The window grows by half of the acknowledged data, up
/// to the size that pays off at the measured rate of random losses.
#[derive(Debug)]
pub(super) struct CongestionWindow {
    size: u64,
    /// Data delivered between two losses, smoothed; `None` before the first loss.
    interval: Option<u64>,
    /// Data acknowledged since the last loss.
    arrived: u64,
    /// Bandwidth-delay product estimate at the last loss; a smaller window would leave the path idle.
    pipe: u64,
}

impl CongestionWindow {
    /// Creates a congestion window that only the link's window limits.
    pub fn new() -> CongestionWindow {
        CongestionWindow { size: u64::MAX, interval: None, arrived: 0, pipe: 0 }
    }

    /// Current size in flight cost, at most [`Tuning::window`].
    pub fn size(&self, tuning: &Tuning) -> u64 {
        self.size.min(tuning.window as u64)
    }

    /// Reduces the window after a packet loss.
    pub fn on_loss(&mut self, rtt: &RttEstimator, mtu: Mtu, tuning: &Tuning) {
        let stuck = self.interval.is_some() && self.arrived == 0;
        let (size, whole) = (self.size(tuning), tuning.window as u64);
        self.pipe = rtt.bandwidth_delay_product(size);
        let arrived = self.arrived.min(LOSS_INTERVAL_PARTS * whole);
        self.interval = Some(match self.interval {
            None => arrived.max(whole),
            Some(interval) if stuck => interval / 2,
            Some(interval) => (7 * interval + arrived) / 8,
        });
        self.arrived = 0;
        self.resize(if stuck { size / 2 } else { size / 4 * 3 }, mtu);
    }

    /// Grows the window by half of the flight cost that was acknowledged.
    pub fn on_ack(&mut self, acked: u64, mtu: Mtu) {
        self.arrived += acked;
        self.resize(self.size.saturating_add(acked / 2), mtu);
    }

    fn resize(&mut self, size: u64, mtu: Mtu) {
        let Some(interval) = self.interval else { return };
        // The current, unfinished interval counts if it raises the average.
        let interval = interval.max((7 * interval + self.arrived) / 8);
        let packet = packet_cost(mtu.bytes() as u64);
        let enough = (BUSY_PACKETS * packet).min(interval / 2);
        let pays = (interval / LOSS_INTERVAL_PARTS).max(enough).max(self.pipe);
        self.size = size.min(pays).max(MIN_PACKETS * packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Instant;
    use crate::wire::Psn;

    const MTU: Mtu = Mtu::Mtu4096;
    const PACKET: u64 = packet_cost(4096);

    fn tuning() -> Tuning {
        Tuning { window: 400 * PACKET as usize, ..Tuning::default() }
    }

    /// Returns the window, in packets, that results from one loss after each `packets` delivered packets.
    fn reset(packets: u64) -> u64 {
        let (mut w, tuning) = (CongestionWindow::new(), tuning());
        for _ in 0..200 {
            w.on_ack(packets * PACKET, MTU);
            w.on_loss(&RttEstimator::default(), MTU, &tuning);
        }
        w.on_ack(packets * PACKET, MTU);
        w.size(&tuning) / PACKET
    }

    #[test]
    fn congestion_window_is_at_most_a_tenth_of_the_data_between_losses() {
        assert_eq!(CongestionWindow::new().size(&tuning()), tuning().window as u64);
        let windows = [1 << 30, 4100, 1000, 500, 100, 40, 10, 1].map(reset);
        assert_eq!(windows, [400, 400, 100, 50, 48, 20, 5, 2]);
    }

    #[test]
    fn losses_without_progress_shrink_congestion_window_to_two_packets() {
        let (mut w, tuning, mut rtt) = (CongestionWindow::new(), tuning(), RttEstimator::default());
        // A long path without a queue: the path alone does not require a small window.
        rtt.on_sent(Psn::new(1), Instant(0));
        rtt.on_ack(Psn::new(2), Instant(1_000_000));
        let mut size = || {
            w.on_loss(&rtt, MTU, &tuning);
            w.size(&tuning) / PACKET
        };
        assert_eq!([(); 4].map(|()| size()), [300, 150, 75, 37]);
        assert_eq!([(); 20].map(|()| size())[19], MIN_PACKETS);
        let mut turns = 0;
        while w.size(&tuning) < tuning.window as u64 {
            w.on_ack(w.size(&tuning), MTU);
            turns += 1;
        }
        assert!((10..400).contains(&turns), "{turns} turns");
    }

    #[test]
    fn congestion_window_stays_above_bandwidth_delay_product() {
        let (mut w, tuning, mut rtt) = (CongestionWindow::new(), tuning(), RttEstimator::default());
        rtt.on_sent(Psn::new(1), Instant(0));
        rtt.on_ack(Psn::new(2), Instant(1_000_000));
        for _ in 0..50 {
            w.on_ack(200 * PACKET, MTU);
            w.on_loss(&rtt, MTU, &tuning);
        }
        assert_eq!(w.size(&tuning), tuning.window as u64 / 4 * 3);
        w.on_ack(200 * PACKET, MTU);
        assert_eq!(w.size(&tuning), tuning.window as u64);
    }
}
