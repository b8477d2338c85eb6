//! Tuning parameters of a NIC.

use std::time::Duration;

/// Tuning parameters of a NIC, which the specification leaves open.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// Per-peer window: maximum number of bytes in flight to one peer, headers included, which is what the
    /// peer's receive buffer is assumed to hold.
    pub window: usize,
    /// Maximum part of a READ that one request covers, in bytes. A longer READ is sent as several requests,
    /// so that its responses do not overrun the local receive buffer.
    pub read_chunk: u32,
    /// Lower bound of the local ACK timeout, whatever the QP is configured with.
    pub min_timeout: Duration,
    /// Maximum time for which a request is in flight before an acknowledgement is requested; a quarter of the
    /// local ACK timeout if that is shorter.
    pub max_ack_silence: Duration,
    /// Maximum number of packets that one QP sends before the next one gets its turn.
    pub turn: usize,
    /// Whether UC and UD are paced to one per-peer window per millisecond, for links where the peer's receive
    /// buffer may overflow.
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
