//! How much may be in flight: what the link says that the peer takes, less where packets get lost.

use super::rtt::Rtt;
use crate::transport::Tuning;
use crate::transport::send_queue::packet_cost;
use crate::wire::Mtu;

/// A window goes again for each loss: it is at most such a part of what arrives between two.
const PART: u64 = 10;

/// So many packets keep both ends busy: fewer are less than that part only where losses are nearer than two windows.
const ENOUGH: u64 = 48;

/// Packets that may be in flight however many got lost.
const LEAST: u64 = 2;

/// A window in flight cost. A loss takes a quarter of it, and half if nothing has arrived since the last one: a
/// queue on the way was full, and going back to the lost packet with all that fitted before would fill it again,
/// with what the peer has to drop. It grows by half of what arrives, as far as it pays where losses are by chance.
#[derive(Debug)]
pub(super) struct Window {
    size: u64,
    /// What arrives between two losses, smoothed; `None` before the first.
    interval: Option<u64>,
    /// What has arrived since the last.
    arrived: u64,
    /// What was on the way when the last was noticed, but for what waited in queues: less would leave the way empty.
    pipe: u64,
}

impl Window {
    /// As wide as the link lets it be.
    pub fn new() -> Window {
        Window { size: u64::MAX, interval: None, arrived: 0, pipe: 0 }
    }

    /// Its size now.
    pub fn size(&self, tuning: &Tuning) -> u64 {
        self.size.min(tuning.window as u64)
    }

    /// A packet was lost.
    pub fn shrink(&mut self, rtt: &Rtt, mtu: Mtu, tuning: &Tuning) {
        let stuck = self.interval.is_some() && self.arrived == 0;
        let (size, whole) = (self.size(tuning), tuning.window as u64);
        self.pipe = rtt.without_queues(size);
        let arrived = self.arrived.min(PART * whole);
        self.interval = Some(match self.interval {
            None => arrived.max(whole),
            Some(interval) if stuck => interval / 2,
            Some(interval) => (7 * interval + arrived) / 8,
        });
        self.arrived = 0;
        self.resize(if stuck { size / 2 } else { size / 4 * 3 }, mtu);
    }

    /// So much has arrived.
    pub fn grow(&mut self, acked: u64, mtu: Mtu) {
        self.arrived += acked;
        self.resize(self.size.saturating_add(acked / 2), mtu);
    }

    fn resize(&mut self, size: u64, mtu: Mtu) {
        let Some(interval) = self.interval else { return };
        // The one that has not ended counts where it is longer.
        let interval = interval.max((7 * interval + self.arrived) / 8);
        let packet = packet_cost(mtu.bytes() as u64);
        let enough = (ENOUGH * packet).min(interval / 2);
        let pays = (interval / PART).max(enough).max(self.pipe);
        self.size = size.min(pays).max(LEAST * packet);
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

    /// One loss behind each so many packets, until the window is settled; how many packets it holds before the next.
    fn settled(packets: u64) -> u64 {
        let (mut w, tuning) = (Window::new(), tuning());
        for _ in 0..200 {
            w.grow(packets * PACKET, MTU);
            w.shrink(&Rtt::default(), MTU, &tuning);
        }
        w.grow(packets * PACKET, MTU);
        w.size(&tuning) / PACKET
    }

    #[test]
    fn it_is_at_most_a_tenth_of_what_arrives_between_losses() {
        assert_eq!(Window::new().size(&tuning()), tuning().window as u64);
        let windows = [1 << 30, 4100, 1000, 500, 100, 40, 10, 1].map(settled);
        assert_eq!(windows, [400, 400, 100, 50, 48, 20, 5, 2]);
    }

    #[test]
    fn losses_with_nothing_between_narrow_it_down_to_two_packets() {
        let (mut w, tuning, mut rtt) = (Window::new(), tuning(), Rtt::default());
        // A long way, and no queue on it: for this alone it need not be narrow.
        rtt.sent(Psn::new(1), Instant(0));
        rtt.answered(Psn::new(2), Instant(1_000_000));
        let mut size = || {
            w.shrink(&rtt, MTU, &tuning);
            w.size(&tuning) / PACKET
        };
        assert_eq!([(); 4].map(|()| size()), [300, 150, 75, 37]);
        assert_eq!([(); 20].map(|()| size())[19], LEAST);
        let mut turns = 0;
        while w.size(&tuning) < tuning.window as u64 {
            w.grow(w.size(&tuning), MTU);
            turns += 1;
        }
        assert!((10..400).contains(&turns), "{turns} turns");
    }

    #[test]
    fn it_keeps_the_way_filled() {
        let (mut w, tuning, mut rtt) = (Window::new(), tuning(), Rtt::default());
        rtt.sent(Psn::new(1), Instant(0));
        rtt.answered(Psn::new(2), Instant(1_000_000));
        for _ in 0..50 {
            w.grow(200 * PACKET, MTU);
            w.shrink(&rtt, MTU, &tuning);
        }
        assert_eq!(w.size(&tuning), tuning.window as u64 / 4 * 3);
        w.grow(200 * PACKET, MTU);
        assert_eq!(w.size(&tuning), tuning.window as u64);
    }
}
