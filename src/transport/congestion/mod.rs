//! Congestion control: limits how much a requester may have in flight, and how fast a queue pair sends.
//!
//! A [`QpController`] learns of acknowledgements, losses and CNPs, and returns a congestion window in flight
//! cost and a sending rate. It sends nothing. The requester compares what it has in flight with the window
//! before each packet; the queue pair's pacer spaces requests and READ responses according to the rate.
//! [`Congestion`] selects the algorithm and its parameters.

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
pub use parameters::{CongestionError, CongestionParameter, ParameterSet};
pub use qp_controller::QpController;
pub use rate::Rate;
pub use selection::{Congestion, CongestionAlgorithm};

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

/// Path state available to a [`QpController`].
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
    /// Smoothed mean deviation of the samples from `smoothed` (RTTVAR).
    pub deviation: u64,
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
            path(Some(RoundTrip { smoothed: 150, deviation: 0, min: 100, latest: 150 }))
                .bandwidth_delay_product(1500),
            1000
        );
    }
}
