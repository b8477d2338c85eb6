//! Events that the connection manager reports to the program.

use super::{ListenerId, Path};
use crate::transport::{AddressVector, QpType};
use crate::wire::mad::{AprStatus, Ece, RejReason, ServiceId, SidrStatus};
use crate::wire::{AckTimeout, PKey, Psn, QKey, Qpn};

/// An event of a connection, a connection request or a service ID resolution.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A client requests a connection; the response is `accept`, `reject` or `delay`.
    Requested(Box<Requested>),
    /// The server accepts. The queue pair has to be brought to RTS (`rtr`, `rts`), followed by `ready` or
    /// `reject`.
    Accepted(Box<Accepted>),
    /// The client is ready and the connection is established. Carries the private data of the RTU.
    Established(Box<[u8; 224]>),
    /// The peer rejects or has given up. Last event of the connection.
    Rejected(Box<Rejection>),
    /// The peer has not responded within the agreed timeouts and retries. Last event of the connection.
    Unreachable,
    /// The peer has received the message and requests more time (MRA).
    Delayed {
        /// Time that the peer's response may take from now on.
        service_timeout: AckTimeout,
        /// Private data of the MRA.
        private_data: Box<[u8; 222]>,
    },
    /// The peer disconnects: the queue pair has to be moved to ERR, and `disconnect` confirms. Carries the
    /// private data of the DREQ.
    DisconnectRequested(Box<[u8; 220]>),
    /// The peer has confirmed our disconnect, or does not respond to it, or has ended the connection. The
    /// connection is in time-wait.
    Disconnected {
        /// Private data of the DREP; `None` if none was received.
        private_data: Option<Box<[u8; 224]>>,
    },
    /// Time-wait is over: no packet of the old connection is in flight any more, and the queue pair may be
    /// reused.
    TimeWaitOver,
    /// The peer offers an alternate path (LAP); the response is `respond_to_alternate`.
    AlternateOffered {
        /// The offered path, from our side.
        path: Path,
        /// Private data of the LAP.
        private_data: Box<[u8; 168]>,
    },
    /// The peer responds to the alternate path that we offered (APR).
    AlternateResponse {
        /// Whether the peer has loaded the path, or the reason of the rejection.
        status: AprStatus,
        /// Additional information; its meaning depends on the status.
        info: Box<[u8]>,
        /// Private data of the APR.
        private_data: Box<[u8; 148]>,
    },
    /// The peer has not responded to the alternate path that we offered; the connection persists.
    AlternateTimeout,
    /// A client requests the queue pair of a datagram service; the response is `sidr_reply`.
    SidrRequested(Box<SidrRequested>),
    /// The peer has responded to our service ID resolution. Last event of the resolution.
    SidrResponse(Box<SidrResponse>),
}

/// A connection request, from the server's side.
#[derive(Clone, PartialEq, Debug)]
pub struct Requested {
    /// The listener; `None` if the request crosses our own peer-to-peer request of this connection and
    /// replaces it.
    pub listener: Option<ListenerId>,
    /// Requested service.
    pub service: ServiceId,
    /// Transport service of the queue pairs.
    pub qp_type: QpType,
    /// Number of the peer's queue pair.
    pub remote_qpn: Qpn,
    /// First PSN that we send, which the peer has chosen.
    pub remote_psn: Psn,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// Path to the peer.
    pub path: Path,
    /// Alternate path to the peer.
    pub alternate: Option<Path>,
    /// Maximum number of inbound RDMA READs and atomics in flight to provide for: as many as the peer wants
    /// to initiate.
    pub responder_resources: u8,
    /// Maximum number of outbound RDMA READs and atomics in flight: as many as the peer has resources for.
    pub initiator_depth: u8,
    /// Whether the peer implements end-to-end flow control.
    pub flow_control: bool,
    /// Retry count of the queue pair, 0..=7.
    pub retry_count: u8,
    /// RNR retry count of the queue pair, 0..=7.
    pub rnr_retry_count: u8,
    /// CA GUID of the peer.
    pub ca_guid: u64,
    /// Vendor options of enhanced connection establishment (ECE).
    pub ece: Ece,
    /// Private data from the peer's program.
    pub private_data: [u8; 92],
}

/// The acceptance of a request, from the client's side.
#[derive(Clone, PartialEq, Debug)]
pub struct Accepted {
    /// Number of the peer's queue pair.
    pub remote_qpn: Qpn,
    /// First PSN that we send, which the peer has chosen.
    pub remote_psn: Psn,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// Maximum number of inbound RDMA READs and atomics in flight to provide for.
    pub responder_resources: u8,
    /// Maximum number of outbound RDMA READs and atomics in flight.
    pub initiator_depth: u8,
    /// Whether the peer implements end-to-end flow control.
    pub flow_control: bool,
    /// RNR retry count of the queue pair, 0..=7.
    pub rnr_retry_count: u8,
    /// Whether the peer has loaded the alternate path of the request.
    pub failover: bool,
    /// CA GUID of the peer.
    pub ca_guid: u64,
    /// Vendor options of enhanced connection establishment (ECE).
    pub ece: Ece,
    /// Private data from the peer's program.
    pub private_data: [u8; 196],
}

/// The rejection of a connection request or reply.
#[derive(Clone, PartialEq, Debug)]
pub struct Rejection {
    /// Reason code.
    pub reason: RejReason,
    /// Additional information, such as an acceptable value; its meaning depends on the reason.
    pub info: Box<[u8]>,
    /// Private data from the peer's program.
    pub private_data: [u8; 148],
}

/// A request for the queue pair of a datagram service (SIDR_REQ).
#[derive(Clone, PartialEq, Debug)]
pub struct SidrRequested {
    /// The listener.
    pub listener: ListenerId,
    /// Requested service.
    pub service: ServiceId,
    /// Partition key of the request.
    pub pkey: PKey,
    /// Address vector back to the peer.
    pub from: AddressVector,
    /// Private data from the peer's program.
    pub private_data: [u8; 216],
}

/// The response to a service ID resolution (SIDR_REP).
#[derive(Clone, PartialEq, Debug)]
pub struct SidrResponse {
    /// Whether the queue pair is valid, or the reason of the rejection.
    pub status: SidrStatus,
    /// Number of the queue pair that serves the datagrams.
    pub qpn: Qpn,
    /// Q_Key that datagrams to the queue pair must carry.
    pub qkey: QKey,
    /// Vendor options of enhanced connection establishment (ECE).
    pub ece: Ece,
    /// Additional information; its meaning depends on the status.
    pub info: Box<[u8]>,
    /// Private data from the peer's program.
    pub private_data: [u8; 136],
}
