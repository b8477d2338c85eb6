//! What a program gives the connection manager.

use crate::transport::{AddressVector, QpType};
use crate::wire::mad::{Ece, ServiceId, SidrStatus};
use crate::wire::{AckTimeout, Mtu, PKey, Psn, QKey, Qpn};

/// How long a peer may take to answer, 4.3 s, and how often it is asked again, as `rdma_cm` has it.
pub(super) const RESPONSE_TIMEOUT: AckTimeout = AckTimeout::new(20);
const MAX_CM_RETRIES: u8 = 15;

/// A path to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// Where packets go, and from which of our GIDs.
    pub av: AddressVector,
    /// The path MTU.
    pub mtu: Mtu,
    /// How long a packet takes at most, as a code: 18 is a second.
    pub packet_life: AckTimeout,
    /// The partition.
    pub pkey: PKey,
}

impl Path {
    /// To where `av` says, all else as `rdma_cm` has it on RoCE.
    pub const fn to(av: AddressVector, mtu: Mtu) -> Path {
        Path { av, mtu, packet_life: AckTimeout::new(18), pkey: PKey::DEFAULT }
    }
}

/// Our queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalQp {
    /// Its number.
    pub qpn: Qpn,
    /// The first PSN that the peer is to send to it.
    pub psn: Psn,
    /// Its receives come from a shared queue.
    pub srq: bool,
}

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The service.
    pub service: ServiceId,
    /// The service of the queue pairs: all but UD, which [`SidrRequest`] is for.
    pub qp_type: QpType,
    /// Our queue pair.
    pub qp: LocalQp,
    /// The path.
    pub path: Path,
    /// Another one, for automatic path migration.
    pub alternate: Option<Path>,
    /// READs and atomics that we answer at once.
    pub responder_resources: u8,
    /// READs and atomics that we ask at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// The queue pairs' retries, 0..=7.
    pub retry_count: u8,
    /// The peer's retries after our receiver-not-ready, 0..=7.
    pub rnr_retry_count: u8,
    /// How long the peer may take to answer a message, and we.
    pub response_timeout: AckTimeout,
    /// How often a message is repeated, 0..=15.
    pub max_cm_retries: u8,
    /// Options of a vendor.
    pub ece: Ece,
    /// The peer may ask us for the same at the same time, and one connection comes of it (IBA 12.10.4).
    pub peer_to_peer: bool,
    /// For the peer's program: up to 92 bytes.
    pub private_data: &'a [u8],
}

impl<'a> Request<'a> {
    /// A reliable connection to `service`, all else as `rdma_cm` has it.
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
            response_timeout: RESPONSE_TIMEOUT,
            max_cm_retries: MAX_CM_RETRIES,
            ece: Ece::default(),
            peer_to_peer: false,
            private_data,
        }
    }
}

/// How a server accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply<'a> {
    /// Our queue pair.
    pub qp: LocalQp,
    /// READs and atomics that we answer at once.
    pub responder_resources: u8,
    /// READs and atomics that we ask at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// The peer's retries after our receiver-not-ready, 0..=7.
    pub rnr_retry_count: u8,
    /// The alternate path of the request, if there was one, is loaded.
    pub failover: bool,
    /// Options of a vendor.
    pub ece: Ece,
    /// For the peer's program: up to 196 bytes.
    pub private_data: &'a [u8],
}

/// A question for the queue pair of a datagram service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrRequest<'a> {
    /// The service.
    pub service: ServiceId,
    /// Where to ask.
    pub path: Path,
    /// How long the peer may take to answer.
    pub response_timeout: AckTimeout,
    /// How often the question is repeated, 0..=15.
    pub max_cm_retries: u8,
    /// For the peer's program: up to 216 bytes.
    pub private_data: &'a [u8],
}

impl<'a> SidrRequest<'a> {
    /// For `service`, all else as `rdma_cm` has it.
    pub fn new(service: ServiceId, path: Path, private_data: &'a [u8]) -> SidrRequest<'a> {
        let (response_timeout, max_cm_retries) = (RESPONSE_TIMEOUT, MAX_CM_RETRIES);
        SidrRequest { service, path, response_timeout, max_cm_retries, private_data }
    }
}

/// The answer to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrReply<'a> {
    /// [`SidrStatus::Valid`], or why not.
    pub status: SidrStatus,
    /// The queue pair.
    pub qpn: Qpn,
    /// The key that its datagrams need.
    pub qkey: QKey,
    /// Options of a vendor.
    pub ece: Ece,
    /// Up to 72 bytes, by the status.
    pub info: &'a [u8],
    /// For the peer's program: up to 136 bytes.
    pub private_data: &'a [u8],
}
