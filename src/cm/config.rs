use std::time::Duration;

use crate::wire::mad::CommId;
use crate::wire::{AckTimeout, Gid, Mtu};

/// What a connection manager is made with: facts of its NIC, and bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CmConfig {
    /// The channel adapter: by it, and the communication ID, peers tell connections apart.
    pub ca_guid: u64,
    /// The NIC's GIDs by index; unset entries are of no use.
    pub gids: Vec<Gid>,
    /// The largest path MTU of the port: requests for a larger one are refused.
    pub max_mtu: Mtu,
    /// How long the NIC takes to acknowledge, at most.
    pub ack_delay: AckTimeout,
    /// The communication IDs that may be given out.
    pub ids: CommIds,
    /// Connections at once, those in time-wait not counted.
    pub max_connections: usize,
    /// Requests at once that a listener has and nobody has answered, whatever backlog it asks for.
    pub max_backlog: usize,
    /// Connections in time-wait; the oldest goes if there are more.
    pub max_time_wait: usize,
    /// Answers that wait for [`poll_transmit`](super::Cm::poll_transmit) and belong to no connection; what is above is dropped.
    pub max_answers: usize,
    /// What a peer that repeats itself is told that an answer may take (MRA), while the program makes up its mind.
    pub service_timeout: AckTimeout,
    /// The longest that a peer may have us wait for it, each time.
    pub max_timeout: AckTimeout,
    /// The shortest time-wait, whatever the path says.
    pub min_time_wait: Duration,
}

impl CmConfig {
    /// Of a NIC with these GIDs; bounds as they suit a server.
    pub fn new(ca_guid: u64, gids: Vec<Gid>) -> CmConfig {
        CmConfig {
            ca_guid,
            gids,
            max_mtu: Mtu::Mtu4096,
            ack_delay: AckTimeout::new(15),
            ids: CommIds::ALL,
            max_connections: 65_536,
            max_backlog: 4096,
            max_time_wait: 16_384,
            max_answers: 1024,
            service_timeout: AckTimeout::new(24),
            max_timeout: AckTimeout::new(24),
            min_time_wait: Duration::from_millis(100),
        }
    }
}

/// The communication IDs whose highest `bits` bits are `prefix`: where several processes share QP1, each has its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommIds {
    /// The value of the highest bits.
    pub prefix: u32,
    /// How many those are, 0..=16.
    pub bits: u32,
}

impl CommIds {
    /// Every ID.
    pub const ALL: CommIds = CommIds { prefix: 0, bits: 0 };

    /// The ID of these whose other bits are those of `low`.
    pub(super) const fn id(self, low: u32) -> CommId {
        let free = u32::MAX.unbounded_shr(self.bits);
        CommId(low & free | (self.prefix as u64).unbounded_shl(32 - self.bits) as u32)
    }
}
