//! What an event channel brings.

use std::net::SocketAddr;

use super::CmId;
use crate::transport::AddressVector;
use crate::wire::{QKey, Qpn};

/// What happened, with the numbers of `enum rdma_cm_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum CmEventKind {
    /// The address has a device.
    AddrResolved = 0,
    /// It has none.
    AddrError = 1,
    /// The path is known.
    RouteResolved = 2,
    /// There is none.
    RouteError = 3,
    /// A peer wants to connect: the event has a new id for that.
    ConnectRequest = 4,
    /// The peer accepts; the queue pair is the caller's to drive, who then calls [`CmId::establish`].
    ConnectResponse = 5,
    /// Connecting went wrong on this side.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer refuses.
    Rejected = 8,
    /// Both can talk.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The device is gone for good, and so is the id's connection: nothing is left but to destroy the id. Ids on all
    /// addresses go on with other devices, and are not told.
    DeviceRemoval = 11,
    /// The group is joined.
    MulticastJoin = 12,
    /// It cannot be, or is no more.
    MulticastError = 13,
    /// The address is no longer the device's: what the id sends does not leave. It is to be destroyed.
    AddrChange = 14,
    /// The queue pair's number may be used again.
    TimewaitExit = 15,
    /// The path of [`CmId::load_alternate`] is loaded on both sides, with status 0; or it is not, with the peer's reason
    /// (IBA 12.8.2.1) or a negative error number. librdmacm has no such event, nor the call that it answers.
    AlternatePath = 256,
}

impl CmEventKind {
    /// Its name in `enum rdma_cm_event_type`.
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

/// An event of an id.
#[derive(Clone, Debug)]
pub struct CmEvent {
    /// The id that the event concerns; of a connection request, the new id.
    pub id: CmId,
    /// Of a connection request, the id that listens.
    pub listen_id: Option<CmId>,
    /// What happened.
    pub kind: CmEventKind,
    /// Why, where something failed: a negative error number, or the reason of a reject.
    pub status: i32,
    /// What came with it.
    pub param: EventParam,
}

impl CmEvent {
    /// The peer's private data; empty if there is none.
    pub fn private_data(&self) -> &[u8] {
        self.param.private_data()
    }
}

/// What comes with an event.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum EventParam {
    /// Nothing.
    #[default]
    None,
    /// Of connections.
    Connection(Connection),
    /// Of datagrams.
    Datagram(Datagram),
}

impl EventParam {
    /// The peer's private data; empty if there is none.
    pub fn private_data(&self) -> &[u8] {
        match self {
            EventParam::Connection(of) => &of.private_data,
            EventParam::Datagram(of) => &of.private_data,
            EventParam::None => &[],
        }
    }
}

/// What the peer of a connection asks for, or grants: seen from this side, so that an answer may repeat it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Connection {
    /// What the peer's program sent, with the zeros that fill up the message.
    pub private_data: Vec<u8>,
    /// READs and atomics that the peer will have in flight.
    pub responder_resources: u8,
    /// READs and atomics that the peer takes at a time.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries after a timeout.
    pub retry_count: u8,
    /// Retries after a receiver-not-ready.
    pub rnr_retry_count: u8,
    /// The peer's receives come from a shared queue.
    pub srq: bool,
    /// The peer's queue pair.
    pub qp_num: Qpn,
}

/// Where datagrams to a peer, or to a group, go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// What the peer's program sent, with the zeros that fill up the message.
    pub private_data: Vec<u8>,
    /// The path.
    pub address: AddressVector,
    /// The queue pair there.
    pub qp_num: Qpn,
    /// Its queue key.
    pub qkey: QKey,
    /// Of multicast, the group as it was given.
    pub group: Option<SocketAddr>,
}
