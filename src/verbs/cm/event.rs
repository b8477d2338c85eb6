//! Events that an event channel delivers.

use std::net::SocketAddr;

use super::CmId;
use crate::transport::AddressVector;
use crate::wire::{QKey, Qpn};

/// Kind of an event, with the numbers of `enum rdma_cm_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
#[non_exhaustive]
pub enum CmEventKind {
    /// A device leads to the address.
    AddrResolved = 0,
    /// No device leads to the address.
    AddrError = 1,
    /// The path to the address is known.
    RouteResolved = 2,
    /// There is no path to the address.
    RouteError = 3,
    /// A peer requests a connection; the event carries a new id for it.
    ConnectRequest = 4,
    /// The peer accepts. The caller drives the queue pair to RTS, then calls [`CmId::establish`].
    ConnectResponse = 5,
    /// Establishing the connection failed on this side.
    ConnectError = 6,
    /// The peer does not respond.
    Unreachable = 7,
    /// The peer rejects the connection.
    Rejected = 8,
    /// The connection is established.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The device of the id has failed permanently, and the id's connection with it; the id can only be
    /// destroyed. Ids on the wildcard address continue on the other devices, and do not report this event.
    DeviceRemoval = 11,
    /// The multicast group is joined.
    MulticastJoin = 12,
    /// The multicast group could not be joined, or is lost.
    MulticastError = 13,
    /// The device no longer has the address of the id, whose packets are not sent any more. The id should be
    /// destroyed.
    AddrChange = 14,
    /// Time-wait is over, and the number of the queue pair may be reused.
    TimewaitExit = 15,
    /// Outcome of [`CmId::load_alternate`]: status 0 if both sides have loaded the path, otherwise the peer's
    /// reason (IBA 12.8.2.1) or a negative error number. librdmacm has neither this event nor the call.
    AlternatePath = 256,
}

impl CmEventKind {
    /// Returns the name in `enum rdma_cm_event_type`.
    pub const fn name(self) -> &'static str {
        match self {
            CmEventKind::AddrResolved => "RDMA_CM_EVENT_ADDR_RESOLVED",
            CmEventKind::AddrError => "RDMA_CM_EVENT_ADDR_ERROR",
            CmEventKind::RouteResolved => "RDMA_CM_EVENT_ROUTE_RESOLVED",
            CmEventKind::RouteError => "RDMA_CM_EVENT_ROUTE_ERROR",
            CmEventKind::ConnectRequest => "RDMA_CM_EVENT_CONNECT_REQUEST",
            CmEventKind::ConnectResponse => "RDMA_CM_EVENT_CONNECT_RESPONSE",
            CmEventKind::ConnectError => "RDMA_CM_EVENT_CONNECT_ERROR",
            CmEventKind::Unreachable => "RDMA_CM_EVENT_UNREACHABLE",
            CmEventKind::Rejected => "RDMA_CM_EVENT_REJECTED",
            CmEventKind::Established => "RDMA_CM_EVENT_ESTABLISHED",
            CmEventKind::Disconnected => "RDMA_CM_EVENT_DISCONNECTED",
            CmEventKind::DeviceRemoval => "RDMA_CM_EVENT_DEVICE_REMOVAL",
            CmEventKind::MulticastJoin => "RDMA_CM_EVENT_MULTICAST_JOIN",
            CmEventKind::MulticastError => "RDMA_CM_EVENT_MULTICAST_ERROR",
            CmEventKind::AddrChange => "RDMA_CM_EVENT_ADDR_CHANGE",
            CmEventKind::TimewaitExit => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
            CmEventKind::AlternatePath => "alternate path",
        }
    }
}

/// An event that concerns an id.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CmEvent {
    /// The id that the event concerns; for a connection request, the new id.
    pub id: CmId,
    /// The listening id of a connection request.
    pub listen_id: Option<CmId>,
    /// Kind of the event.
    pub kind: CmEventKind,
    /// Cause of a failure: a negative error number, or the reason of a rejection.
    pub status: i32,
    /// Parameters that belong to the event.
    pub param: EventParam,
}

impl CmEvent {
    /// Returns the peer's private data; empty if there is none.
    pub fn private_data(&self) -> &[u8] {
        self.param.private_data()
    }
}

/// Data of an event.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum EventParam {
    /// The event has no data.
    #[default]
    None,
    /// Parameters of a connection.
    Connection(ConnectionInfo),
    /// Parameters of a datagram service or multicast group.
    Datagram(Datagram),
}

impl EventParam {
    /// Returns the peer's private data; empty if there is none.
    pub fn private_data(&self) -> &[u8] {
        match self {
            EventParam::Connection(of) => &of.private_data,
            EventParam::Datagram(of) => &of.private_data,
            EventParam::None => &[],
        }
    }
}

/// Connection parameters that the peer requests or grants, as seen from this side, so that an acceptance can
/// return them unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Private data from the peer's program, padded with zeros to the size of the message field.
    pub private_data: Vec<u8>,
    /// Maximum number of READs and atomics that the peer will have in flight.
    pub responder_resources: u8,
    /// Maximum number of READs and atomics that the peer accepts at a time.
    pub initiator_depth: u8,
    /// Whether end-to-end flow control is in use.
    pub flow_control: bool,
    /// Number of retries after a timeout.
    pub retry_count: u8,
    /// Number of retries after an RNR NAK.
    pub rnr_retry_count: u8,
    /// Whether the peer's receives come from a shared receive queue.
    pub srq: bool,
    /// Number of the peer's queue pair.
    pub qp_num: Qpn,
}

/// Destination of datagrams to a peer or a multicast group.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Datagram {
    /// Private data from the peer's program, padded with zeros to the size of the message field.
    pub private_data: Vec<u8>,
    /// Address vector of the destination.
    pub address: AddressVector,
    /// Number of the destination queue pair.
    pub qp_num: Qpn,
    /// Q_Key of the destination queue pair.
    pub qkey: QKey,
    /// Address of the multicast group, as given to the join.
    pub group: Option<SocketAddr>,
}
