//! Events that the connection manager reports to the program.

use super::Path;
use crate::transport::QpType;
use crate::wire::Qpn;
use crate::wire::mad::{AprStatus, Ece, Mra, Rej, ServiceId, SidrRep};

/// An event on a connection, a connection request or a service ID resolution.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A client requests a connection (REQ), to which the program responds with `accept` or `reject`, or the
    /// queue pair of a datagram service (SIDR_REQ), to which the program responds with `sidr_reply`.
    Requested(Box<Requested>),
    /// The server has accepted the request. The program moves the queue pair to RTS (`rtr`, `rts`) and calls
    /// `ready`, or calls `reject`.
    Accepted {
        /// Parameters of the connection.
        info: ConnectionInfo,
        /// Vendor options for enhanced connection establishment (ECE).
        ece: Ece,
    },
    /// The client is ready and the connection is established.
    Established,
    /// The peer has rejected the connection or given up. This is the connection's last event.
    Rejected(Box<Rej>),
    /// The peer has failed to respond in time, despite all retransmissions. This is the connection's last
    /// event.
    Unreachable,
    /// The peer has received our message and requests more time to respond.
    Delayed(Box<Mra>),
    /// The peer requests a disconnect. The program moves the queue pair to ERR, and confirms with
    /// `disconnect`.
    DisconnectRequested,
    /// The connection has ended and is in time-wait: the peer has confirmed our disconnect, has not responded
    /// to it, or has itself ended or lost the connection.
    Disconnected,
    /// Time-wait is over: no packets of the connection are in flight any longer, and the queue pair may be
    /// reused.
    TimeWaitOver,
    /// The peer offers an alternate path (LAP), given as seen from our side. The program responds with
    /// `respond_to_alternate`.
    AlternateOffered(Path),
    /// The peer has responded to the alternate path that we offered.
    AlternateResponse(AprStatus),
    /// The peer has not responded to the alternate path that we offered; the connection persists.
    AlternateTimeout,
    /// The peer has responded to our service ID resolution. This is the resolution's last event.
    SidrResponse {
        /// The response.
        rep: Box<SidrRep>,
        /// Vendor options for enhanced connection establishment (ECE).
        ece: Ece,
    },
}

/// A request of a client, as received by the server.
#[derive(Clone, PartialEq, Debug)]
pub struct Requested {
    /// Whether the request has crossed our own peer-to-peer request and takes its place. Other requests are
    /// for a listener.
    pub is_peer_to_peer: bool,
    /// Requested service.
    pub service: ServiceId,
    /// Transport service of the queue pairs; UD for a datagram service.
    pub qp_type: QpType,
    /// Path to the peer.
    pub path: Path,
    /// Vendor options for enhanced connection establishment (ECE).
    pub ece: Ece,
    /// Parameters of the connection. For a datagram service, only the private data is set.
    pub info: ConnectionInfo,
}

/// Connection parameters requested or granted by the peer, as seen from this side, so that they can be
/// returned unchanged when accepting.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Private data from the peer's program, zero-padded to the size of the message field.
    pub private_data: Vec<u8>,
    /// Maximum number of the peer's READs and atomics in flight.
    pub responder_resources: u8,
    /// Maximum number of this side's READs and atomics in flight.
    pub initiator_depth: u8,
    /// Whether end-to-end flow control is in use.
    pub flow_control: bool,
    /// Number of retries after a timeout, 0..=7.
    pub retry_count: u8,
    /// Number of retries after an RNR NAK, 0..=7, where 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// The peer's queue pair number.
    pub qp_num: Qpn,
}
