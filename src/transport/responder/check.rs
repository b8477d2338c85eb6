//! Request checks, in the order that the specification prescribes (IBA 9.7.4.1, figure 87): PSN, opcode
//! sequence, opcode valid for the QP, resources, length, key and range. The checks have no side effects.

use super::nak_reason::NakReason;
use super::{Message, Reply, Responder, accessor};
use crate::memory::{Access, AccessError, HostSlice};
use crate::transport::connection::Connection;
use crate::transport::observer::QpEvent;
use crate::transport::{Env, MAX_MESSAGE, Placement};
use crate::wire::{Operation, Packet, Position};

type Verdict = Result<(), NakReason>;

impl Responder {
    /// Validates a request, and returns the memory that its RETH or AtomicETH refers to, or the reason for a
    /// NAK.
    pub(super) fn check(
        &self,
        packet: &Packet<'_>,
        ahead: i32,
        conn: &Connection,
        env: &Env<'_>,
    ) -> Result<HostSlice, NakReason> {
        check_psn(ahead)?;
        self.check_sequence(packet)?;
        let needed = check_opcode(packet, conn)?;
        self.check_srq(packet, conn, env)?;
        self.check_resources(packet, conn, env)?;
        self.check_length(packet, conn, env)?;
        observe_access(packet, conn, env);
        named_memory(packet, needed, conn, env).map_err(|_| NakReason::Access)
    }

    /// Checks the opcode sequence: First and Only are valid only if no message is open, Middle and Last only
    /// within a message of the same kind.
    pub(super) fn check_sequence(&self, packet: &Packet<'_>) -> Verdict {
        let row = packet.row();
        let fits = match self.message {
            None => row.position.starts(),
            Some(Message::Send { .. }) => !row.position.starts() && row.operation == Operation::Send,
            Some(Message::Write { .. }) => !row.position.starts() && row.operation == Operation::Write,
        };
        fits.then_some(()).ok_or(NakReason::InvalidRequest)
    }

    /// Checks the shared receive queue of an XRC packet: it must belong to the target's XRC domain, and all
    /// packets of a message must name the same queue.
    pub(super) fn check_srq(&self, packet: &Packet<'_>, conn: &Connection, env: &Env<'_>) -> Verdict {
        let Some(number) = packet.xrceth() else { return Ok(()) };
        let named = env.srq.as_ref().filter(|s| s.id.0 == number && s.domain == conn.domain());
        let goes_on = !packet.row().position.starts();
        let fits = named.is_some_and(|s| !goes_on || self.message_srq == Some(s.id));
        fits.then_some(()).ok_or(NakReason::InvalidRequest)
    }

    /// Checks resources: outstanding READs and atomics may not exceed max_dest_rd_atomic, and SENDs and
    /// immediate data need a receive.
    pub(super) fn check_resources(&self, packet: &Packet<'_>, conn: &Connection, env: &Env<'_>) -> Verdict {
        let operation = packet.row().operation;
        if operation.takes_read_resource() {
            // Replays do not count: the requester may have received the original responses meanwhile.
            let waiting =
                self.replies.iter().filter(|r| matches!(r, Reply::Result { is_replay: false, .. })).count();
            if waiting >= conn.attr.max_dest_rd_atomic as usize && conn.quirks().checks_depth {
                return Err(NakReason::InvalidRequest);
            }
        }
        let needs_receive = operation == Operation::Send || packet.imm().is_some();
        if needs_receive && self.receives.len_of_next(env).is_none() {
            return Err(NakReason::ReceiverNotReady);
        }
        Ok(())
    }

