//! The responder: checks requests in the order that the specification prescribes, executes them and responds.
//!
//! [`check`] validates a request without changing anything; [`nak_reason`] is the table of NAK reasons (error
//! classes) and their consequences; [`execute`] executes the request; [`reply`] turns the queue of replies
//! into packets. [`unreliable`] applies the same checks and execution to UC and UD, which have no responses:
//! faulty packets are dropped.

mod check;
mod diagnosis;
mod execute;
mod kept;
mod nak_reason;
mod recv_source;
mod reply;
mod unreliable;

use std::collections::VecDeque;

use super::connection::{Connection, Fatal};
use super::observer::{Observation, QpEvent};
use super::{Env, Output, QpState, QpType, RecvCaps, SrqId};
use crate::burst::PayloadSource;
use crate::memory::{Accessor, CopySource, PdId};
use crate::wire::{Flow, Operation, Packet, Psn, Reth, Syndrome};
use kept::Kept;
use nak_reason::NakReason;
use recv_source::RecvSource;

/// Maximum distance ahead of the expected PSN at which a single request proves a loss. Further ahead, two
/// requests at most this far apart are required, and beyond `FURTHEST`, no request proves a loss: the
/// requester's timeout must detect it.
///
/// A NAK makes the requester retransmit everything in flight. Without these limits, 50,000 requests a second
/// with arbitrary PSNs from a third party cost three quarters of the throughput.
const NEAR: i32 = 1 << 8;
const FURTHEST: i32 = 1 << 14;

/// Message whose last packet has not arrived.
#[derive(Debug, Clone, Copy)]
enum Message {
    /// SEND, whose data is stored in the receive that it has consumed.
    Send {
        received: u32,
    },
    Write {
        reth: Reth,
        received: u32,
    },
}

/// Executed READ or atomic, kept so that its response can be replayed for a duplicate request.
#[derive(Debug, Clone, Copy)]
struct Resource {
    first: Psn,
    msn: u32,
    kind: ResourceKind,
}

#[derive(Debug, Clone, Copy)]
enum ResourceKind {
    /// A READ of the range in the RETH, with the protection domain used to access the memory.
    Read(Reth, PdId),
    /// An atomic, with the original value.
    Atomic(u64),
    /// A FLUSH or ATOMIC WRITE, whose response is a READ response of zero bytes (annex A19.4.3).
    EmptyRead,
}

impl Resource {
    /// Returns the last PSN of the response.
    fn last(&self, conn: &Connection) -> Psn {
        match self.kind {
            ResourceKind::Read(reth, _) => self.first + (conn.attr.mtu.packets(reth.dma_len) - 1),
            ResourceKind::Atomic(_) | ResourceKind::EmptyRead => self.first,
        }
    }

    /// Reports whether the request was of an operation.
    fn is_of(&self, operation: Operation) -> bool {
        match self.kind {
            ResourceKind::Read(..) => operation == Operation::ReadRequest,
            ResourceKind::Atomic(_) => matches!(operation, Operation::CompareSwap | Operation::FetchAdd),
            ResourceKind::EmptyRead => matches!(operation, Operation::Flush | Operation::AtomicWrite),
        }
    }
}

/// Pending response. Responses are sent in the order of their requests.
#[derive(Debug, Clone, Copy)]
enum Reply {
    /// An ACK, NAK or RNR NAK.
    Acknowledge { psn: Psn, syndrome: Syndrome, msn: u32 },
    /// Response to a READ or atomic, whose packet with the index `next` is sent next.
    Result { of: Resource, next: u32, is_replay: bool },
}

impl Reply {
    /// Returns the range of memory, if this is the response to a READ.
    fn as_read(&self) -> Option<&Reth> {
        match self {
            Reply::Result { of: Resource { kind: ResourceKind::Read(reth, _), .. }, .. } => Some(reth),
            _ => None,
        }
    }

    /// Returns the last PSN of the response.
    fn psn(&self, conn: &Connection) -> Psn {
        match self {
            Reply::Acknowledge { psn, .. } => *psn,
            Reply::Result { of, .. } => of.last(conn),
        }
    }
}

/// NAK that was sent for the expected PSN. Later requests are not NAKed (C9-113).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum NakOutstanding {
    #[default]
    No,
    /// A sequence error NAK: later requests may be kept.
    Gap,
    /// Another NAK or RNR NAK: later requests are dropped.
    Refusal,
}

