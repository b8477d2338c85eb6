//! From the send queue to packets.

use super::{Cursor, Requester};
use crate::memory::AtomicOp;
use crate::transport::connection::Connection;
use crate::transport::send_queue::SendWqe;
use crate::transport::{Env, Payload, QpState, WcStatus, WrOp};
use crate::wire::{AtomicEth, HeaderSet, Headers, Operation, Position, Reth};

/// PSNs that may be in flight: less than half of the space, or old and new could not be told apart
/// (IBA 9.7.2).
const MAX_PSNS: u32 = 1 << 22;

/// An acknowledgement is asked for in every such part of the window, so that it never closes.
const ASKS_PER_WINDOW: u64 = 4;

/// ... and however wide the window, at least so often that the limit on PSNs is not reached without one.
const MAX_ASK_STEP: u64 = 1 << 28;

/// What stays of the window, however many retries were in vain.
const LEAST_WINDOW: u64 = 16 << 10;

/// Why no packet went out.
enum Stop {
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
            match self.send_one(conn, env) {
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

    /// What may be in flight: a quarter of it after each retry that brought nothing, for a peer whose queues
    /// overflow answers nothing while they are kept full.
    fn window(&self, conn: &Connection, env: &Env<'_>) -> u64 {
        let vain = conn.retry_cnt.saturating_sub(self.retries_left);
        let whole = env.tuning.window as u64;
        (whole >> (2 * vain)).max(LEAST_WINDOW.min(whole))
    }

    fn send_one(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Stop> {
        let Cursor { wqe: index, packet } = self.cursor;
        let Some(wqe) = self.queue.get(index) else { return Err(Stop::Idle) };
        let psn = wqe.first_psn + packet;
        // Never sent before: what was begun is brought to its end, and sent again, in SQD too.
        let fresh = packet == 0 && !psn.is_before(self.frontier);
        if self.pause.is_some()
            || self.failed.is_some()
            || fresh && conn.state == QpState::Sqd
            || fresh && wqe.flags.fence && !self.reads.is_empty()
            || wqe.op.is_read_or_atomic() && self.reads.len() >= conn.max_rd_atomic as usize
        {
            return Err(Stop::Idle);
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
        let window = self.window(conn, env);
        if start_cost > acked_cost && end_cost - acked_cost > window
            || psn.since(self.unacked) as u32 + psns > MAX_PSNS
        {
            return Err(Stop::Idle);
        }

        let offset = (packet as u64 * mtu as u64) as u32;
        let len = (wqe.len - offset).min(psns * mtu);
        let position = match wqe.op {
            WrOp::Read { .. } => Position::Only,
            _ => Position::of(packet, wqe.packets),
        };
        let mut headers = request_headers(conn, wqe, position, psn, offset, len);
        // By the packet's place alone, so that it is the same packet when it is sent again.
        let step = (window / ASKS_PER_WINDOW).clamp(1, MAX_ASK_STEP);
        headers.bth.ack_req = position.ends() || start_cost / step != end_cost / step;

        let flow = conn.flow.as_ref().ok_or(Stop::Idle)?;
        if wqe.op.is_read_or_atomic() {
            env.tx.push(flow, headers, Payload::Bytes(&[]));
            self.reads.push_back(psn + (psns - 1));
        } else {
            env.bytes.clear();
            env.scratch.clear();
            if self.queue.inline_data(wqe, offset, len, env.bytes) {
                env.tx.push(flow, headers, Payload::Bytes(env.bytes));
            } else {
                self.queue
                    .gather(wqe, offset, len, conn.pd, env.memory, env.scratch)
                    .map_err(|_| Stop::Failed(WcStatus::LocProtErr))?;
                let again = psn.is_before(self.resend_until);
                let payload = if again { Payload::Copy(env.scratch) } else { Payload::Gather(env.scratch) };
                env.tx.push(flow, headers, payload);
            }
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

    /// Flight cost of all that the peer has acknowledged.
    fn acked_cost(&self, conn: &Connection) -> u64 {
        match self.queue.front() {
            Some(wqe) => wqe.cost_at(self.unacked.since(wqe.first_psn).max(0) as u32, conn.mtu),
            None => 0,
        }
    }
}

fn request_headers(
    conn: &Connection,
    wqe: &SendWqe,
    position: Position,
    psn: crate::wire::Psn,
    offset: u32,
    len: u32,
) -> Headers {
    let (operation, tail) = wqe.op.on_wire();
    let extra = if position.ends() { tail } else { HeaderSet::NONE };
    let mut h = conn.headers(operation, position, extra, psn);
    match wqe.op {
        WrOp::Send => {}
        WrOp::SendWithImm(imm) => h.imm = imm,
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
    }
    // Solicited events are for what takes a receive at the peer (IBA 9.2.3).
    let takes_receive = operation == Operation::Send || extra == HeaderSet::IMMDT;
    h.bth.solicited = wqe.flags.solicited && position.ends() && takes_receive;
    h
}
