//! The InfiniBand connection manager (IBA chapter 12), sans I/O: its inputs are MADs and instants, its
//! outputs MADs, deadlines and events.
//!
//! A [`Cm`] serves one NIC. Its driver passes MADs received on QP1 to [`Cm::handle_mad`], sends the MADs that
//! [`Cm::poll_transmit`] returns, calls [`Cm::handle_timeout`] at the deadline that [`Cm::poll_timeout`]
//! returns, and acts on the events from [`Cm::poll_event`]. The connection manager does not modify queue
//! pairs: [`Cm::rtr`] and [`Cm::rts`] return the attributes that a queue pair needs.
//!
//! The handshake from both sides:
//!
//! | client | server |
//! | --- | --- |
//! | `connect` (REQ) | |
//! | | [`Event::Requested`]; queue pair to RTR; `accept` (REP) |
//! | [`Event::Accepted`]; queue pair to RTS; `ready` (RTU) | |
//! | | [`Event::Established`]; queue pair to RTS |
//! | `disconnect` (DREQ) | |
//! | | [`Event::DisconnectRequested`]; `disconnect` (DREP) |
//! | [`Event::Disconnected`] | |
//! | [`Event::TimeWaitOver`] | [`Event::TimeWaitOver`] |
//!
//! Every message that expects a response is retransmitted until the response arrives or the retries are
//! exhausted; every duplicate of a received message gets the response again. The state kept for a peer is
//! bounded, whatever it sends.
#![forbid(unsafe_code)]

mod alternate;
mod attributes;
mod client;
mod config;
mod connection;
mod counters;
mod disconnect;
mod engine;
mod error;
mod event;
mod handles;
mod ids;
mod peer_to_peer;
mod pending_listener;
mod queued_requests;
mod recv;
mod request;
mod server;
mod sidr;
mod state;
mod timeouts;
pub(crate) mod unmatched;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand_pcg::Pcg32;

pub use config::{CmConfig, CommIds};
pub use counters::CmCounters;
pub use engine::padded;
pub use error::CmError;
pub use event::{ConnectionInfo, Event, Requested};
pub use handles::ConnId;
pub use request::{LocalQp, Path, Request};
pub use state::State;

use connection::{Connection, Peer};
use ids::IdPool;
use pending_listener::PendingListeners;

use crate::transport::{AddressVector, Instant};
use crate::wire::mad::{CommId, MAD_LEN, ServiceId};
use crate::wire::{Gid, Qpn};

/// A NIC's connection manager.
#[derive(Debug)]
pub struct Cm {
    config: CmConfig,
    pool: IdPool,
    random: Pcg32,
    connections: BTreeMap<CommId, Connection>,
    /// Connections by peer and the peer's communication ID, once the ID is known.
    by_remote: BTreeMap<(Peer, CommId), CommId>,
    /// Connections by peer and the peer's queue pair. A connection that the peer has ended, or that is in
    /// time-wait, has no entry.
    by_qpn: BTreeMap<(Peer, Qpn), CommId>,
    /// Service ID resolutions by the requester's GID and request ID.
    by_sidr_request: BTreeMap<(Gid, CommId), CommId>,
    /// Our outstanding peer-to-peer requests, each of which may cross one from the peer (IBA 12.10.4).
    peer_to_peer: BTreeSet<(ServiceId, Gid, CommId)>,
    /// Services that have a listener.
    listeners: BTreeSet<ServiceId>,
    pending_listeners: PendingListeners,
    timers: BTreeSet<(Instant, CommId)>,
    /// One deadline for each connection in time-wait.
    time_waits: BTreeSet<(Instant, CommId)>,
    outbox: VecDeque<(AddressVector, [u8; MAD_LEN])>,
    events: VecDeque<(ConnId, Event)>,
    /// Connections whose second request was not answered, with the number of requests still to be sent.
    unanswered: VecDeque<(ConnId, u8)>,
    counters: CmCounters,
}

impl Cm {
    /// Creates a connection manager without connections. Communication IDs and transaction IDs are derived
    /// from `seed`.
    pub fn new(config: CmConfig, seed: u64) -> Cm {
        let mut random = Pcg32::new(seed, 0xca);
        let pool = IdPool::new(config.ids, &mut random);
        Cm {
            config,
            pool,
            random,
            connections: BTreeMap::new(),
            by_remote: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            by_sidr_request: BTreeMap::new(),
            peer_to_peer: BTreeSet::new(),
            listeners: BTreeSet::new(),
            pending_listeners: PendingListeners::default(),
            timers: BTreeSet::new(),
            time_waits: BTreeSet::new(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            unanswered: VecDeque::new(),
            counters: CmCounters::default(),
        }
    }

    /// Returns the GID table.
    pub fn gids(&self) -> &[Gid] {
        &self.config.gids
    }

    /// Replaces the GID table, and returns the previous one; called when the NIC's GIDs have changed.
    pub fn set_gids(&mut self, gids: Vec<Gid>) -> Vec<Gid> {
        std::mem::replace(&mut self.config.gids, gids)
    }

    /// Removes and returns the next MAD to send from QP1 to QP1 with the well-known Q_Key, and its
    /// destination.
    pub fn poll_transmit(&mut self) -> Option<(AddressVector, [u8; MAD_LEN])> {
        self.outbox.pop_front()
    }

    /// Removes and returns the next connection (or service ID resolution) whose second request was not answered
    /// in time, and the number of requests that are still to be sent.
    pub fn poll_unanswered(&mut self) -> Option<(ConnId, u8)> {
        self.unanswered.pop_front()
    }

    /// Removes and returns the next event.
    pub fn poll_event(&mut self) -> Option<(ConnId, Event)> {
        self.events.pop_front()
    }

    /// Returns the state of a connection, or `None` if the connection is unknown or released.
    #[cfg_attr(
        not(feature = "unstable-internals"),
        allow(dead_code, reason = "for tests and the other packages")
    )]
    pub fn state(&self, id: ConnId) -> Option<State> {
        self.live_conn(id).ok().map(|c| c.state)
    }

    /// Returns the total number of connections, requests and resolutions, and the number of those in
    /// time-wait.
    pub fn connection_counts(&self) -> (usize, usize) {
        (self.connections.len(), self.time_waits.len())
    }

    /// Returns the counters.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }
}

#[cfg(test)]
mod tests;
