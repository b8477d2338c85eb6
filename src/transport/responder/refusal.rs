//! NAK reasons of a responder and their consequences: the error classes of IBA 9.9.3 in one table.

use super::EventOf;
use crate::transport::connection::Connection;
use crate::transport::{AsyncEvent, Counters, WcStatus};
use crate::wire::{NakCode, Syndrome};

/// Reason why a request is not executed (NAK reason, error class).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// An earlier PSN is missing.
    OutOfSequence,
    /// No receive is posted (RNR).
    NotReady,
    /// Wrong opcode sequence, length or opcode, or too many outstanding requests.
    Invalid,
    /// The message exceeds the buffers of the receive.
    TooLong,
    /// Key, range or permission violation of the memory that the request names.
    Access,
    /// The elements of the receive name memory that the QP may not access.
    LocalProtection,
    /// The memory cannot be accessed, cannot execute an atomic or cannot be made persistent.
    Operational,
    /// The message has arrived, but the key that it invalidates cannot be invalidated (class J).
    Invalidation,
}

/// Consequence of a NAK reason.
pub(super) struct Consequence {
    pub syndrome: Syndrome,
    pub counter: fn(&mut Counters) -> &mut u64,
    /// Failure of the QP, which enters the error state.
    pub fatal: Option<FatalConsequence>,
}

pub(super) struct FatalConsequence {
    /// Completion status of the receive in use, if any.
    pub receive_status: WcStatus,
    pub event: Option<EventOf>,
}

impl Refusal {
    pub fn consequence(self, conn: &Connection) -> Consequence {
        let fatal = |receive_status, event| Some(FatalConsequence { receive_status, event });
        match self {
            Refusal::OutOfSequence => Consequence {
                syndrome: Syndrome::Nak(NakCode::PsnSequenceError),
                counter: |c| &mut c.out_of_seq_request,
                fatal: None,
            },
            Refusal::NotReady => Consequence {
                syndrome: Syndrome::RnrNak(conn.min_rnr_timer),
                counter: |c| &mut c.send_rnr_err,
                fatal: None,
            },
            Refusal::Invalid => Consequence {
                syndrome: Syndrome::Nak(NakCode::InvalidRequest),
                counter: |c| &mut c.resp_invalid_request,
                fatal: fatal(WcStatus::RemInvReqErr, Some(AsyncEvent::QpRequestError as EventOf)),
            },
            Refusal::TooLong => Consequence {
                syndrome: Syndrome::Nak(conn.habits().too_long),
                counter: |c| &mut c.resp_invalid_request,
                fatal: fatal(WcStatus::LocLenErr, None),
            },
            Refusal::Access => Consequence {
                syndrome: Syndrome::Nak(NakCode::RemoteAccessError),
                counter: |c| &mut c.resp_remote_access_err,
                fatal: fatal(WcStatus::LocAccessErr, Some(AsyncEvent::QpAccessError as EventOf)),
            },
            Refusal::LocalProtection => Consequence {
                syndrome: Syndrome::Nak(NakCode::RemoteOperationalError),
                counter: |c| &mut c.resp_local_err,
                fatal: fatal(WcStatus::LocProtErr, None),
            },
            // The request was executed, so it is acknowledged.
            Refusal::Invalidation => Consequence {
                syndrome: Syndrome::ACK,
                counter: |c| &mut c.resp_remote_access_err,
                fatal: fatal(WcStatus::RemInvReqErr, None),
            },
            Refusal::Operational => Consequence {
                syndrome: Syndrome::Nak(NakCode::RemoteOperationalError),
                counter: |c| &mut c.resp_local_err,
                fatal: fatal(WcStatus::LocQpOpErr, Some(AsyncEvent::QpFatal as EventOf)),
            },
        }
    }

    /// Reports whether only the first request of a series is NAKed.
    pub fn is_once_per_gap(self) -> bool {
        self == Refusal::OutOfSequence
    }

    /// Reports whether the oldest receive is affected although no message of several packets has begun.
    pub fn is_of_receive(self) -> bool {
        matches!(self, Refusal::TooLong | Refusal::LocalProtection | Refusal::Invalidation)
    }
}
