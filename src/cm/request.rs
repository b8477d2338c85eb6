//! Parameters of connection manager calls: paths and requests.

use crate::transport::{AddressVector, QpType};
use crate::wire::mad::{Ece, ServiceId};
use crate::wire::{AckTimeout, Mtu, PKey, Psn, Qpn};

/// Maximum time that either side may take to respond to a CM message: 4.3 s, as in `rdma_cm`.
pub(super) const RESPONSE_TIMEOUT: AckTimeout = AckTimeout::new(20);
/// Maximum number of retransmissions of a CM message, as in `rdma_cm`.
pub(super) const MAX_CM_RETRIES: u8 = 15;

/// A path to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// Address vector: destination, and index of the source GID.
    pub av: AddressVector,
    /// Path MTU.
    pub mtu: Mtu,
    /// Maximum lifetime of a packet, as a timeout code: 18 is one second.
    pub packet_life: AckTimeout,
    /// Partition key.
    pub pkey: PKey,
}

impl Path {
    /// Creates a path to the destination of `av`, with the packet lifetime that `rdma_cm` uses on RoCE, and
    /// the default partition key.
    pub const fn to(av: AddressVector, mtu: Mtu) -> Path {
        Path { av, mtu, packet_life: AckTimeout::new(18), pkey: PKey::DEFAULT }
    }
}

/// The local queue pair of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalQp {
    /// Queue pair number.
    pub qpn: Qpn,
    /// First PSN that the peer sends to the queue pair.
    pub psn: Psn,
    /// Whether the queue pair uses a shared receive queue.
    pub srq: bool,
}

/// Parameters of a connection request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Requested service.
    pub service: ServiceId,
    /// Transport service of the queue pairs: any except UD, which uses `sidr_request` instead.
    pub qp_type: QpType,
    /// Our queue pair.
    pub qp: LocalQp,
    /// Path to the peer.
    pub path: Path,
    /// Alternate path, for automatic path migration.
    pub alternate: Option<Path>,
    /// Maximum number of RDMA READs and atomics that the peer may have in flight.
    pub responder_resources: u8,
    /// Maximum number of RDMA READs and atomics that we may have in flight.
    pub initiator_depth: u8,
    /// Whether end-to-end flow control is in use.
    pub flow_control: bool,
    /// Retry count for both queue pairs, 0..=7.
    pub retry_count: u8,
    /// RNR retry count for the peer's queue pair, 0..=7: how often it retries after an RNR NAK from us.
    pub rnr_retry_count: u8,
    /// Vendor options for enhanced connection establishment (ECE).
    pub ece: Ece,
    /// Whether the peer may request the same service from us at the same time; both requests then establish
    /// a single connection (IBA 12.10.4).
    pub peer_to_peer: bool,
    /// Private data for the peer's program, up to 92 bytes.
    pub private_data: &'a [u8],
}

impl<'a> Request<'a> {
    /// Creates a request for a reliable connection to `service`, with the defaults of `rdma_cm` for all other
    /// fields.
    pub fn new(service: ServiceId, qp: LocalQp, path: Path, private_data: &'a [u8]) -> Request<'a> {
        Request {
            service,
            qp_type: QpType::Rc,
            qp,
            path,
            alternate: None,
            responder_resources: 16,
            initiator_depth: 16,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            ece: Ece::default(),
            peer_to_peer: false,
            private_data,
        }
    }
}
