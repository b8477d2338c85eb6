//! Per-peer window: the accounting state kept with each queue pair.

/// A queue pair's share of the per-peer window.
#[derive(Debug, Default)]
pub(super) struct PeerShare {
    /// Index of the peer in the NIC's list of peers; `None` if the queue pair is not connected.
    pub peer: Option<usize>,
    /// Flight cost of the queue pair's packets in flight, as counted in the peer's total.
    pub in_flight: u64,
    /// Whether the queue pair is a window waiter.
    pub waits: bool,
}
