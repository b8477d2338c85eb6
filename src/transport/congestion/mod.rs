//! Congestion control: limits how much a requester may have in flight.
//!
//! A [`Controller`] learns of acknowledgements and losses and returns a congestion window in flight cost. It
//! sends nothing and has no timers. The requester compares what it has in flight with the window before each
//! packet.

mod cost;
mod loss_driven;

use crate::wire::Mtu;
pub use cost::packet_cost;
pub use loss_driven::LossDriven;

/// Congestion controller of one queue pair.
pub trait Controller: std::fmt::Debug {
    /// Returns the congestion window in flight cost, at most `limit` (the link's window).
    fn window(&self, limit: u64) -> u64;

    /// Handles the acknowledgement of packets with a total flight cost of `acked`.
    fn on_ack(&mut self, acked: u64, path: &PathState);

    /// Handles the loss of a packet. Called before the packet is retransmitted.
    fn on_loss(&mut self, path: &PathState);
}

/// Path state available to a [`Controller`].
#[derive(Clone, Copy, Debug)]
pub struct PathState {
    /// Window of the link in flight cost: the maximum congestion window.
    pub link_window: u64,
    /// Path MTU: the maximum payload of a packet.
    pub mtu: Mtu,
    /// Round-trip times; `None` before the first sample.
    pub rtt: Option<RoundTrip>,
}

/// Round-trip time statistics of a path, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// Smoothed round-trip time (SRTT).
    pub smoothed: u64,
    /// Minimum of all samples.
    pub min: u64,
}

impl PathState {
    /// Estimates the bandwidth-delay product: the part of `in_flight` that is on the wire, which is
    /// `in_flight` times the ratio of minimum to smoothed RTT. The rest waits in queues and lengthens the
    /// RTT. Returns 0 before the first RTT sample.
    pub fn bandwidth_delay_product(&self, in_flight: u64) -> u64 {
        let share = |rtt: RoundTrip| in_flight as u128 * rtt.min as u128 / rtt.smoothed.max(1) as u128;
        self.rtt.map_or(0, |rtt| share(rtt) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_delay_product_excludes_data_waiting_in_queues() {
        let path = |rtt| PathState { link_window: 1 << 20, mtu: Mtu::Mtu1024, rtt };
        assert_eq!(path(None).bandwidth_delay_product(1000), 0);
        assert_eq!(path(Some(RoundTrip { smoothed: 150, min: 100 })).bandwidth_delay_product(1500), 1000);
    }
}
