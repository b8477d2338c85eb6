//! Tail loss probes.
//!
//! If no packet follows a packet without AckReq, the last packet is retransmitted with AckReq: a tail loss
//! probe (TLP, RFC 8985 section 7), sent long before the local ACK timeout.
//!
//! If no acknowledgement arrives within the probe timeout (PTO), the oldest packet in flight is
//! retransmitted, then the newest. A peer that already has the oldest acknowledges how far it has come;
//! otherwise it accepts it now. The newest makes the peer report a gap before it: a responder sends one
//! sequence error NAK per gap, and the first may have been lost. So every loss is detected long before the
//! local ACK timeout, and a peer that is merely slow receives no more than these two packets.

use std::time::Duration;

use crate::transport::Instant;

/// Maximum number of times that the probe timeout doubles; by then the local ACK timeout is near or has
/// expired.
const MAX_DOUBLINGS: u32 = 10;

/// Tail loss probe (TLP): a packet in flight that is retransmitted with AckReq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) enum Probe {
    /// The oldest packet in flight, which the peer misses, followed by the newest.
    Missing,
    /// The oldest packet in flight, followed by the newest.
    Oldest,
    /// The newest packet in flight, unless a packet that follows it may be sent.
    Newest,
}

/// Pending probe and backoff of the probe timeout.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Prober {
    /// Pending probe.
    pub due: Option<Probe>,
    /// Number of consecutive probe timeouts, which is the backoff exponent.
    pub timeouts: u32,
    /// Time after which the next packet carries AckReq, which makes a probe unnecessary. This is half of the
    /// ACK silence after the first packet sent without AckReq.
    pub overdue: Option<Instant>,
}

impl Prober {
    /// Applies exponential backoff to the probe timeout, so that a slow peer is not flooded with probes.
    pub fn back_off(&self, probe_timeout: Duration) -> Duration {
        probe_timeout * (1 << self.timeouts.min(MAX_DOUBLINGS))
    }
}
