//! NIC tuning parameters.

use std::time::Duration;

use super::congestion::CongestionConfig;

/// NIC tuning parameters, whose values the specification leaves open.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// Per-peer window: the maximum number of bytes in flight to one peer, including headers. The peer's
    /// receive buffer is assumed to hold this much, unless the link sets the window of the peer
    /// ([`PeerWindow`]).
    pub window: usize,
    /// Upper bound of the windows that the link sets for single peers.
    pub max_peer_window: usize,
    /// Maximum number of bytes that one READ request covers. A longer READ is split into several requests,
    /// so that its responses do not overrun the local receive buffer. The value must not change while
    /// READs are in flight: a repeated request must lie within one that the responder remembers.
    pub read_chunk: u32,
    /// Lower bound of the local ACK timeout, regardless of the QP's configuration.
    pub min_timeout: Duration,
    /// Maximum time that a request may be in flight before an acknowledgement is requested; a quarter of the
    /// local ACK timeout if that is shorter.
    pub max_ack_silence: Duration,
    /// Maximum number of packets that one QP sends before the next QP gets its turn.
    pub turn: usize,
    /// Whether UC and UD traffic is paced to one window of the link per millisecond, for links on which the
    /// peer's receive buffer may overflow.
    pub pace_unacknowledged: bool,
    /// Lower bound of the retransmission/probe timeout (RTO/PTO).
    pub min_probe_timeout: Duration,
    /// Congestion control of the queue pairs.
    pub congestion: CongestionConfig,
    /// Accuracy with which the driver's timers permit to pace packets.
    pub pacing: PacingLimits,
}

/// Limits on bursts of paced packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacingLimits {
    /// Burst duration: as much traffic as the rate permits in this time may be sent back to back. A single
    /// packet may exceed it.
    pub burst: Duration,
    /// Maximum idle time, caused by a late timer or a lack of data, that later traffic may make up for.
    pub catch_up: Duration,
}

impl PacingLimits {
    /// PacingLimits on a machine's clock, whose timers are late.
    pub const REAL_TIME: PacingLimits =
        PacingLimits { burst: Duration::from_micros(100), catch_up: Duration::from_millis(1) };
    /// PacingLimits in virtual time, in which timers expire to the nanosecond: packets are sent one by one.
    pub const VIRTUAL_TIME: PacingLimits =
        PacingLimits { burst: Duration::ZERO, catch_up: Duration::from_micros(1) };
}

/// Window of one peer, as the link sets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerWindow {
    /// The window of the link.
    OfLink,
    /// This number of bytes, or the window of the link if it is smaller.
    AtMost(usize),
    /// This number of bytes.
    Bytes(usize),
}

impl PeerWindow {
    /// Returns the smaller one of the windows of two paths to a peer.
    pub fn min(self, other: PeerWindow) -> PeerWindow {
        use PeerWindow::{AtMost, Bytes, OfLink};
        match (self, other) {
            (OfLink, OfLink) => OfLink,
            (OfLink, AtMost(bytes) | Bytes(bytes)) | (AtMost(bytes) | Bytes(bytes), OfLink) => AtMost(bytes),
            (Bytes(a), Bytes(b)) => Bytes(a.min(b)),
            (AtMost(a) | Bytes(a), AtMost(b) | Bytes(b)) => AtMost(a.min(b)),
        }
    }
}

impl Tuning {
    /// Returns the window of a peer in bytes.
    pub fn peer_window(&self, window: PeerWindow) -> usize {
        match window {
            PeerWindow::OfLink => self.window,
            PeerWindow::AtMost(bytes) => self.window.min(bytes),
            PeerWindow::Bytes(bytes) => self.max_peer_window.min(bytes),
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            window: 1 << 20,
            max_peer_window: usize::MAX,
            read_chunk: 1 << 30,
            min_timeout: Duration::from_millis(1),
            max_ack_silence: Duration::from_millis(1),
            turn: 256,
            pace_unacknowledged: false,
            min_probe_timeout: Duration::from_micros(100),
            congestion: CongestionConfig::DEFAULT,
            pacing: PacingLimits::REAL_TIME,
        }
    }
}
