//! From the send queue to packets.

use std::ops::Range;

use super::{Cursor, Requester, ask};
use crate::memory::AtomicOp;
use crate::transport::connection::Connection;
use crate::transport::send_queue::{SendWqe, packet_cost};
use crate::transport::{Env, Output, Payload, QpState, WcStatus, WrOp};
use crate::wire::{AtomicEth, Deth, Feth, HeaderSet, Headers, Operation, Position, Reth};

/// PSNs that may be in flight: less than half of the space, or old and new could not be told apart
/// (IBA 9.7.2).
const MAX_PSNS: u32 = 1 << 22;

/// Why no packet went out.
pub(super) enum Stop {
    /// Nothing to do until something arrives or expires.
    Idle,
    /// The oldest work request failed here.
    Failed(WcStatus),
}

impl Requester {
    /// Sends what window, depth limits and fences allow, at most `budget` packets. `Ok(true)` if the budget
    /// was all that stopped it.
    pub fn transmit(
        &mut self,
        conn: &Connection,
        budget: &mut usize,
        env: &mut Env<'_>,
    ) -> Result<bool, super::Fatal> {
        while *budget > 0 {
            let sent = if self.ask.is_due() { self.probe(conn, env) } else { self.send_one(conn, env) };
            match sent {
                Ok(()) => *budget -= 1,
                Err(Stop::Idle) => return Ok(false),
                Err(Stop::Failed(status)) => {
                    self.failed = Some((self.cursor.wqe, status));
                    return self.settle_failure(conn, env).map(|()| false);
                }
            }
        }
        Ok(self.has_unsent())
    }

    /// A work request that failed here completes once all before it are complete.
    pub(super) fn settle_failure(
        &mut self,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), super::Fatal> {
        match self.failed {
            Some((index, status)) if index == self.queue.start() => Err(self.fail_oldest(status, conn, env)),
            _ => Ok(()),
        }
    }

