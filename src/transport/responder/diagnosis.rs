//! Diagnosis of refused requests: NAKs in the history of the queue pair, and the record of its failure.

use super::check::{named_memory, needed_access};
use super::nak_reason::NakReason;
use super::{Message, NakOutstanding, Responder, accessor};
use crate::memory::{Access, AccessError};
use crate::transport::connection::Connection;
use crate::transport::failure::{FailureCause, InvalidRequest, Refusal};
use crate::transport::observer::QpEvent;
use crate::transport::slow_event::EventKind;
use crate::transport::{Env, Output};
use crate::wire::{Operation, Packet, RKey, Syndrome};

impl Responder {
    /// Records the refusal of a request and, if it is fatal, the failure of the queue pair.
    #[cold]
    pub(super) fn record_refusal(
        &self,
        nak_reason: NakReason,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
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
        let range = self.range(packet);
        let (access, invalid) = match nak_reason {
            NakReason::Access => (self.denied(packet, conn, env), None),
            NakReason::LocalProtection => (self.receives.denied(conn, env), None),
            _ => (None, self.invalid(nak_reason, packet, conn, env)),
        };
        conn.observe(Some(env.now), || QpEvent::CheckFailed { psn, code, access });
        let nearest = range.filter(|_| nak_reason == NakReason::Access && access.is_some());
        let nearest =
            nearest.and_then(|(va, len, rkey)| env.memory.nearest(accessor(conn, env), rkey, va, len));
        let (receive_status, opcode) = (fatal.receive_status, packet.bth().opcode);
        let refusal = Refusal { psn, code, receive_status, access, nearest, invalid, opcode, range };
        let qpn = conn.qpn;
        trace_event!(DEBUG, "urxe::nak", "request refused", qpn = %qpn, reason = %refusal);
        conn.history.set_failure(conn.failure(FailureCause::Refused(refusal), env.now));
        env.out.push(Output::Refused(qpn));
    }

    /// Returns the range of memory that a request names, with its key.
    fn range(&self, packet: &Packet<'_>) -> Option<(u64, u32, RKey)> {
        let reth = match (packet.reth(), self.message) {
            (None, Some(Message::Write { reth, .. })) => Some(reth),
            (named, _) => named,
        };
        let of_reth = reth.map(|reth| (reth.va, reth.dma_len, reth.rkey));
        of_reth.or_else(|| packet.atomic().map(|atomic| (atomic.va, 8, atomic.rkey)))
    }

    /// Repeats the checks other than those of memory, and returns the one that fails.
    fn invalid(
        &self,
        nak_reason: NakReason,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &Env<'_>,
    ) -> Option<InvalidRequest> {
        let (row, len) = (packet.row(), packet.payload().len());
        let (allowed, mtu) = (conn.attr.access, conn.attr.mtu.bytes());
        if let NakReason::Invalidation = nak_reason {
            return packet.ieth().map(|key| InvalidRequest::Invalidation { key });
        }
        if let NakReason::LengthError = nak_reason {
            let received = if let Some(Message::Send { received }) = self.message { received } else { 0 };
            let room = self.receives.len_of_next(env)?;
            return Some(InvalidRequest::ReceiveTooShort { len: received as u64 + len as u64, room });
        }
        if nak_reason != NakReason::InvalidRequest {
            return None;
        }
        if self.check_sequence(packet).is_err() {
            return Some(InvalidRequest::Sequence);
        }
        let Some(needed) = needed_access(packet) else { return Some(InvalidRequest::Unsupported) };
        if !allowed.allows(needed) {
            return Some(InvalidRequest::Flags { allowed, needed });
        }
        if self.check_srq(packet, conn, env).is_err() {
            return Some(InvalidRequest::Srq);
        }
        if self.check_resources(packet, conn, env).is_err() {
            return Some(InvalidRequest::Depth { max: conn.attr.max_dest_rd_atomic });
        }
        if !row.payload.allows(len, mtu) {
            return Some(InvalidRequest::Payload { len, position: row.position, mtu });
        }
        self.check_length(packet, conn, env).err()?;
        let is_atomic = needed == Access::REMOTE_ATOMIC || row.operation == Operation::AtomicWrite;
        Some(match self.range(packet) {
            Some((va, ..)) if is_atomic && !va.is_multiple_of(8) => InvalidRequest::Unaligned { va },
            _ => InvalidRequest::Length,
        })
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
