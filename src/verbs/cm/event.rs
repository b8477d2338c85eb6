//! Events delivered on an event channel.

use std::net::SocketAddr;

use super::{CmId, ConnectionInfo};
use crate::sys::named::named;
use crate::transport::AddressVector;
use crate::wire::{QKey, Qpn};

named! {
    /// Kind of event, with the values and names of `enum rdma_cm_event_type`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u32)]
    #[non_exhaustive]
    pub enum CmEventKind {
        /// The address was resolved: a device can reach it.
        AddrResolved = 0, "RDMA_CM_EVENT_ADDR_RESOLVED";
        /// The address was not resolved: no device can reach it.
        AddrError = 1, "RDMA_CM_EVENT_ADDR_ERROR";
        /// The path to the address is known.
        RouteResolved = 2, "RDMA_CM_EVENT_ROUTE_RESOLVED";
        /// There is no path to the address.
        RouteError = 3, "RDMA_CM_EVENT_ROUTE_ERROR";
        /// A peer requests a connection; the event carries a new id for the connection.
        ConnectRequest = 4, "RDMA_CM_EVENT_CONNECT_REQUEST";
        /// The peer has accepted. The caller moves its queue pair to RTS, then calls [`CmId::establish`].
        ConnectResponse = 5, "RDMA_CM_EVENT_CONNECT_RESPONSE";
        /// This side failed to establish the connection.
        ConnectError = 6, "RDMA_CM_EVENT_CONNECT_ERROR";
        /// The peer did not respond.
        Unreachable = 7, "RDMA_CM_EVENT_UNREACHABLE";
        /// The peer rejected the connection.
        Rejected = 8, "RDMA_CM_EVENT_REJECTED";
        /// The connection is established.
        Established = 9, "RDMA_CM_EVENT_ESTABLISHED";
        /// The connection has ended.
        Disconnected = 10, "RDMA_CM_EVENT_DISCONNECTED";
        /// The id's device has failed permanently, which ended any connection; the id can only be destroyed.
        /// Ids on the wildcard address continue on the other devices and do not report this event.
        DeviceRemoval = 11, "RDMA_CM_EVENT_DEVICE_REMOVAL";
        /// The id has joined the multicast group.
        MulticastJoin = 12, "RDMA_CM_EVENT_MULTICAST_JOIN";
        /// The multicast group could not be joined, or membership was lost.
        MulticastError = 13, "RDMA_CM_EVENT_MULTICAST_ERROR";
        /// The device has lost the id's address, so the id's packets are no longer sent. The id should be
        /// destroyed.
        AddrChange = 14, "RDMA_CM_EVENT_ADDR_CHANGE";
        /// Time-wait is over, so that the queue pair number may be reused.
        TimewaitExit = 15, "RDMA_CM_EVENT_TIMEWAIT_EXIT";
        /// `rdma_resolve_addrinfo` has resolved a name. Only the C library reports it.
        AddrInfoResolved = 16, "RDMA_CM_EVENT_ADDRINFO_RESOLVED";
        /// `rdma_resolve_addrinfo` has not resolved a name. Only the C library reports it.
        AddrInfoError = 17, "RDMA_CM_EVENT_ADDRINFO_ERROR";
        /// An event of the program's own ([`CmId::write_event`]).
        User = 18, "RDMA_CM_EVENT_USER";
        /// Outcome of [`CmId::load_alternate`]: status 0 if both sides have loaded the path, otherwise the
        /// peer's reason (IBA 12.8.2.1) or a negative error number. librdmacm has neither this event nor that
        /// call.
        AlternatePath = 256, "alternate path";
    }
}

/// An event reported for an id.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CmEvent {
    /// The affected id; for a connection request, the new id.
    pub id: CmId,
    /// For a connection request, the listening id.
    pub listen_id: Option<CmId>,
    /// Kind of the event.
    pub kind: CmEventKind,
    /// Cause of a failure: a negative error number, or the reason for a rejection.
    pub status: i32,
    /// Event-specific parameters.
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
    /// Parameters of a datagram destination or multicast group.
    Datagram(Datagram),
    /// Argument of the program's own event.
    User(u64),
}

impl EventParam {
    /// Returns the peer's private data; empty if there is none.
    pub fn private_data(&self) -> &[u8] {
        match self {
            EventParam::Connection(of) => &of.private_data,
            EventParam::Datagram(of) => &of.private_data,
            EventParam::None | EventParam::User(_) => &[],
        }
    }
}

/// Destination for datagrams: a peer or a multicast group.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Datagram {
    /// Private data from the peer's program, zero-padded to the size of the message field.
    pub private_data: Vec<u8>,
    /// Address vector of the destination.
    pub address: AddressVector,
    /// Destination queue pair number.
    pub qp_num: Qpn,
    /// Q_Key of the destination.
    pub qkey: QKey,
    /// Address of the multicast group, as passed when joining.
    pub group: Option<SocketAddr>,
}

impl Datagram {
    /// Returns a destination without a queue pair, with private data from its program.
    pub(super) fn at(address: AddressVector, private_data: &[u8]) -> Datagram {
        let (private_data, qp_num, qkey) = (private_data.to_vec(), Qpn::default(), QKey::default());
        Datagram { private_data, address, qp_num, qkey, group: None }
    }
}
