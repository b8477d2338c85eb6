//! The requester: builds requests from the send queue and completes them by the responses.
//!
//! [`build`] sends what the window allows, [`run`] many packets at once where they are alike, [`manage`] does what has no
//! packets, [`ask`] knows when the peer is to acknowledge, [`response`] takes
//! acknowledgements and data in, [`retry`] goes back after a loss. The cursor is the next packet to send; `unacked` the
//! oldest that the peer has not acknowledged; between them lies what is in flight.

mod ask;
mod build;
mod manage;
mod response;
mod retry;
mod rtt;
mod run;
mod window;

use std::collections::VecDeque;

use super::connection::{Connection, Fatal};
use super::credits::Limit;
use super::send_queue::{Datagram, Mark, SendCaps, SendQueue};
use super::{Completion, Destination, Env, Instant, Output, PostError, QpState, SendWr, WcStatus, earliest};
use crate::wire::{Flow, Mtu, Psn};

/// Flight cost that keeps a peer busy while as much again is gathered to be sent at once.
const GATHERED: u64 = 128 << 10;

/// The packet of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursor {
    wqe: u64,
    packet: u32,
}

#[derive(Debug)]
pub(super) struct Requester {
    queue: SendQueue,
    cursor: Cursor,
    /// The oldest PSN that is not acknowledged; for a READ, the next response.
    unacked: Psn,
    /// One behind the newest PSN ever sent.
    frontier: Psn,
    /// Last PSNs of the READs and atomics in flight, oldest first.
    reads: VecDeque<Psn>,
    /// The packet that the peer last was not ready to receive.
    refused: Option<Psn>,
    /// After an RNR NAK, the refused work request: it alone is retransmitted until it is acknowledged.
    rnr_probe: Option<u64>,
    /// Waiting until then after a receiver-not-ready.
    pause: Option<Instant>,
    /// When the local ACK timeout expires.
    timer: Option<Instant>,
    /// Timeouts since the peer was last heard of.
    silent: u32,
    retries_left: u8,
    rnr_retries_left: u8,
    window: window::Window,
    /// Flight cost of all that the peer has acknowledged.
    acked_cost: u64,
    /// The last turn ended for what other queue pairs have in flight.
    crowded_out: bool,
    /// The missing response for which requests were already sent again.
    gap: Option<Psn>,
    /// PSNs before this one were sent before.
    resend_until: Psn,
    /// A work request that failed here, to be completed when it is the oldest.
    failed: Option<(u64, WcStatus)>,
    /// One behind the newest work request on our own keys that was carried out: going back does not repeat it.
    managed: u64,
    /// Posted before RTS and not followed by a post in RTS: nothing leaves.
    is_held: bool,
    /// The retries are used up, but there is another path.
    gives_path_up: bool,
    /// Up to which message the peer has receives, as far as it says.
    credit: Limit,
    /// What the peer was asked for.
    ask: ask::Ask,
    /// How long it takes to answer.
    rtt: rtt::Rtt,
}

impl Requester {
    pub fn new(caps: SendCaps) -> Requester {
        Requester {
            queue: SendQueue::new(caps),
            cursor: Cursor { wqe: 0, packet: 0 },
            unacked: Psn::default(),
            frontier: Psn::default(),
            reads: VecDeque::new(),
            refused: None,
            rnr_probe: None,
            pause: None,
            timer: None,
            silent: 0,
            retries_left: 0,
            window: window::Window::new(),
            acked_cost: 0,
            crowded_out: false,
            rnr_retries_left: 0,
            gap: None,
            resend_until: Psn::default(),
            failed: None,
            managed: 0,
            is_held: false,
            gives_path_up: false,
            credit: Limit::default(),
            ask: ask::Ask::default(),
            rtt: rtt::Rtt::default(),
        }
    }

    /// Ready to send, the first packet with `conn.sq_psn`.
    pub fn start(&mut self, conn: &Connection) {
        self.acked_cost = self.queue.begin(conn);
        self.credit = Limit::default();
        self.unacked = conn.sq_psn;
        self.frontier = conn.sq_psn;
        self.resend_until = conn.sq_psn;
        self.window = window::Window::new();
        self.rtt = rtt::Rtt::default();
        (self.refused, self.rnr_probe) = (None, None);
        self.reset_retries(conn);
    }

    /// Takes a work request in.
    pub fn post(&mut self, wr: &SendWr<'_>, flow: Option<Flow>, conn: &Connection) -> Result<(), PostError> {
        if wr.op.awaits_response()
            && conn.max_rd_atomic == 0
            && matches!(conn.state, QpState::Rts | QpState::Sqd)
        {
            return Err(PostError::NoReadResources);
        }
        let to = match (wr.to, flow) {
            (Some(Destination::Qp { qpn, qkey, .. }), Some(flow)) => {
                let qkey = if qkey.0 >> 31 == 1 { conn.qkey } else { qkey };
                Some(Datagram { flow, qpn, qkey })
            }
            _ => None,
        };
        self.queue.post(wr, to, false, conn)?;
        self.is_held = false;
        Ok(())
    }

