//! Counters of a connection manager.

use crate::wire::mad::MessageKind;

/// Counters of a connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CmCounters {
    /// Messages received, indexed by [`MessageKind`].
    pub received: [u64; MessageKind::ALL.len()],
    /// Messages sent, including retransmissions, indexed by [`MessageKind`].
    pub sent: [u64; MessageKind::ALL.len()],
    /// Received MADs that are not valid CM messages.
    pub malformed: u64,
    /// Received MADs that do not come from QP1.
    pub wrong_qpn: u64,
    /// Messages whose source GID or communication ID differs from that of the connection's peer.
    pub wrong_peer: u64,
    /// Messages for unknown connections.
    pub unknown: u64,
    /// Messages that are not expected in the connection's current state.
    pub unexpected: u64,
    /// Duplicate messages.
    pub duplicates: u64,
    /// Messages retransmitted because no response had arrived in time.
    pub retransmitted: u64,
    /// Exchanges given up because no response arrived, despite all retransmissions.
    pub timed_out: u64,
    /// Requests for services without a listener.
    pub no_service: u64,
    /// Requests dropped because the listener's backlog was full.
    pub backlog_full: u64,
    /// Requests dropped, or rejected if they were for a datagram service, because the maximum number of
    /// connections was reached.
    pub too_many: u64,
    /// Requests and replies rejected because their transport, MTU, GID or queue pair is invalid.
    pub refused: u64,
    /// Requests and replies rejected as stale: the peer's queue pair or communication ID already has a
    /// connection.
    pub stale: u64,
    /// Responses dropped because too many MADs were queued.
    pub responses_dropped: u64,
    /// Time-waits ended early because too many connections were in time-wait.
    pub time_waits_cut: u64,
}

impl CmCounters {
    /// Returns the number of received messages of the given kind.
    pub fn received(&self, kind: MessageKind) -> u64 {
        self.received[kind as usize]
    }

    /// Returns the number of sent messages of the given kind, including retransmissions.
    pub fn sent(&self, kind: MessageKind) -> u64 {
        self.sent[kind as usize]
    }
}