    pub(super) fn check_length(&self, packet: &Packet<'_>, conn: &Connection, env: &Env<'_>) -> Verdict {
        let row = packet.row();
        let len = packet.payload().len();
        let lax = !conn.quirks().checks_send_length && row.operation == Operation::Send;
        if !(row.payload.allows(len, conn.attr.mtu.bytes()) || lax && row.position.starts()) {
            return Err(NakReason::InvalidRequest);
        }
        let is_valid = match row.operation {
            Operation::Send => {
                let received = match self.message {
                    Some(Message::Send { received }) => received,
                    _ => 0,
                };
                let total = received as u64 + len as u64;
                let is_within = self.receives.len_of_next(env).is_none_or(|room| total <= room);
                if total <= MAX_MESSAGE && !is_within {
                    return Err(NakReason::LengthError);
                }
                total <= MAX_MESSAGE
            }
            Operation::Write => {
                let (announced, received) = match (packet.reth(), self.message) {
                    (Some(reth), _) => (reth.dma_len, 0),
                    (None, Some(Message::Write { reth, received })) => (reth.dma_len, received),
                    (None, _) => return Err(NakReason::InvalidRequest),
                };
                let total = received as u64 + len as u64;
                let fits = match row.position {
                    Position::First | Position::Middle => total < announced as u64,
                    Position::Last | Position::Only => total == announced as u64,
                };
                fits && announced as u64 <= MAX_MESSAGE
            }
            Operation::ReadRequest => packet.reth().is_none_or(|r| r.dma_len as u64 <= MAX_MESSAGE),
            // An unaligned address is an invalid request, not an access error (IBA 9.7.4.1.7).
            Operation::CompareSwap | Operation::FetchAdd => {
                packet.atomic().is_none_or(|a| a.va.is_multiple_of(8))
            }
            Operation::AtomicWrite => packet.reth().is_none_or(|r| r.va.is_multiple_of(8) && r.dma_len == 8),
            Operation::Flush => flush_of(packet).is_some(),
            _ => true,
        };
        is_valid.then_some(()).ok_or(NakReason::InvalidRequest)
    }
}

/// Tells the observer which memory a request asks for.
#[inline]
fn observe_access(packet: &Packet<'_>, conn: &Connection, env: &Env<'_>) {
    if conn.observer.get().is_none() {
        return;
    }
    let target = packet.reth().map(|r| (r.va, r.rkey, r.dma_len));
    if let Some((va, rkey, len)) = target.or_else(|| packet.atomic().map(|a| (a.va, a.rkey, 8))) {
        let (psn, operation) = (packet.bth().psn, packet.row().operation);
        conn.observe(Some(env.now), || QpEvent::MemoryAccess { psn, operation, va, rkey, len });
    }
}

fn check_psn(ahead: i32) -> Verdict {
    if ahead > 0 { Err(NakReason::OutOfSequence) } else { Ok(()) }
}

/// Checks that the service supports the operation and the QP permits it; otherwise the request is invalid
/// (IBA table 58, "unsupported"). Returns the access that the operation needs.
fn check_opcode(packet: &Packet<'_>, conn: &Connection) -> Result<Access, NakReason> {
    needed_access(packet).filter(|needed| conn.attr.access.allows(*needed)).ok_or(NakReason::InvalidRequest)
}

/// Returns the access that a request needs, or `None` if a responder executes no such request.
pub(super) fn needed_access(packet: &Packet<'_>) -> Option<Access> {
    Some(match packet.row().operation {
        Operation::Send => Access::LOCAL_READ,
        Operation::Write | Operation::AtomicWrite => Access::REMOTE_WRITE,
        Operation::ReadRequest => Access::REMOTE_READ,
        Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
        Operation::Flush => flush_of(packet)?.0.access(),
        _ => return None,
    })
}

/// Checks access to the entire range that a request announces, before any of it is accessed, and returns the
/// range. It is empty if the packet has neither a RETH nor an AtomicETH.
pub(super) fn named_memory(
    packet: &Packet<'_>,
    needed: Access,
    conn: &Connection,
    env: &Env<'_>,
) -> Result<HostSlice, AccessError> {
    let by = accessor(conn, env);
    match (packet.reth(), packet.atomic()) {
        (Some(reth), _) if flush_of(packet).is_some_and(|(_, whole_region)| whole_region) => {
            env.memory.remote_all(by, reth.rkey, needed)
        }
        (Some(reth), _) => env.memory.remote(by, reth.rkey, reth.va, reth.dma_len, needed),
        (None, Some(atomic)) => env.memory.remote(by, atomic.rkey, atomic.va, 8, needed),
        (None, None) => Ok(HostSlice::EMPTY),
    }
}

/// Returns a FLUSH's placement type and whether it covers the whole region, or `None` if the packet is not a
/// FLUSH or contains reserved values.
pub(super) fn flush_of(packet: &Packet<'_>) -> Option<(Placement, bool)> {
    let feth = packet.feth()?;
    let placement = Placement::from_bits(feth.placement()).filter(|placement| !placement.is_empty())?;
    Some((placement, feth.whole_region()?))
}
