//! Asynchronous events.

use super::{CqId, SrqId};
use crate::wire::Qpn;

/// Defines the events by a table of the types of their objects, their numbers and their names.
macro_rules! events {
    (
        $(#[$attribute:meta])*
        of $($id:ident: $type:ident),*;
        $($(#[$doc:meta])* $event:ident $(($object:ident: $of:ident))? = $code:literal, $name:literal;)*
    ) => {
        $(#[$attribute])*
        pub enum AsyncEvent {
            $($(#[$doc])* $event $(($object))?,)*
        }

        impl AsyncEvent {
            /// Returns one event of each kind, for the given objects.
            pub(crate) fn all($($id: $type),*) -> impl Iterator<Item = AsyncEvent> + Clone {
                [$(AsyncEvent::$event $(($of))?),*].into_iter()
            }

            /// Returns the event's value in `enum ibv_event_type`.
            pub const fn code(self) -> u32 {
                match self {
                    $(AsyncEvent::$event { .. } => $code,)*
                }
            }

            /// Returns the event's name in `enum ibv_event_type`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(AsyncEvent::$event { .. } => $name,)*
                }
            }
        }
    };
}

events! {
    /// Asynchronous event (IBA 11.6.3), with the name and number that libibverbs uses.
    ///
    /// An InfiniBand port has three more that do not apply to RoCE, which has neither LIDs nor a subnet manager:
    /// `IBV_EVENT_LID_CHANGE` (11), `IBV_EVENT_SM_CHANGE` (13) and `IBV_EVENT_CLIENT_REREGISTER` (17).
    /// `IBV_EVENT_WQ_FATAL` (19) belongs to the work queues of raw Ethernet.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[non_exhaustive]
    of qpn: Qpn, cq: CqId, srq: SrqId;
    /// A completion queue overflowed: a completion was lost, and its QP has entered the error state.
    CqError(CqId: cq) = 0, "IBV_EVENT_CQ_ERR";
    /// The QP entered the error state for a reason other than a request from its peer: its completion queue
    /// overflowed (reported after [`CqError`](Self::CqError)), or its responder could not execute a valid
    /// request because of a local error (IBA 11.6.3.4). An error reported in a completion, such as a failed
    /// send, raises no event.
    QpFatal(Qpn: qpn) = 1, "IBV_EVENT_QP_FATAL";
    /// The responder rejected an invalid request.
    QpRequestError(Qpn: qpn) = 2, "IBV_EVENT_QP_REQ_ERR";
    /// The responder denied a memory access.
    QpAccessError(Qpn: qpn) = 3, "IBV_EVENT_QP_ACCESS_ERR";
    /// A QP in RTR received its first packet.
    CommunicationEstablished(Qpn: qpn) = 4, "IBV_EVENT_COMM_EST";
    /// The send queue of a QP in SQD has drained: nothing is left in flight.
    SqDrained(Qpn: qpn) = 5, "IBV_EVENT_SQ_DRAINED";
    /// The QP has migrated to its alternate path (IBA 17.2.8).
    PathMigrated(Qpn: qpn) = 6, "IBV_EVENT_PATH_MIG";
    /// The peer has migrated to a path that is not the QP's alternate path (IBA 17.2.8).
    PathMigrateError(Qpn: qpn) = 7, "IBV_EVENT_PATH_MIG_ERR";
    /// The device has failed or been removed, and all QPs are in the error state. Objects can no longer be
    /// created, modified or posted to, but polling, querying and destroying still work, and events are still
    /// delivered.
    DeviceFatal = 8, "IBV_EVENT_DEVICE_FATAL";
    /// The port is active: it carries packets again.
    PortActive = 9, "IBV_EVENT_PORT_ACTIVE";
    /// The port is down: it carries no packets.
    PortError = 10, "IBV_EVENT_PORT_ERR";
    /// The partition key table has changed.
    PKeyChange = 12, "IBV_EVENT_PKEY_CHANGE";
    /// A shared receive queue can no longer supply receives (IBA 11.6.3). Hardware fetches receives from the
    /// application's memory, which may fail; this NIC owns its receives, so nothing raises the event. A
    /// receive whose scatter/gather elements refer to inaccessible memory causes an error on the QP whose
    /// message consumed it.
    SrqError(SrqId: srq) = 14, "IBV_EVENT_SRQ_ERR";
    /// A shared receive queue holds fewer receives than its limit.
    SrqLimit(SrqId: srq) = 15, "IBV_EVENT_SRQ_LIMIT_REACHED";
    /// A QP that uses a shared receive queue has entered the error state and consumed its last receive
    /// (IBA 10.2.9.5).
    LastWqeReached(Qpn: qpn) = 16, "IBV_EVENT_QP_LAST_WQE_REACHED";
    /// The GID table has changed.
    GidChange = 18, "IBV_EVENT_GID_CHANGE";
}

impl AsyncEvent {
    /// Returns the affected QP, if any.
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

    /// Returns the affected CQ, if any.
    pub const fn cq(self) -> Option<CqId> {
        if let AsyncEvent::CqError(id) = self { Some(id) } else { None }
    }

    /// Returns the affected shared receive queue, if any.
    pub const fn srq(self) -> Option<SrqId> {
        if let AsyncEvent::SrqError(id) | AsyncEvent::SrqLimit(id) = self { Some(id) } else { None }
    }
}
