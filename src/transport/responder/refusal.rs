//! What a responder refuses, and what each refusal leads to: the error classes of IBA 9.9.3 in one table.

use super::EventOf;
use crate::transport::connection::Connection;
use crate::transport::{AsyncEvent, Counters, WcStatus};
use crate::wire::{NakCode, Syndrome};

/// Why a request is not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A PSN before it is missing.
    OutOfSequence,
    /// No receive is posted for it.
    NotReady,
    /// Wrong order, length, opcode or too many at once.
    Invalid,
    /// Longer than the receive's buffers.
    TooLong,
    /// Key, range or permission of the memory that it names.
    Access,
    /// The receive's own elements name memory that they may not.
    LocalProtection,
    /// The memory that it names cannot do an atomic, or cannot be made persistent.
    Operational,
    /// The message has arrived, but the key that it invalidates may not be (class J).
    Invalidation,
}

/// What a refusal leads to.
pub(super) struct Consequence {
    pub syndrome: Syndrome,
    pub counter: fn(&mut Counters) -> &mut u64,
    /// The QP goes to the error state.
    pub fatal: Option<FatalConsequence>,
}

pub(super) struct FatalConsequence {
    /// Of the receive in use, where there is one.
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
            // The peer has done its part: it gets its acknowledgement.
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

    /// Whether only the first of a run is answered.
    pub fn is_once_per_gap(self) -> bool {
        self == Refusal::OutOfSequence
    }

    /// Whether the oldest receive was in use though no message of several packets had begun.
    pub fn is_of_receive(self) -> bool {
        matches!(self, Refusal::TooLong | Refusal::LocalProtection | Refusal::Invalidation)
    }
}
