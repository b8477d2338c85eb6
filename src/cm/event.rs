//! Events that the connection manager reports to the program.

use super::Path;
use crate::transport::{AddressVector, QpType};
use crate::wire::mad::{AprStatus, Ece, RejReason, ServiceId, SidrStatus};
use crate::wire::{AckTimeout, PKey, Psn, QKey, Qpn};

/// An event on a connection, a connection request or a service ID resolution.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A client requests a connection. The program responds with `accept`, `reject` or `delay`.
    Requested(Box<Requested>),
    /// The server has accepted the request. The program moves the queue pair to RTS (`rtr`, `rts`) and calls
    /// `ready`, or calls `reject`.
    Accepted(Box<Accepted>),
    /// The client is ready and the connection is established. Carries the private data from the RTU.
    Established(Box<[u8; 224]>),
    /// The peer has rejected the connection or given up. This is the connection's last event.
    Rejected(Box<Rejection>),
    /// The peer has failed to respond in time, despite all retransmissions. This is the connection's last
    /// event.
    Unreachable,
    /// The peer has received our message and requests more time to respond (MRA).
    Delayed {
        /// Maximum time that the peer will take to respond, counted from this message.
        service_timeout: AckTimeout,
        /// Private data from the MRA.
        private_data: Box<[u8; 222]>,
    },
    /// The peer requests a disconnect. The program moves the queue pair to ERR, and confirms with
    /// `disconnect`. Carries the private data from the DREQ.
    DisconnectRequested(Box<[u8; 220]>),
    /// The connection has ended and is in time-wait: the peer has confirmed our disconnect, has not responded
    /// to it, or has itself ended or lost the connection.
    Disconnected {
        /// Private data from the DREP; `None` if no DREP was received.
        private_data: Option<Box<[u8; 224]>>,
    },
    /// Time-wait is over: no packets of the connection are in flight any longer, and the queue pair may be
    /// reused.
    TimeWaitOver,
    /// The peer offers an alternate path (LAP). The program responds with `respond_to_alternate`.
    AlternateOffered {
        /// The offered path, as seen from our side.
        path: Path,
        /// Private data from the LAP.
        private_data: Box<[u8; 168]>,
    },
    /// The peer has responded (APR) to the alternate path that we offered.
    AlternateResponse {
        /// [`AprStatus::Loaded`], or the reason for the rejection.
        status: AprStatus,
        /// Additional information; its meaning depends on the status.
        info: Box<[u8]>,
        /// Private data from the APR.
        private_data: Box<[u8; 148]>,
    },
    /// The peer has not responded to the alternate path that we offered; the connection persists.
    AlternateTimeout,
    /// A client requests the queue pair of a datagram service (SIDR_REQ). The program responds with
    /// `sidr_reply`.
    SidrRequested(Box<SidrRequested>),
    /// The peer has responded to our service ID resolution (SIDR_REP). This is the resolution's last event.
    SidrResponse(Box<SidrResponse>),
}

/// A connection request, as received by the server.
#[derive(Clone, PartialEq, Debug)]
pub struct Requested {
    /// Whether the request has crossed our own peer-to-peer request and takes its place. Other requests are for a
    /// listener.
    pub is_peer_to_peer: bool,
    /// Requested service.
    pub service: ServiceId,
    /// Transport service of the queue pairs.
    pub qp_type: QpType,
    /// The peer's queue pair number.
    pub remote_qpn: Qpn,
    /// First PSN that we send, chosen by the peer.
    pub remote_psn: Psn,
    /// Whether the peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Path to the peer.
    pub path: Path,
    /// Alternate path to the peer.
    pub alternate: Option<Path>,
    /// Number of RDMA READs and atomics that the peer wants to have in flight, and that our queue pair should
    /// have responder resources for.
    pub responder_resources: u8,
    /// Number of RDMA READs and atomics that we may have in flight, limited by the peer's responder
    /// resources.
    pub initiator_depth: u8,
    /// Whether the peer implements end-to-end flow control.
    pub flow_control: bool,
    /// Retry count for our queue pair, 0..=7.
    pub retry_count: u8,
    /// RNR retry count for our queue pair, 0..=7.
    pub rnr_retry_count: u8,
    /// The peer's CA GUID.
    pub ca_guid: u64,
    /// Vendor options for enhanced connection establishment (ECE).
    pub ece: Ece,
    /// Private data from the peer's program.
    pub private_data: [u8; 92],
}

/// The server's acceptance of our connection request.
#[derive(Clone, PartialEq, Debug)]
pub struct Accepted {
    /// The peer's queue pair number.
    pub remote_qpn: Qpn,
    /// First PSN that we send, chosen by the peer.
    pub remote_psn: Psn,
    /// Whether the peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Maximum number of RDMA READs and atomics that the peer will have in flight.
    pub responder_resources: u8,
    /// Maximum number of RDMA READs and atomics that we may have in flight.
    pub initiator_depth: u8,
    /// Whether the peer implements end-to-end flow control.
    pub flow_control: bool,
    /// RNR retry count for our queue pair, 0..=7.
    pub rnr_retry_count: u8,
    /// Whether the peer has loaded the alternate path that our request offered.
    pub failover: bool,
    /// The peer's CA GUID.
    pub ca_guid: u64,
    /// Vendor options for enhanced connection establishment (ECE).
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
    /// Requested service.
    pub service: ServiceId,
    /// Partition key that the client requests.
    pub pkey: PKey,
    /// Address vector back to the peer.
    pub from: AddressVector,
    /// Private data from the peer's program.
    pub private_data: [u8; 216],
}

/// The response to a service ID resolution (SIDR_REP).
#[derive(Clone, PartialEq, Debug)]
pub struct SidrResponse {
    /// [`SidrStatus::Valid`], or the reason for the rejection.
    pub status: SidrStatus,
    /// Number of the queue pair to send the datagrams to.
    pub qpn: Qpn,
    /// Q_Key that datagrams to the queue pair must carry.
    pub qkey: QKey,
    /// Vendor options for enhanced connection establishment (ECE).
    pub ece: Ece,
    /// Additional information; its meaning depends on the status.
    pub info: Box<[u8]>,
    /// Private data from the peer's program.
    pub private_data: [u8; 136],
}
