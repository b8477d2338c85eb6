//! What the connection manager reports.

use super::{ListenerId, Path};
use crate::transport::{AddressVector, QpType};
use crate::wire::mad::{AprStatus, Ece, RejReason, ServiceId, SidrStatus};
use crate::wire::{AckTimeout, PKey, Psn, QKey, Qpn};

/// Something happened to a connection, a request for one, or a service ID resolution.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A client asks: a new connection, for `accept`, `reject` or `delay`.
    Requested(Box<Requested>),
    /// The server accepts. The queue pair goes to RTS (`rtr`, `rts`); then `ready`, or `reject`.
    Accepted(Box<Accepted>),
    /// The client is ready: the connection is made. Its private data, of RTU.
    Established(Box<[u8; 224]>),
    /// The peer refuses, or gave up. The connection is at its end.
    Rejected(Box<Rejection>),
    /// No answer, for as long and as often as was agreed. The connection is at its end.
    Unreachable,
    /// The peer has the message and asks for patience (MRA).
    Delayed {
        /// How long its answer may take from now on.
        service_timeout: AckTimeout,
        /// Its private data.
        private_data: Box<[u8; 222]>,
    },
    /// The peer wants to disconnect: the queue pair goes to ERR; `disconnect` answers. Its private data, of DREQ.
    DisconnectRequested(Box<[u8; 220]>),
    /// The peer has answered our wish to disconnect, or never did. The connection is in time-wait.
    Disconnected {
        /// The private data of DREP; `None` if none came.
        private_data: Option<Box<[u8; 224]>>,
    },
    /// Time-wait is over: no packet of the old connection is on its way any more, and the queue pair may be used again.
    TimeWaitOver,
    /// The peer offers another path (LAP): `answer_alternate`.
    AlternateOffered {
        /// As we see it.
        path: Path,
        /// Its private data.
        private_data: Box<[u8; 168]>,
    },
    /// The peer's answer to the path that we offered (APR).
    AlternateAnswered {
        /// What became of it.
        status: AprStatus,
        /// What would have been right, by the status.
        info: Box<[u8]>,
        /// Its private data.
        private_data: Box<[u8; 148]>,
    },
    /// No answer to the path that we offered; the connection goes on.
    AlternateUnanswered,
    /// A client asks for the queue pair of a datagram service: `sidr_reply`.
    SidrRequested(Box<SidrRequested>),
    /// The answer to our question. It is at its end.
    SidrAnswered(Box<SidrAnswered>),
}

/// What a client asks for, as the server sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct Requested {
    /// The listener; `None` where both asked at once (peer to peer) and the request replaces our own of this connection.
    pub listener: Option<ListenerId>,
    /// The service.
    pub service: ServiceId,
    /// The service of the queue pairs.
    pub qp_type: QpType,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The first PSN that we are to send.
    pub remote_psn: Psn,
    /// Whether it has a shared receive queue.
    pub srq: bool,
    /// The path to the peer.
    pub path: Path,
    /// Another one.
    pub alternate: Option<Path>,
    /// READs and atomics that we should answer at once: as many as the peer would ask.
    pub responder_resources: u8,
    /// READs and atomics that we may ask at once: as many as the peer answers.
    pub initiator_depth: u8,
    /// The peer does end-to-end flow control.
    pub flow_control: bool,
    /// The queue pair's retries.
    pub retry_count: u8,
    /// The queue pair's retries after a receiver-not-ready.
    pub rnr_retry_count: u8,
    /// The peer's channel adapter.
    pub ca_guid: u64,
    /// Options of a vendor.
    pub ece: Ece,
    /// Of the peer's program.
    pub private_data: [u8; 92],
}

/// How a server accepts, as the client sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct Accepted {
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The first PSN that we are to send.
    pub remote_psn: Psn,
    /// Whether it has a shared receive queue.
    pub srq: bool,
    /// READs and atomics that we should answer at once.
    pub responder_resources: u8,
    /// READs and atomics that we may ask at once.
    pub initiator_depth: u8,
    /// The peer does end-to-end flow control.
    pub flow_control: bool,
    /// The queue pair's retries after a receiver-not-ready.
    pub rnr_retry_count: u8,
    /// The peer has loaded the alternate path of the request.
    pub failover: bool,
    /// The peer's channel adapter.
    pub ca_guid: u64,
    /// Options of a vendor.
    pub ece: Ece,
    /// Of the peer's program.
    pub private_data: [u8; 196],
}

/// Why not.
#[derive(Clone, PartialEq, Debug)]
pub struct Rejection {
    /// The code.
    pub reason: RejReason,
    /// What would have been right, by the reason.
    pub info: Box<[u8]>,
    /// Of the peer's program.
    pub private_data: [u8; 148],
}

/// A question for the queue pair of a datagram service.
#[derive(Clone, PartialEq, Debug)]
pub struct SidrRequested {
    /// The listener.
    pub listener: ListenerId,
    /// The service.
    pub service: ServiceId,
    /// The partition.
    pub pkey: PKey,
    /// Back to the peer.
    pub from: AddressVector,
    /// Of the peer's program.
    pub private_data: [u8; 216],
}

/// The answer to one.
#[derive(Clone, PartialEq, Debug)]
pub struct SidrAnswered {
    /// Whether the rest is valid.
    pub status: SidrStatus,
    /// The queue pair.
    pub qpn: Qpn,
    /// The key that its datagrams need.
    pub qkey: QKey,
    /// Options of a vendor.
    pub ece: Ece,
    /// What would have been right, by the status.
    pub info: Box<[u8]>,
    /// Of the peer's program.
    pub private_data: [u8; 136],
}
