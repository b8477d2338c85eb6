//! Tuning parameters of a NIC.

use std::time::Duration;

/// Tuning parameters of a NIC, which the specification leaves open.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// Per-peer window: bytes in flight to one peer, headers included; what the peer's receive buffer holds.
    pub window: usize,
    /// Longest part of a READ that one request covers, in bytes. A longer READ is sent as several requests,
    /// so that its responses do not overrun the local receive buffer.
    pub read_chunk: u32,
    /// Lower bound of the local ACK timeout, whatever the QP is configured with.
    pub min_timeout: Duration,
    /// Longest time that a request is in flight before an acknowledgement is requested; a quarter of the
    /// local ACK timeout if that is shorter.
    pub max_ack_silence: Duration,
    /// Number of packets that one QP sends before the next one has its turn.
    pub turn: usize,
    /// Paces UC and UD to one window per millisecond, for peers whose receive buffer overflows.
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
