//! Share of a queue pair in the per-peer window.

/// Share of a queue pair in the per-peer window.
#[derive(Debug, Default)]
pub(super) struct PeerShare {
    /// Index of the peer among those of the NIC.
    pub peer: Option<usize>,
    /// Flight cost of the packets in flight that is charged to the queue pair.
    pub in_flight: u64,
    /// Whether the queue pair is a window waiter.
    pub waits: bool,
}
