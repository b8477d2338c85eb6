//! NIC tuning parameters.

use std::time::Duration;

/// NIC tuning parameters, whose values the specification leaves open.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// Per-peer window: the maximum number of bytes in flight to one peer, including headers. The peer's
    /// receive buffer is assumed to hold this much.
    pub window: usize,
    /// Maximum number of bytes that one READ request covers. A longer READ is split into several requests, so
    /// that its responses do not overrun the local receive buffer.
    pub read_chunk: u32,
    /// Lower bound of the local ACK timeout, regardless of the QP's configuration.
    pub min_timeout: Duration,
    /// Maximum time that a request may be in flight before an acknowledgement is requested; a quarter of the
    /// local ACK timeout if that is shorter.
    pub max_ack_silence: Duration,
    /// Maximum number of packets that one QP sends before the next QP gets its turn.
    pub turn: usize,
    /// Whether UC and UD traffic is paced to one per-peer window per millisecond, for links on which the
    /// peer's receive buffer may overflow.
    pub pace_unacknowledged: bool,
    /// Lower bound of the retransmission/probe timeout (RTO/PTO).
    pub min_probe_timeout: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            window: 1 << 20,
            read_chunk: 1 << 30,
            min_timeout: Duration::from_millis(1),
            max_ack_silence: Duration::from_millis(1),
            turn: 256,
            pace_unacknowledged: false,
            min_probe_timeout: Duration::from_micros(100),
        }
    }
}