#[derive(Debug, Default)]
pub(super) struct Responder {
    pub(super) receives: RecvSource,
    /// Expected PSN: the next one in order.
    pub(super) expected: Psn,
    /// Message sequence number (MSN): the number of executed messages, modulo 2^24.
    msn: u32,
    message: Option<Message>,
    /// Shared receive queue named by the current message (XRC).
    message_srq: Option<SrqId>,
    nak_outstanding: NakOutstanding,
    /// Requests ahead of the expected PSN.
    kept: Kept,
    /// PSN of the most recent request that was ahead of the expected PSN.
    last_ahead: Psn,
    resources: VecDeque<Resource>,
    replies: VecDeque<Reply>,
}

/// Maximum length in bytes of a READ whose responses fit into one turn. Those to a longer one take several
/// anyway.
const SHORT_READ: u32 = 256 << 10;

/// Maximum number of buffers for kept requests that a NIC retains: those of the default window. Allocating
/// each anew lowers the goodput at 0.1 % loss by 5 % (two processes over udp, WRITEs of 64 KiB).
const MAX_SPARE: usize = 256;

impl Responder {
    pub fn new(caps: RecvCaps, shared: bool) -> Responder {
        Responder { receives: RecvSource::new(caps, shared), ..Responder::default() }
    }

    /// Starts receiving with the expected PSN `conn.attr.rq_psn` (transition to RTR).
    pub fn start(&mut self, conn: &Connection) {
        self.expected = conn.attr.rq_psn;
        self.msn = 0;
    }

    /// Reports whether the last packet of a message has not arrived.
    #[cfg(feature = "live")]
    pub fn is_receiving(&self) -> bool {
        self.message.is_some()
    }

    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Reports whether a reply other than a single acknowledgement is pending.
    pub fn has_urgent_replies(&self) -> bool {
        match self.replies.front() {
            None | Some(Reply::Acknowledge { syndrome: Syndrome::Ack { .. }, .. }) => self.replies.len() > 1,
            Some(_) => true,
        }
    }

    /// Reports whether the only pending reply is the response to a READ of at most [`SHORT_READ`] bytes.
    pub fn has_lone_read(&self) -> bool {
        let first = self.replies.front().filter(|_| self.replies.len() == 1);
        first.and_then(Reply::as_read).is_some_and(|reth| reth.dma_len <= SHORT_READ)
    }

    /// Reports whether READ responses are pending.
    pub fn has_read_replies(&self) -> bool {
        self.replies.iter().any(|reply| reply.as_read().is_some())
    }

    /// Completes all receives with WR_FLUSH_ERR, in order. Pending replies are still sent.
    pub fn flush(&mut self, conn: &Connection, env: &mut Env<'_>) {
        self.receives.flush(conn, env);
        self.message = None;
        self.kept.clear();
        self.resources.clear();
    }

    /// Drops everything (RESET).
    pub fn clear(&mut self) {
        self.receives.clear();
        self.message = None;
        self.nak_outstanding = NakOutstanding::No;
        self.kept.clear();
        self.resources.clear();
        self.replies.clear();
    }

    /// Processes a request that arrived on `flow`.
    pub fn handle(
        &mut self,
        packet: &Packet<'_>,
        flow: &Flow,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Fatal> {
        match conn.qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => self.handle_reliable(packet, conn, env),
            QpType::Uc => self.handle_unreliable(packet, conn, env),
            QpType::Ud => self.handle_datagram(packet, flow, conn, env),
        }
    }

