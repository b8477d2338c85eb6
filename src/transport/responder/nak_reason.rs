//! NAK reasons and their consequences for the responder: the error classes of IBA 9.9.3 in one table.

use crate::transport::connection::Connection;
use crate::transport::{AsyncEvent, Counters, WcStatus};
use crate::wire::{NakCode, Qpn, Syndrome};

/// Constructor of an asynchronous event for a queue pair.
pub type EventOf = fn(Qpn) -> AsyncEvent;

/// Reason for not executing a request (NAK reason, error class).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NakReason {
    /// An earlier PSN is missing.
    OutOfSequence,
    /// No receive is posted (RNR).
    ReceiverNotReady,
    /// Invalid opcode, opcode sequence or length, or too many outstanding READs and atomics.
    InvalidRequest,
    /// The message is longer than the receive's buffers.
    LengthError,
    /// Key, range or permission violation on the memory that the request refers to.
    Access,
    /// The receive's scatter/gather elements refer to memory that the QP may not access.
    LocalProtection,
    /// The memory cannot be accessed, does not support atomics, or cannot be made persistent.
    RemoteOperational,
    /// The message has arrived, but the key that it names for invalidation cannot be invalidated (class J).
    Invalidation,
}

/// Consequences of a NAK reason.
pub(super) struct NakAction {
    pub syndrome: Syndrome,
    pub counter: fn(&mut Counters) -> &mut u64,
    /// Consequences of a fatal reason, which moves the QP to the error state; `None` if the reason is not
    /// fatal.
    pub fatal: Option<FatalConsequence>,
}

pub(super) struct FatalConsequence {
    /// Completion status of the receive in use, if any.
    pub receive_status: WcStatus,
    pub event: Option<EventOf>,
}

impl NakReason {
    pub fn action(self, conn: &Connection) -> NakAction {
        let fatal = |receive_status, event| Some(FatalConsequence { receive_status, event });
        match self {
            NakReason::OutOfSequence => NakAction {
                syndrome: Syndrome::Nak(NakCode::PsnSequenceError),
                counter: |c| &mut c.out_of_seq_request,
                fatal: None,
            },
            NakReason::ReceiverNotReady => NakAction {
                syndrome: Syndrome::RnrNak(conn.attr.min_rnr_timer),
                counter: |c| &mut c.send_rnr_err,
                fatal: None,
            },
            NakReason::InvalidRequest => NakAction {
                syndrome: Syndrome::Nak(NakCode::InvalidRequest),
                counter: |c| &mut c.resp_invalid_request,
                fatal: fatal(WcStatus::RemInvReqErr, Some(AsyncEvent::QpRequestError as EventOf)),
            },
            NakReason::LengthError => NakAction {
                syndrome: Syndrome::Nak(conn.quirks().too_long),
                counter: |c| &mut c.resp_invalid_request,
                fatal: fatal(WcStatus::LocLenErr, None),
            },
            NakReason::Access => NakAction {
                syndrome: Syndrome::Nak(NakCode::RemoteAccessError),
                counter: |c| &mut c.resp_remote_access_err,
                fatal: fatal(WcStatus::LocAccessErr, Some(AsyncEvent::QpAccessError as EventOf)),
            },
            NakReason::LocalProtection => NakAction {
                syndrome: Syndrome::Nak(NakCode::RemoteOperationalError),
                counter: |c| &mut c.resp_local_err,
                fatal: fatal(WcStatus::LocProtErr, None),
            },
            // The request was executed, so it is acknowledged.
            NakReason::Invalidation => NakAction {
                syndrome: Syndrome::ACK,
                counter: |c| &mut c.resp_remote_access_err,
                fatal: fatal(WcStatus::RemInvReqErr, None),
            },
            NakReason::RemoteOperational => NakAction {
                syndrome: Syndrome::Nak(NakCode::RemoteOperationalError),
                counter: |c| &mut c.resp_local_err,
                fatal: fatal(WcStatus::LocQpOpErr, Some(AsyncEvent::QpFatal as EventOf)),
            },
        }
    }

    /// Reports whether only the first request after a gap is NAKed.
    pub fn is_once_per_gap(self) -> bool {
        self == NakReason::OutOfSequence
    }

    /// Reports whether this reason also fails the oldest receive, even if no multi-packet message has
    /// consumed it.
    pub fn is_of_receive(self) -> bool {
        matches!(self, NakReason::LengthError | NakReason::LocalProtection | NakReason::Invalidation)
    }
}
