//! Diagnosis of refused requests: NAKs in the history of the queue pair, and the record of its failure.

use super::check::{named_memory, needed_access};
use super::nak_reason::NakReason;
use super::{Message, NakOutstanding, Responder, accessor};
use crate::memory::{Access, AccessError};
use crate::transport::Env;
use crate::transport::connection::Connection;
use crate::transport::failure::{FailureCause, Refusal};
use crate::transport::observer::QpEvent;
use crate::transport::slow_event::EventKind;
use crate::wire::{Packet, Syndrome};

impl Responder {
    /// Records the refusal of a request and, if it is fatal, the failure of the queue pair.
    #[cold]
    pub(super) fn record_refusal(
        &self,
        nak_reason: NakReason,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &Env<'_>,
    ) {
        if nak_reason.is_once_per_gap() && self.nak_outstanding != NakOutstanding::No {
            return;
        }
        let (row, psn) = (nak_reason.action(conn), self.expected);
        let kind = match row.syndrome {
            _ if !conn.qp_type.is_reliable() => None,
            Syndrome::RnrNak(timer) => Some(EventKind::RnrNakSent(timer)),
            Syndrome::Nak(code) => Some(EventKind::NakSent(code)),
            _ => None,
        };
        if let Some(kind) = kind {
            conn.record(env.now, psn, None, kind);
        }
        let code = if let Some(EventKind::NakSent(code)) = kind { Some(code) } else { None };
        let Some(fatal) = row.fatal else { return };
        let access = match nak_reason {
            NakReason::Access => self.denied(packet, conn, env),
            NakReason::LocalProtection => self.receives.denied(conn, env),
            _ => None,
        };
        conn.observe(Some(env.now), || QpEvent::CheckFailed { psn, code, access });
        let refusal = Refusal { psn, code, receive_status: fatal.receive_status, access };
        conn.history.set_failure(conn.failure(FailureCause::Refused(refusal), env.now));
    }

    /// Repeats the check of the memory that a request refers to, and returns the reason for which access is
    /// denied.
    fn denied(&self, packet: &Packet<'_>, conn: &Connection, env: &Env<'_>) -> Option<AccessError> {
        match self.message {
            Some(Message::Write { reth, .. }) if packet.reth().is_none() => {
                let by = accessor(conn, env);
                env.memory.remote(by, reth.rkey, reth.va, reth.dma_len, Access::REMOTE_WRITE).err()
            }
            _ => named_memory(packet, needed_access(packet)?, conn, env).err(),
        }
    }
}
