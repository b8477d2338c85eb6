//! Configuration of a connection manager.

use std::time::Duration;

use crate::wire::mad::CommId;
use crate::wire::{AckTimeout, Gid, Mtu};

/// Configuration of a connection manager: the NIC's properties, and limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CmConfig {
    /// GUID of the channel adapter. Peers distinguish connections by this GUID and the communication ID.
    pub ca_guid: u64,
    /// The NIC's GID table; entries that are zero cannot be used.
    pub gids: Vec<Gid>,
    /// Largest path MTU that the port supports; requests for a larger one are rejected.
    pub max_mtu: Mtu,
    /// Maximum time that the NIC takes to acknowledge a packet.
    pub ack_delay: AckTimeout,
    /// Range of communication IDs to allocate from.
    pub ids: CommIds,
    /// Maximum number of connections, requests and resolutions; those in time-wait do not count.
    pub max_connections: usize,
    /// Maximum number of connections in time-wait; when it is exceeded, the oldest time-wait ends early.
    pub max_time_wait: usize,
    /// Maximum number of MADs queued for [`poll_transmit`](super::Cm::poll_transmit); once it is reached,
    /// further responses to received messages are dropped, while requests are still queued.
    pub max_queued_responses: usize,
    /// Response time announced (MRA) to a peer that retransmits a request that the program has not yet
    /// answered.
    pub service_timeout: AckTimeout,
    /// Upper bound for the timeouts that peers request.
    pub max_timeout: AckTimeout,
    /// Minimum duration of time-wait, even if the path permits less.
    pub min_time_wait: Duration,
}

impl CmConfig {
    /// Creates a configuration for a NIC with the given GIDs, with limits suitable for a server.
    pub fn new(ca_guid: u64, gids: Vec<Gid>) -> CmConfig {
        CmConfig {
            ca_guid,
            gids,
            max_mtu: Mtu::Mtu4096,
            ack_delay: AckTimeout::new(15),
            ids: CommIds::ALL,
            max_connections: 65_536,
            max_time_wait: 16_384,
            max_queued_responses: 1024,
            service_timeout: AckTimeout::new(24),
            max_timeout: AckTimeout::new(24),
            min_time_wait: Duration::from_millis(100),
        }
    }
}

/// Range of communication IDs: those whose highest `bits` bits are `prefix`. Processes that share QP1 use
/// disjoint ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommIds {
    /// Value of the highest `bits` bits.
    pub prefix: u32,
    /// Number of prefix bits, 0..=16.
    pub bits: u32,
}

impl CommIds {
    /// Range of all IDs.
    pub const ALL: CommIds = CommIds { prefix: 0, bits: 0 };

    /// Returns the ID that consists of this range's prefix, followed by the lowest bits of `low`.
    pub(super) const fn id(self, low: u32) -> CommId {
        let free = u32::MAX.unbounded_shr(self.bits);
        CommId(low & free | (self.prefix as u64).unbounded_shl(32 - self.bits) as u32)
    }
}