    fn send_one(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Stop> {
        let Cursor { wqe: index, packet } = self.cursor;
        let Some(wqe) = self.queue.get(index) else { return Err(Stop::Idle) };
        let psn = wqe.first_psn + packet;
        if wqe.op.is_local() {
            return self.manage(conn, env);
        }
        if !conn.qp_type.is_reliable() {
            return self.emit(conn, env);
        }
        // Never sent before: what was begun is brought to its end, and sent again, in SQD too.
        let fresh = packet == 0 && !psn.is_before(self.frontier);
        if self.pause.is_some()
            || self.failed.is_some()
            || fresh && conn.state == QpState::Sqd
            || fresh && wqe.flags.fence && !self.reads.is_empty()
            || wqe.op.awaits_response() && self.reads.len() >= conn.max_rd_atomic as usize
        {
            return Err(Stop::Idle);
        }

        // Beyond the peer's credits a message goes alone: its first packet, and the rest once that was received
        // (IBA 9.7.7.2.5).
        let limited = wqe.op.takes_receive() && self.credit.excludes(wqe.number);
        let alone = if packet == 0 { self.unacked == psn } else { self.unacked.is_after(wqe.first_psn) };
        if limited && !alone {
            return if self.ask.is_pending() { self.probe(conn, env) } else { Err(Stop::Idle) };
        }

        let mtu = conn.mtu.bytes() as u32;
        let left = wqe.packets - packet;
        // A READ is one packet here and takes the PSNs of all its responses.
        let psns = match wqe.op {
            // The parts have fixed ends: what is asked for again must lie in one request that the responder
            // remembers, so a remainder never reaches into the next part.
            WrOp::Read { .. } => {
                let part = (env.tuning.read_chunk / mtu).clamp(1, MAX_PSNS);
                left.min(part - packet % part)
            }
            _ => 1,
        };
        let start_cost = wqe.cost_at(packet, conn.mtu);
        let end_cost = wqe.cost_at(packet + psns, conn.mtu);
        let acked_cost = self.acked_cost(conn);
        let window = self.window.size(env.tuning);
        if start_cost > acked_cost && end_cost - acked_cost > window
            || psn.since(self.unacked) as u32 + psns > MAX_PSNS
        {
            return Err(Stop::Idle);
        }

        let closes = end_cost - acked_cost + packet_cost(mtu.into()) > window;
        let marked = closes || ask::is_marked(start_cost, end_cost, env.tuning.window, conn.mtu);
        let again = psn.is_before(self.resend_until);
        let ask = self.asks(wqe, packet + psns, index, conn, env) || marked || limited && packet == 0;
        self.push(wqe, packet..packet + psns, ask, again, conn, env)?;
        if wqe.op.awaits_response() {
            self.reads.push_back(psn + (psns - 1));
            self.ask.asked();
        } else {
            self.ask.note(ask, env.now);
        }
        let ended = left == psns;
        self.cursor = if ended {
            Cursor { wqe: index + 1, packet: 0 }
        } else {
            Cursor { wqe: index, packet: packet + psns }
        };
        if self.frontier.is_before(psn + psns) {
            self.frontier = psn + psns;
        }
        if self.timer.is_none() {
            self.arm_timer(conn, env);
        }
        Ok(())
    }

    /// Sends a packet that nobody will acknowledge: the last of a message completes it.
    fn emit(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Stop> {
        let Cursor { wqe: index, packet } = self.cursor;
        let Some(wqe) = self.queue.get(index) else { return Err(Stop::Idle) };
        if packet == 0 && conn.state == QpState::Sqd {
            return Err(Stop::Idle);
        }
        if wqe.to.is_some() && wqe.len > conn.mtu.bytes() as u32 {
            return Err(Stop::Failed(WcStatus::LocLenErr));
        }
        self.push(wqe, packet..packet + 1, false, false, conn, env)?;
        self.unacked = wqe.first_psn + (packet + 1);
        self.frontier = self.unacked;
        if packet + 1 == wqe.packets {
            self.cursor = Cursor { wqe: index + 1, packet: 0 };
            self.retire(conn, Output::Emitted, env);
        } else {
            self.cursor = Cursor { wqe: index, packet: packet + 1 };
        }
        Ok(())
    }

    /// Whether the packet before the `end`-th of a work request asks for an acknowledgement.
    fn asks(&self, wqe: &SendWqe, end: u32, index: u64, conn: &Connection, env: &Env<'_>) -> bool {
        end == wqe.packets
            && (wqe.flags.signaled
                || conn.signal_all
                || wqe.first_psn.is_before(self.resend_until)
                || ask::fills_a_part(index, self.queue.caps.max_wr)
                || self.queue.get(index + 1).is_some_and(|next| next.waits_for_all())
                || self.ask.is_overdue(env.now, conn.timeout, env.tuning))
    }

    /// Sends the last packet once more, now asking for an acknowledgement: so a loss of that packet shows, and
    /// the queue empties, though nobody waits for a completion.
    pub(super) fn probe(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Stop> {
        self.ask.asked();
        let at = match self.cursor {
            Cursor { wqe, packet: 0 } => (self.queue.start()..wqe)
                .rev()
                .find_map(|i| self.queue.get(i).filter(|w| w.packets > 0))
                .map(|w| (w, w.packets - 1)),
            Cursor { wqe, packet } => self.queue.get(wqe).map(|w| (w, packet - 1)),
        };
        let Some((wqe, packet)) = at else { return Ok(()) };
        env.counters.ack_probe += 1;
        self.push(wqe, packet..packet + 1, true, true, conn, env)
    }

    /// Builds the packet that takes the PSNs `part` of a work request. Data that goes out `again` is copied.
    fn push(
        &self,
        wqe: &SendWqe,
        part: Range<u32>,
        ask: bool,
        again: bool,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Stop> {
        let mtu = conn.mtu.bytes() as u32;
        let offset = (part.start as u64 * mtu as u64) as u32;
        let len = (wqe.len - offset).min((part.end - part.start) * mtu);
        let position = match wqe.op {
            WrOp::Read { .. } => Position::Only,
            _ => Position::of(part.start, wqe.packets),
        };
        let psn = wqe.first_psn + part.start;
        let Some(mut headers) = request_headers(conn, wqe, position, psn, offset, len) else {
            return Err(Stop::Idle);
        };
        headers.bth.ack_req = ask || wqe.op.awaits_response();
        let flow = match &wqe.to {
            Some(to) => &to.flow,
            None => conn.flow.as_ref().ok_or(Stop::Idle)?,
        };
        if wqe.op.awaits_response() {
            let payload: &[u8] = match &wqe.op {
                WrOp::AtomicWrite { value, .. } => value,
                _ => &[],
            };
            env.tx.push(flow, headers, Payload::Bytes(payload));
            return Ok(());
        }
        env.bytes.clear();
        env.scratch.clear();
        if self.queue.inline_data(wqe, offset, len, env.bytes) {
            env.tx.push(flow, headers, Payload::Bytes(env.bytes));
        } else {
            self.queue
                .gather(wqe, offset, len, conn.accessor(), env.memory, env.scratch)
                .map_err(|_| Stop::Failed(WcStatus::LocProtErr))?;
            let payload = if again { Payload::Copy(env.scratch) } else { Payload::Gather(env.scratch) };
            env.tx.push(flow, headers, payload);
        }
        Ok(())
    }

    /// Flight cost of all that the peer has acknowledged.
    pub(super) fn acked_cost(&self, conn: &Connection) -> u64 {
        match self.queue.front() {
            Some(wqe) => wqe.cost_at(self.unacked.since(wqe.first_psn).max(0) as u32, conn.mtu),
            None => self.queue.cost,
        }
    }
}

/// `None` for what has no packets.
fn request_headers(
    conn: &Connection,
    wqe: &SendWqe,
    position: Position,
    psn: crate::wire::Psn,
    offset: u32,
    len: u32,
) -> Option<Headers> {
    let (operation, tail) = wqe.op.on_wire()?;
    let extra = if position.ends() { tail } else { HeaderSet::NONE };
    let mut h = conn.headers(operation, position, extra, psn);
    match wqe.op {
        WrOp::Send => {}
        WrOp::SendWithImm(imm) => h.imm = imm,
        WrOp::SendWithInv(rkey) => h.ieth = rkey,
        WrOp::Write { va, rkey } => h.reth = Reth { va, rkey, dma_len: wqe.len },
        WrOp::WriteWithImm { va, rkey, imm } => {
            h.reth = Reth { va, rkey, dma_len: wqe.len };
            h.imm = imm;
        }
        WrOp::Read { va, rkey } => h.reth = Reth { va: va.wrapping_add(offset as u64), rkey, dma_len: len },
        WrOp::Atomic { va, rkey, op } => {
            let (swap_or_add, compare) = match op {
                AtomicOp::CompareSwap { compare, swap } => (swap, compare),
                AtomicOp::FetchAdd(n) => (n, 0),
            };
            h.atomic = AtomicEth { va, rkey, swap_or_add, compare };
        }
        WrOp::AtomicWrite { va, rkey, value } => {
            h.reth = Reth { va, rkey, dma_len: value.len() as u32 };
        }
        WrOp::Flush { va, rkey, len, placement, whole_region } => {
            h.feth = Feth::new(placement.bits(), whole_region);
            h.reth = Reth { va, rkey, dma_len: len };
        }
        WrOp::BindMw(_) | WrOp::RegMr(_) | WrOp::LocalInv(_) => return None,
    }
    if let Some(srq) = wqe.srq {
        h.xrceth = srq.0;
    }
    if let Some(to) = wqe.to {
        h.bth.dest_qp = to.qpn;
        h.deth = Deth { qkey: to.qkey, src_qp: conn.qpn };
    }
    // Solicited events are for what takes a receive at the peer (IBA 9.2.3).
    let takes_receive = operation == Operation::Send || extra == HeaderSet::IMMDT;
    h.bth.solicited = wqe.flags.solicited && position.ends() && takes_receive;
    Some(h)
}
