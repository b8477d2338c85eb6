use super::{CqId, SrqId};
use crate::wire::Qpn;

/// What happened beside completions (IBA 11.6.3), with the names and numbers of verbs.
///
/// A port of InfiniBand has three more, which RoCE has no cause for, as it has neither LIDs nor a subnet
/// manager: `IBV_EVENT_LID_CHANGE` (11), `IBV_EVENT_SM_CHANGE` (13) and `IBV_EVENT_CLIENT_REREGISTER` (17).
/// `IBV_EVENT_WQ_FATAL` (19) is of the work queues of raw Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AsyncEvent {
    /// A completion queue was full when a completion came: that one is lost, and its QP is in the error state.
    CqError(CqId),
    /// The QP went to the error state through no request of its peer: a completion of it found its completion queue full
    /// (after [`CqError`](Self::CqError)), or its responder could not execute a valid request on local resources
    /// (IBA 11.6.3.4). An error that a completion reports, such as a failed send, raises no event.
    QpFatal(Qpn),
    /// The responder refused an invalid request.
    QpRequestError(Qpn),
    /// The responder refused an access to memory.
    QpAccessError(Qpn),
    /// The first packet reached a QP that is ready to receive.
    CommunicationEstablished(Qpn),
    /// The send queue of a QP in SQD has nothing in flight any more.
    SqDrained(Qpn),
    /// The QP goes on by its alternate path (IBA 17.2.8).
    PathMigrated(Qpn),
    /// The alternate path of the QP that a peer asks for is not there (IBA 17.2.8).
    PathMigrateError(Qpn),
    /// The device has failed or was removed: all QPs are in the error state. Creating, modifying and posting are refused;
    /// polling, events, queries and destruction go on.
    DeviceFatal,
    /// The port carries packets again.
    PortActive,
    /// The port carries no packets.
    PortError,
    /// The partition key table has changed.
    PKeyChange,
    /// No receive can be taken from a shared receive queue any more (IBA 11.6.3). Hardware fetches receives
    /// from the application's memory, and that may fail; here they are the NIC's own, so nothing raises it. A
    /// receive that names memory it may not have is an error of the QP whose message took it.
    SrqError(SrqId),
    /// Fewer receives are left in a shared receive queue than its limit.
    SrqLimit(SrqId),
    /// A QP on a shared receive queue is in the error state and has had its last receive (IBA 10.2.9.5).
    LastWqeReached(Qpn),
    /// The GID table has changed.
    GidChange,
}

impl AsyncEvent {
    const fn row(self) -> (u32, &'static str) {
        match self {
            AsyncEvent::CqError(_) => (0, "IBV_EVENT_CQ_ERR"),
            AsyncEvent::QpFatal(_) => (1, "IBV_EVENT_QP_FATAL"),
            AsyncEvent::QpRequestError(_) => (2, "IBV_EVENT_QP_REQ_ERR"),
            AsyncEvent::QpAccessError(_) => (3, "IBV_EVENT_QP_ACCESS_ERR"),
            AsyncEvent::CommunicationEstablished(_) => (4, "IBV_EVENT_COMM_EST"),
            AsyncEvent::SqDrained(_) => (5, "IBV_EVENT_SQ_DRAINED"),
            AsyncEvent::PathMigrated(_) => (6, "IBV_EVENT_PATH_MIG"),
            AsyncEvent::PathMigrateError(_) => (7, "IBV_EVENT_PATH_MIG_ERR"),
            AsyncEvent::DeviceFatal => (8, "IBV_EVENT_DEVICE_FATAL"),
            AsyncEvent::PortActive => (9, "IBV_EVENT_PORT_ACTIVE"),
            AsyncEvent::PortError => (10, "IBV_EVENT_PORT_ERR"),
            AsyncEvent::PKeyChange => (12, "IBV_EVENT_PKEY_CHANGE"),
            AsyncEvent::SrqError(_) => (14, "IBV_EVENT_SRQ_ERR"),
            AsyncEvent::SrqLimit(_) => (15, "IBV_EVENT_SRQ_LIMIT_REACHED"),
            AsyncEvent::LastWqeReached(_) => (16, "IBV_EVENT_QP_LAST_WQE_REACHED"),
            AsyncEvent::GidChange => (18, "IBV_EVENT_GID_CHANGE"),
        }
    }

    /// Its number in `enum ibv_event_type`.
    pub const fn code(self) -> u32 {
        self.row().0
    }

    /// Its name in `enum ibv_event_type`.
    pub const fn name(self) -> &'static str {
        self.row().1
    }

    /// The QP that it is about, if it is about one.
    pub const fn qpn(self) -> Option<Qpn> {
        match self {
            AsyncEvent::QpFatal(qpn)
            | AsyncEvent::QpRequestError(qpn)
            | AsyncEvent::QpAccessError(qpn)
            | AsyncEvent::CommunicationEstablished(qpn)
            | AsyncEvent::SqDrained(qpn)
            | AsyncEvent::PathMigrated(qpn)
            | AsyncEvent::PathMigrateError(qpn)
            | AsyncEvent::LastWqeReached(qpn) => Some(qpn),
            _ => None,
        }
    }

    /// The CQ that it is about, if it is about one.
    pub const fn cq(self) -> Option<CqId> {
        if let AsyncEvent::CqError(id) = self { Some(id) } else { None }
    }

    /// The shared receive queue that it is about, if it is about one.
    pub const fn srq(self) -> Option<SrqId> {
        if let AsyncEvent::SrqError(id) | AsyncEvent::SrqLimit(id) = self { Some(id) } else { None }
    }
}
