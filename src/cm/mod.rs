//! The InfiniBand connection manager (IBA chapter 12), sans I/O: MADs and instants in; MADs, deadlines and events out.
//!
//! A [`Cm`] is of one NIC. Whoever drives it hands it what arrives at QP1 ([`Cm::handle_mad`]), sends what it wants sent
//! ([`Cm::poll_transmit`]), calls it when a deadline is over ([`Cm::poll_timeout`], [`Cm::handle_timeout`]), and acts on its events
//! ([`Cm::poll_event`]). It moves no queue pair: [`Cm::rtr`] and [`Cm::rts`] say what one needs.
//!
//! A connection, from both sides:
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
//! Every message that wants an answer is repeated until there is one, or none is to be hoped for; every message that came
//! twice is answered twice. Whatever a peer sends, what is kept for it is bounded.
#![forbid(unsafe_code)]

mod alternate;
mod arrive;
mod attributes;
mod client;
mod config;
mod connection;
mod counters;
mod crossing;
mod engine;
mod error;
mod event;
mod ids;
mod leave;
pub(crate) mod nobody;
mod request;
mod server;
mod sidr;
mod state;
mod timeouts;
mod vacancy;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use rand_pcg::Pcg32;

pub use config::{CmConfig, CommIds};
pub use counters::CmCounters;
pub use error::CmError;
pub use event::{Accepted, Event, Rejection, Requested, SidrAnswered, SidrRequested};
pub use request::{LocalQp, Path, Reply, Request, SidrReply, SidrRequest};
pub use state::State;

use connection::{Connection, Peer};
use ids::IdPool;
use server::Listener;
use vacancy::Vacancies;

use crate::transport::{AddressVector, Instant};
use crate::wire::mad::{CommId, MAD_LEN, ServiceId};
use crate::wire::{Gid, Qpn};

/// A connection, a request for one, or a service ID resolution: its local communication ID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnId(pub CommId);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ListenerId(u64);

/// How a MAD came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Back to its sender, from the GID that it was sent to.
    pub from: AddressVector,
    /// The sender's queue pair: messages come from QP1, and answers go to it.
    pub src_qpn: Qpn,
}

/// A MAD to send: from QP1 to QP1, with the Q_Key of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// Where to.
    pub to: AddressVector,
    /// Its bytes.
    pub mad: [u8; MAD_LEN],
}

/// The connection manager of a NIC.
#[derive(Debug)]
pub struct Cm {
    config: CmConfig,
    pool: IdPool,
    random: Pcg32,
    connections: BTreeMap<CommId, Connection>,
    /// By the peer and its ID, once known.
    by_remote: BTreeMap<(Peer, CommId), CommId>,
    /// By the peer and its queue pair; those that end have none.
    by_qpn: BTreeMap<(Peer, Qpn), CommId>,
    /// Service ID resolutions, by who asks and its name for the question.
    by_asker: BTreeMap<(Gid, CommId), CommId>,
    /// Our requests that a request of the peer may cross.
    crossing: BTreeSet<(ServiceId, Gid, CommId)>,
    listeners: BTreeMap<ListenerId, Listener>,
    /// Those of one service.
    services: BTreeMap<ServiceId, ListenerId>,
    /// Those of many.
    masked: Vec<ListenerId>,
    last_listener: u64,
    vacancies: Vacancies,
    timers: BTreeSet<(Instant, CommId)>,
    /// Of connections in time-wait, each of which has one.
    time_waits: BTreeSet<(Instant, CommId)>,
    outbox: VecDeque<Outgoing>,
    events: VecDeque<(ConnId, Event)>,
    counters: CmCounters,
}

impl Cm {
    /// One without connections. What it picks by chance comes from `seed`.
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
            by_asker: BTreeMap::new(),
            crossing: BTreeSet::new(),
            listeners: BTreeMap::new(),
            services: BTreeMap::new(),
            masked: Vec::new(),
            last_listener: 0,
            vacancies: Vacancies::default(),
            timers: BTreeSet::new(),
            time_waits: BTreeSet::new(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
        }
    }

    /// What it was made with, with the GIDs as they are now.
    pub fn config(&self) -> &CmConfig {
        &self.config
    }

    /// The NIC's GIDs are others now.
    pub fn set_gids(&mut self, gids: Vec<Gid>) {
        self.config.gids = gids;
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.outbox.pop_front()
    }

    /// What happened next.
    pub fn poll_event(&mut self) -> Option<(ConnId, Event)> {
        self.events.pop_front()
    }

    /// The state of a connection that is not released.
    pub fn state(&self, id: ConnId) -> Option<State> {
        self.connections.get(&id.0).filter(|c| !c.released).map(|c| c.state)
    }

    /// How many connections, requests and resolutions there are, and how many of the former are in time-wait.
    pub fn population(&self) -> (usize, usize) {
        (self.connections.len(), self.time_waits.len())
    }

    /// What it has seen and done.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }
}

#[cfg(test)]
mod tests;
