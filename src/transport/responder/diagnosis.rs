//! Diagnosis of refused requests: NAKs in the history of the queue pair, and the record of its failure.

use super::check::flush_of;
use super::nak_reason::NakReason;
use super::{Message, NakOutstanding, Responder, accessor};
use crate::memory::{Access, AccessError};
use crate::transport::Env;
use crate::transport::connection::Connection;
use crate::transport::failure::{FailureCause, Refusal};
use crate::transport::slow_event::EventKind;
use crate::wire::{Operation, Packet, Syndrome};

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
            conn.history.record(env.now, psn, None, kind);
        }
        let code = if let Some(EventKind::NakSent(code)) = kind { Some(code) } else { None };
        let Some(fatal) = row.fatal else { return };
        let access = match nak_reason {
            NakReason::Access => self.denied(packet, conn, env),
            NakReason::LocalProtection => self.receives.denied(conn, env),
            _ => None,
        };
        let refusal = Refusal { psn, code, receive_status: fatal.receive_status, access };
        conn.history.set_failure(conn.failure(FailureCause::Refused(refusal), env.now));
    }

    /// Repeats the check of the memory that a request refers to, and returns the reason for which access is
    /// denied.
    fn denied(&self, packet: &Packet<'_>, conn: &Connection, env: &Env<'_>) -> Option<AccessError> {
        let needed = match packet.row().operation {
            Operation::ReadRequest => Access::REMOTE_READ,
            Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            Operation::Flush => flush_of(packet)?.0.access(),
            _ => Access::REMOTE_WRITE,
        };
        let (rkey, va, len) = match (packet.reth(), packet.atomic(), self.message) {
            (Some(reth), _, _) => (reth.rkey, reth.va, reth.dma_len),
            (_, Some(atomic), _) => (atomic.rkey, atomic.va, 8),
            (_, _, Some(Message::Write { reth, .. })) => (reth.rkey, reth.va, reth.dma_len),
            _ => return None,
        };
        env.memory.remote(accessor(conn, env), rkey, va, len, needed).err()
    }
}
