use crate::wire::mad::MessageKind;

/// What a connection manager has seen and done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CmCounters {
    /// Messages in, by [`MessageKind`] in its order.
    pub received: [u64; MessageKind::ALL.len()],
    /// Messages out, repetitions among them, by [`MessageKind`] in its order.
    pub sent: [u64; MessageKind::ALL.len()],
    /// No MAD of the communication manager.
    pub malformed: u64,
    /// Not from QP1.
    pub wrong_qpn: u64,
    /// From another GID, or with another communication ID, than the connection's peer has.
    pub wrong_peer: u64,
    /// For a connection that is not there.
    pub unknown: u64,
    /// For a connection whose state has no use for it.
    pub unexpected: u64,
    /// Messages that came again.
    pub duplicates: u64,
    /// Messages that were sent again as no answer came.
    pub repeated: u64,
    /// Exchanges that ended without an answer.
    pub unanswered: u64,
    /// Requests for services that nobody serves.
    pub no_service: u64,
    /// Requests that a listener's backlog had no room for.
    pub backlog_full: u64,
    /// Requests above the most connections at once.
    pub too_many: u64,
    /// Requests that made no sense: transport, MTU or GID.
    pub refused: u64,
    /// Requests and replies with the queue pair of a connection that is there.
    pub stale: u64,
    /// Answers that were not sent as too many waited.
    pub answers_dropped: u64,
    /// Time-waits that ended early as there were too many.
    pub time_waits_cut: u64,
}

impl CmCounters {
    /// Messages of a kind that came in.
    pub fn received(&self, kind: MessageKind) -> u64 {
        self.received[kind as usize]
    }

    /// Messages of a kind that went out.
    pub fn sent(&self, kind: MessageKind) -> u64 {
        self.sent[kind as usize]
    }
}
