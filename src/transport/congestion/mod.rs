//! Congestion control: limits how much a requester may have in flight, and how fast a queue pair sends.
//!
//! A [`Controller`] learns of acknowledgements, losses and CNPs, and returns a congestion window in flight cost and
//! a sending rate. It sends nothing. The requester compares what it has in flight with the window before each
//! packet; the queue pair's pacer spaces requests and READ responses according to the rate.
//! [`Congestion`] selects the algorithm and its parameters, [`QpController`] is the controller of a queue pair.

mod cost;
mod dcqcn;
mod delay;
mod loss_driven;
mod parameters;
mod qp_controller;
mod rate;
mod selection;

use crate::transport::Instant;
use crate::wire::Mtu;
pub use cost::packet_cost;
#[cfg(feature = "unstable-internals")]
pub use dcqcn::Dcqcn;
pub use parameters::{CongestionError, CongestionParameter, ParameterSet};
pub use qp_controller::QpController;
pub use rate::Rate;
pub use selection::{Congestion, CongestionAlgorithm};

/// Congestion controller of one queue pair.
pub trait Controller: std::fmt::Debug {
    /// Returns the congestion window in flight cost, at most `limit` (the peer's window).
    fn window(&self, limit: u64) -> u64;

    /// Handles the acknowledgement of packets with a total flight cost of `acked`.
    fn on_ack(&mut self, acked: u64, path: &PathState<'_>);

    /// Handles the loss of a packet. Called before the packet is retransmitted.
    fn on_loss(&mut self, path: &PathState<'_>);

    /// Handles the loss of a packet like [`on_loss`](Self::on_loss); only that packet is retransmitted.
    fn on_single_loss(&mut self, path: &PathState<'_>) {
        self.on_loss(path);
    }

    /// Handles a congestion notification packet. Returns false if the controller ignores them.
    fn on_cnp(&mut self, _now: Instant, _config: &CongestionConfig) -> bool {
        false
    }

    /// Handles the transmission of `bytes` of requests or READ responses, including their headers.
    fn on_sent(&mut self, _bytes: u64, _now: Instant, _config: &CongestionConfig) {}

    /// Returns the sending rate at `now`; `None` if it is not limited.
    fn rate(&mut self, _now: Instant, _config: &CongestionConfig) -> Option<Rate> {
        None
    }

    /// Returns the rate of READ responses at `now`; `None` if it is not limited. A controller that knows only the path
    /// of requests, by their acknowledgements, does not limit it.
    fn response_rate(&mut self, _now: Instant, _config: &CongestionConfig) -> Option<Rate> {
        None
    }

    /// Returns the time at which the rate will increase; packets that wait for the pacer may then be sent earlier.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// Congestion control of a NIC.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CongestionConfig {
    /// Algorithm and parameters.
    pub control: Congestion,
    /// Speed of the link: the maximum sending rate.
    pub line_rate: Rate,
}

impl CongestionConfig {
    /// Loss-driven congestion control on a link of 100 Gb/s.
    pub const DEFAULT: CongestionConfig =
        CongestionConfig { control: Congestion::LOSS_DRIVEN, line_rate: Rate::from_bits_per_second(100e9) };
}

/// Path state available to a [`Controller`].
#[derive(Clone, Copy, Debug)]
pub struct PathState<'a> {
    /// Window of the peer in flight cost: the maximum congestion window.
    pub peer_window: u64,
    /// Path MTU: the maximum payload of a packet.
    pub mtu: Mtu,
    /// Round-trip times; `None` before the first sample.
    pub rtt: Option<RoundTrip>,
    /// Current time.
    pub now: Instant,
    /// Congestion control of the NIC.
    pub config: &'a CongestionConfig,
}

/// Round-trip time statistics of a path, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// Smoothed round-trip time (SRTT).
    pub smoothed: u64,
    /// Minimum of all samples.
    pub min: u64,
    /// Latest sample.
    pub latest: u64,
}

impl PathState<'_> {
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
        let path = |rtt| PathState {
            peer_window: 1 << 20,
            mtu: Mtu::Mtu1024,
            rtt,
            now: Instant(0),
            config: &CongestionConfig::DEFAULT,
        };
        assert_eq!(path(None).bandwidth_delay_product(1000), 0);
        assert_eq!(
            path(Some(RoundTrip { smoothed: 150, min: 100, latest: 150 })).bandwidth_delay_product(1500),
            1000
        );
    }
}