    /// Takes a work request in that completes with LOC_QP_OP_ERR in its turn.
    pub fn post_to_fail(&mut self, wr: &SendWr<'_>, conn: &Connection) -> Result<(), PostError> {
        self.queue.post(wr, None, true, conn)?;
        self.is_held = false;
        Ok(())
    }

    /// Sends nothing until the next post.
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    /// The place behind all that is posted.
    pub fn mark(&self) -> Mark {
        self.queue.mark()
    }

    /// Forgets what was posted since `mark`, before anything was sent.
    pub fn roll_back(&mut self, mark: &Mark) {
        self.queue.roll_back(mark);
    }

    /// Whether there are posted packets that were never sent, or are to be sent again.
    pub fn has_unsent(&self) -> bool {
        self.cursor.wqe < self.queue.end() && !self.is_held || self.ask.due().is_some()
    }

    /// Whether nothing is in flight, nor begun.
    pub fn is_drained(&self) -> bool {
        self.cursor.packet == 0 && !self.unacked.is_before(self.frontier) && self.failed.is_none()
    }

    /// Flight cost of what was sent, since the last going back if there was one, and is not acknowledged.
    pub fn in_flight(&self, mtu: Mtu) -> u64 {
        let sent = match self.queue.get(self.cursor.wqe) {
            Some(wqe) => wqe.cost_at(self.cursor.packet, mtu),
            None => self.queue.cost,
        };
        sent - self.acked_cost
    }

    /// Whether what was posted may wait for company: an answer is on its way that brings the next turn, with so much in
    /// flight that the peer is busy until then.
    pub fn may_gather(&self, mtu: Mtu) -> bool {
        let unsent = (self.queue.cost - self.acked_cost).saturating_sub(self.in_flight(mtu));
        self.ask.awaits_answer()
            && self.ask.due().is_none()
            && self.in_flight(mtu) >= GATHERED
            && unsent < GATHERED
    }

    pub fn is_crowded_out(&self) -> bool {
        self.crowded_out
    }

    /// The PSN of the next packet to send.
    pub fn next_psn(&self) -> Psn {
        match self.queue.get(self.cursor.wqe) {
            Some(wqe) => wqe.first_psn + self.cursor.packet,
            None => self.queue.next_psn,
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        earliest([self.pause, self.timer, self.ask.deadline()])
    }

    /// Completes all work requests as flushed, in order.
    pub fn flush(&mut self, conn: &Connection, env: &mut Env<'_>) {
        while let Some(wqe) = self.queue.front() {
            env.out.push(Output::Sent(Completion {
                opcode: wqe.op.completion_opcode(),
                ..failure(conn, wqe.wr_id, WcStatus::WrFlushErr)
            }));
            self.queue.retire();
        }
        self.quiesce();
    }

    /// Forgets all work requests without a completion (RESET).
    pub fn clear(&mut self) {
        self.queue.clear();
        self.quiesce();
    }

    fn quiesce(&mut self) {
        self.cursor = Cursor { wqe: self.queue.end(), packet: 0 };
        self.acked_cost = self.queue.cost;
        self.reads.clear();
        (self.pause, self.timer, self.gap, self.failed) = (None, None, None, None);
        (self.rnr_probe, self.is_held) = (None, false);
        self.ask.settled();
        self.rtt.forget();
    }

    fn reset_retries(&mut self, conn: &Connection) {
        self.silent = 0;
        self.retries_left = conn.retry_cnt;
        self.rnr_retries_left = conn.rnr_retry;
    }

    /// Completes the oldest work request with an error; the queue pair is done for.
    fn fail_oldest(&mut self, status: WcStatus, conn: &Connection, env: &mut Env<'_>) -> Fatal {
        if let Some(wqe) = self.queue.front() {
            let opcode = wqe.op.completion_opcode();
            env.out.push(Output::Sent(Completion { opcode, ..failure(conn, wqe.wr_id, status) }));
            self.queue.retire();
        }
        Fatal
    }
}

/// A completion that says no more than that `wr_id` failed.
pub(super) fn failure(conn: &Connection, wr_id: u64, status: WcStatus) -> Completion {
    Completion {
        wr_id,
        status,
        opcode: super::WcOpcode::Send,
        byte_len: 0,
        imm: None,
        invalidated: None,
        qpn: conn.qpn,
        src_qpn: conn.dest_qpn,
        vendor_err: 0,
        solicited: true,
        grh: false,
        over_ipv4: false,
        pkey_index: 0,
    }
}
