//! How much may be in flight: what the link says that the peer takes, less while packets get lost.

use crate::transport::Tuning;
use crate::transport::send_queue::packet_cost;
use crate::wire::Mtu;

/// Packets that may be in flight however many got lost.
const LEAST: u64 = 2;

/// A window in flight cost. A loss takes a quarter of it, and half if nothing has arrived since the last one: a
/// queue on the way was full, and going back to the lost packet with all that fitted before would fill it again,
/// with what the peer has to drop. It grows by half of what arrives.
#[derive(Debug)]
pub(super) struct Window {
    size: u64,
    /// Nothing has arrived since a loss.
    stuck: bool,
}

impl Window {
    /// As wide as the link lets it be.
    pub fn new() -> Window {
        Window { size: u64::MAX, stuck: false }
    }

    /// Its size now.
    pub fn size(&self, tuning: &Tuning) -> u64 {
        self.size.min(tuning.window as u64)
    }

    /// A packet was lost.
    pub fn shrink(&mut self, mtu: Mtu, tuning: &Tuning) {
        let size = self.size(tuning);
        let left = if self.stuck { size / 2 } else { size / 4 * 3 };
        self.size = left.max(LEAST * packet_cost(mtu.bytes() as u64));
        self.stuck = true;
    }

    /// So much has arrived.
    pub fn grow(&mut self, acked: u64) {
        self.size = self.size.saturating_add(acked / 2);
        self.stuck = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_narrow_it_down_to_two_packets_and_arrivals_widen_it() {
        let tuning = Tuning { window: 64 << 10, ..Tuning::default() };
        let mut w = Window::new();
        assert_eq!(w.size(&tuning), 64 << 10);
        w.shrink(Mtu::Mtu4096, &tuning);
        assert_eq!(w.size(&tuning), 48 << 10);
        w.shrink(Mtu::Mtu4096, &tuning);
        assert_eq!(w.size(&tuning), 24 << 10);
        w.grow(16 << 10);
        assert_eq!(w.size(&tuning), 32 << 10);
        w.shrink(Mtu::Mtu4096, &tuning);
        assert_eq!(w.size(&tuning), 24 << 10);
        (0..20).for_each(|_| w.shrink(Mtu::Mtu4096, &tuning));
        assert_eq!(w.size(&tuning), 2 * packet_cost(4096));
        (0..10).for_each(|_| w.grow(w.size(&tuning)));
        assert_eq!(w.size(&tuning), 64 << 10);
    }
}