    fn handle_reliable(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Fatal> {
        let before = self.expected;
        self.handle_one(packet, conn, env)?;
        if self.kept.is_empty() || self.expected == before || self.nak_outstanding != NakOutstanding::No {
            return Ok(());
        }
        let payload = std::mem::replace(&mut env.payload, PayloadSource::Packet(CopySource::Unread));
        let result = self.handle_kept(conn, env);
        env.payload = payload;
        result
    }

    /// Processes the kept requests behind the one executed last, up to the next gap.
    ///
    /// Requests behind two or more missing ones are dropped: a requester that retransmits single packets goes
    /// back there. So without a gap, a forged request is executed only if its PSN is the expected one or
    /// the one after it.
    #[cold]
    fn handle_kept(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Fatal> {
        if self.kept.first() != Some(self.expected) {
            self.kept.clear();
            return Ok(());
        }
        while let Some(bytes) = self.kept.take(self.expected) {
            let Ok(packet) = Packet::parse(&bytes) else { break };
            self.handle_one(&packet, conn, env)?;
            if env.spare.len() < MAX_SPARE {
                env.spare.push(bytes);
            }
        }
        if self.nak_outstanding == NakOutstanding::No {
            // The acknowledgement tells the requester which packets need no retransmission. The requester's
            // newest packet, which follows the missing one, triggers the NAK for the next gap.
            self.acknowledge(self.expected.prev(), self.msn, conn, env);
        }
        Ok(())
    }

    // Always inline: saves 2 % of the instructions for a received 8-byte WRITE.
    #[inline(always)]
    fn handle_one(&mut self, packet: &Packet<'_>, conn: &Connection, env: &mut Env<'_>) -> Result<(), Fatal> {
        if let Some(observer) = conn.observer.get() {
            self.observe_gap(observer, packet, conn, env);
        }
        let is_in_write = matches!(self.message, Some(Message::Write { .. }));
        if is_in_write && self.continue_write(packet, conn, env) {
            return Ok(());
        }
        let ahead = packet.bth().psn.since(self.expected);
        if ahead < 0 {
            self.duplicate(packet, conn, env);
            return Ok(());
        }
        let verdict = self.check(packet, ahead, conn, env);
        match verdict.and_then(|named| self.execute(packet, named, conn, env)) {
            Ok(()) => {
                self.message_srq = env.srq.as_ref().map(|s| s.id);
                self.nak_outstanding = NakOutstanding::No;
                Ok(())
            }
            Err(NakReason::OutOfSequence) if !self.shows_loss(packet.bth().psn, ahead) => {
                env.counters.out_of_seq_request += 1;
                Ok(())
            }
            Err(NakReason::RemoteOperational | NakReason::LocalProtection) if env.has_lost_payload() => {
                Ok(())
            }
            Err(nak_reason) => {
                self.record_refusal(nak_reason, packet, conn, env);
                match nak_reason {
                    NakReason::OutOfSequence => self.keep(packet, conn, env),
                    _ => self.kept.clear(),
                }
                // A WRITE with immediate to inaccessible memory consumes its receive (IBA 11.6.2).
                let of_receive =
                    nak_reason.is_of_receive() || nak_reason == NakReason::Access && packet.imm().is_some();
                self.refuse(nak_reason, of_receive, conn, env)
            }
        }
    }

    /// Tells the observer of requests that are missing in front of this one, unless it has been told of them.
    #[cold]
    fn observe_gap(&self, observation: &Observation, packet: &Packet<'_>, conn: &Connection, env: &Env<'_>) {
        let psn = packet.bth().psn;
        let span = match (packet.row().operation, packet.reth()) {
            (Operation::ReadRequest, Some(reth)) => conn.attr.mtu.packets(reth.dma_len),
            _ => 1,
        };
        let missing = observation.note_request(self.expected, psn, span);
        if missing > 0 {
            conn.observe(Some(env.now), || QpEvent::Gap(psn - missing, missing));
        }
    }

    /// Reports whether a request ahead of the expected PSN proves a loss. If it does not, the caller drops
    /// the request as if it had been lost as well.
    fn shows_loss(&mut self, psn: Psn, ahead: i32) -> bool {
        let behind = psn.since(std::mem::replace(&mut self.last_ahead, psn));
        ahead <= NEAR || ahead <= FURTHEST && (0..=NEAR).contains(&behind)
    }

    /// Keeps a SEND or WRITE request behind a gap, if there is room for it. READs and atomics are not kept,
    /// because the requester repeats them after a loss and would be answered twice. XRC is excluded
    /// because each of its packets names a shared receive queue.
    fn keep(&mut self, packet: &Packet<'_>, conn: &Connection, env: &mut Env<'_>) {
        if conn.quirks().selective_repeat
            && conn.qp_type == QpType::Rc
            && self.nak_outstanding != NakOutstanding::Refusal
            && matches!(packet.row().operation, Operation::Send | Operation::Write)
        {
            self.kept.insert(packet, env.payload, env.window, env.spare);
        }
    }

    /// Applies the consequences of a NAK reason: queues the NAK and, if the reason is fatal, fails the queue
    /// pair. If `of_receive` is set, the oldest receive fails too, even if no multi-packet message has
    /// consumed it.
    fn refuse(
        &mut self,
        nak_reason: NakReason,
        of_receive: bool,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Fatal> {
        let row = nak_reason.action(conn);
        *(row.counter)(env.counters) += 1;
        if nak_reason.is_once_per_gap() && self.nak_outstanding != NakOutstanding::No {
            return Ok(());
        }
        self.nak_outstanding =
            if nak_reason.is_once_per_gap() { NakOutstanding::Gap } else { NakOutstanding::Refusal };
        self.nak(row.syndrome, conn);
        let Some(fatal) = row.fatal else { return Ok(()) };
        if matches!(self.message, Some(Message::Send { .. })) || of_receive {
            self.receives.fail(fatal.receive_status, conn, env);
        }
        if let Some(event) = fatal.event {
            env.out.push(Output::Event(event(conn.qpn)));
        }
        Err(Fatal)
    }

    /// Queues a NAK for the expected PSN.
    fn nak(&mut self, syndrome: Syndrome, conn: &Connection) {
        if syndrome.is_nak() {
            let (qpn, psn) = (conn.qpn, self.expected);
            trace_event!(DEBUG, "urxe::nak", "NAK sent", qpn = %qpn, psn = %psn, syndrome = ?syndrome);
        }
        self.replies.push_back(Reply::Acknowledge { psn: self.expected, syndrome, msn: self.msn });
    }

    /// Handles a duplicate request without executing it again (IBA 9.7.4.1): acknowledges a SEND or WRITE,
    /// rereads the data of a READ, and returns the saved result of an atomic.
    fn duplicate(&mut self, packet: &Packet<'_>, conn: &Connection, env: &mut Env<'_>) {
        env.counters.duplicate_request += 1;
        let psn = packet.bth().psn;
        match packet.row().operation {
            Operation::Send | Operation::Write => {
                // Acknowledges everything executed, but not past a READ or atomic behind this packet: the
                // requester has not received its response and would take such an acknowledgement for the loss
                // of that response.
                let inside = |r: &&Resource| r.first.is_after(psn) && r.first.is_before(self.expected);
                match self.resources.iter().find(inside) {
                    Some(r) => self.acknowledge(r.first.prev(), r.msn.wrapping_sub(1) & 0xff_ffff, conn, env),
                    None => self.acknowledge(self.expected.prev(), self.msn, conn, env),
                }
            }
            operation => {
                let is_known = |r: &&Resource| r.is_of(operation) && contains(r, psn, conn);
                let Some(mut replay) = self.resources.iter().rev().find(is_known).copied() else { return };
                if let (ResourceKind::Read(reth, pd), Some(asked)) = (replay.kind, packet.reth()) {
                    // The repeated READ may begin in the middle, where the requester misses a response, and
                    // may end early.
                    let skipped = psn.since(replay.first) as u64 * conn.attr.mtu.bytes() as u64;
                    let same = asked.rkey == reth.rkey
                        && asked.va == reth.va.wrapping_add(skipped)
                        && asked.dma_len as u64 + skipped <= reth.dma_len as u64;
                    if !same {
                        return;
                    }
                    (replay.first, replay.kind) = (psn, ResourceKind::Read(asked, pd));
                }
                // A pending reply that still covers everything requested suffices.
                let last = replay.last(conn);
                let due = self.replies.iter().any(|r| match r {
                    Reply::Result { of, next, .. } => {
                        of.is_of(operation) && !psn.is_before(of.first + *next) && of.last(conn) == last
                    }
                    Reply::Acknowledge { .. } => false,
                });
                if !due {
                    // Pending replies from `psn` on would otherwise be sent twice: the requester went back to
                    // `psn` and retransmits everything from there.
                    self.replies.retain(|r| r.psn(conn).is_before(psn));
                    self.replies.push_back(Reply::Result { of: replay, next: 0, is_replay: true });
                }
            }
        }
    }

    /// Queues an acknowledgement of everything up to `psn`, or merges it with one not yet sent.
    fn acknowledge(&mut self, psn: Psn, msn: u32, conn: &Connection, env: &Env<'_>) {
        if let Some(last_acks) = env.last_acks {
            last_acks.record(psn, msn, conn, env.now);
        }
        let ack = Reply::Acknowledge { psn, syndrome: Syndrome::ACK, msn };
        match self.replies.back_mut().filter(|_| conn.quirks().coalesces_acks) {
            Some(Reply::Acknowledge { syndrome: Syndrome::Ack { .. }, psn: due, .. })
                if psn.is_before(*due) => {}
            Some(last @ Reply::Acknowledge { syndrome: Syndrome::Ack { .. }, .. }) => *last = ack,
            _ => self.replies.push_back(ack),
        }
    }
}

fn contains(r: &Resource, psn: Psn, conn: &Connection) -> bool {
    !psn.is_before(r.first) && !psn.is_after(r.last(conn))
}

/// Returns the accessor for a request's memory: the queue pair with its own protection domain or, for an XRC
/// packet, with that of the shared receive queue named in the packet.
fn accessor(conn: &Connection, env: &Env<'_>) -> Accessor {
    match (conn.qp_type, &env.srq) {
        (QpType::XrcRecv, Some(srq)) => Accessor { pd: srq.pd, ..conn.accessor() },
        _ => conn.accessor(),
    }
}

/// Reports whether the responder processes requests in `state`.
pub(super) fn is_receiving(state: QpState) -> bool {
    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
}
