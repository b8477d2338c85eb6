//! The requester: builds requests from the send queue and completes them on responses.
//!
//! [`build`] sends what the congestion window allows, [`run`] sends packets in bulk, [`manage`] executes
//! local operations, [`ask`] requests acknowledgements and sends tail loss probes, [`response`] processes
//! acknowledgements, NAKs and response data, [`retry`] recovers from losses (go-back-N, timers), [`rtt`]
//! estimates the round-trip time and the retransmission timeout (RTO), [`window`] is the congestion window.
//! `cursor` is the next packet to send (snd_nxt), `unacked` the oldest unacknowledged PSN (snd_una),
//! `frontier` the highest PSN sent plus one (snd_max).

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

/// Flight cost that keeps a peer busy while as much again is batched.
const GATHERED: u64 = 128 << 10;

/// Position of a packet: work request and packet within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursor {
    wqe: u64,
    packet: u32,
}

#[derive(Debug)]
pub(super) struct Requester {
    queue: SendQueue,
    /// Next packet to send (snd_nxt).
    cursor: Cursor,
    /// Oldest unacknowledged PSN (snd_una); for a READ, the next response.
    unacked: Psn,
    /// Highest PSN sent plus one (snd_max).
    frontier: Psn,
    /// Last PSN of each READ and atomic in flight, oldest first.
    reads: VecDeque<Psn>,
    /// PSN of the packet that the peer RNR-NAKed last.
    refused: Option<Psn>,
    /// The RNR-NAKed work request, until it is acknowledged: only it is retransmitted after the RNR wait.
    rnr_probe: Option<u64>,
    /// End of the RNR wait.
    pause: Option<Instant>,
    /// Expiry of the local ACK timer.
    timer: Option<Instant>,
    /// Consecutive local ACK timeouts.
    silent: u32,
    retries_left: u8,
    rnr_retries_left: u8,
    /// Congestion window.
    window: window::Window,
    /// Flight cost of everything that the peer has acknowledged.
    acked_cost: u64,
    /// The last turn was blocked by the per-peer window, which other queue pairs use up.
    crowded_out: bool,
    /// Missing response for which requests have already been retransmitted.
    gap: Option<Psn>,
    /// PSNs before this one have been sent before: sending them is a retransmission.
    resend_until: Psn,
    /// Work request that failed locally, to be completed once it is the oldest.
    failed: Option<(u64, WcStatus)>,
    /// Index after the newest executed local operation; a go-back does not repeat it.
    managed: u64,
    /// Work requests were posted before RTS, and none since: nothing is sent.
    is_held: bool,
    /// The path has failed (migration): the retries are used up, but an alternate path is armed.
    gives_path_up: bool,
    /// End-to-end credit limit that the peer has advertised.
    credit: Limit,
    /// Acknowledgement requests and tail loss probes.
    ask: ask::Ask,
    /// Round-trip time estimator.
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

    /// Enters RTS; the first packet gets the PSN `conn.sq_psn`.
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

    /// Queues a work request.
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

    /// Queues a work request that completes with LOC_QP_OP_ERR in its turn.
    pub fn post_to_fail(&mut self, wr: &SendWr<'_>, conn: &Connection) -> Result<(), PostError> {
        self.queue.post(wr, None, true, conn)?;
        self.is_held = false;
        Ok(())
    }

    /// Holds back everything until the next post.
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    /// Returns the position after everything posted.
    pub fn mark(&self) -> Mark {
        self.queue.mark()
    }

    /// Removes what was posted since `mark`, of which nothing may have been sent.
    pub fn roll_back(&mut self, mark: &Mark) {
        self.queue.roll_back(mark);
    }

    /// Reports whether something is to be sent: posted packets, retransmissions or a probe.
    pub fn has_unsent(&self) -> bool {
        self.cursor.wqe < self.queue.end() && !self.is_held || self.ask.due().is_some()
    }

    /// Reports whether no message is partly sent and nothing is in flight.
    pub fn is_drained(&self) -> bool {
        self.cursor.packet == 0 && !self.unacked.is_before(self.frontier) && self.failed.is_none()
    }

    /// Flight cost of what is sent, since the last go-back if any, and not acknowledged.
    pub fn in_flight(&self, mtu: Mtu) -> u64 {
        let sent = match self.queue.get(self.cursor.wqe) {
            Some(wqe) => wqe.cost_at(self.cursor.packet, mtu),
            None => self.queue.cost,
        };
        sent - self.acked_cost
    }

    /// Reports whether posted work may wait for batching: an acknowledgement is outstanding that triggers the
    /// next turn, and enough is in flight to keep the peer busy until then.
    pub fn may_gather(&self, mtu: Mtu) -> bool {
        let unsent = (self.queue.cost - self.acked_cost).saturating_sub(self.in_flight(mtu));
        self.ask.awaits_answer()
            && self.ask.due().is_none()
            && self.in_flight(mtu) >= GATHERED
            && unsent < GATHERED
    }

    /// Reports whether the last turn was blocked by the per-peer window.
    pub fn is_crowded_out(&self) -> bool {
        self.crowded_out
    }

    /// PSN of the next packet to send.
    pub fn next_psn(&self) -> Psn {
        match self.queue.get(self.cursor.wqe) {
            Some(wqe) => wqe.first_psn + self.cursor.packet,
            None => self.queue.next_psn,
        }
    }

    /// Time of the earliest timer: RNR wait, local ACK timeout or probe.
    pub fn next_deadline(&self) -> Option<Instant> {
        earliest([self.pause, self.timer, self.ask.deadline()])
    }

    /// Completes all work requests with WR_FLUSH_ERR, in order.
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

    /// Drops all work requests without a completion (RESET).
    pub fn clear(&mut self) {
        self.queue.clear();
        self.quiesce();
    }

    /// Stops all timers and clears what is in flight.
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

    /// Completes the oldest work request with an error; the queue pair must enter the error state.
    fn fail_oldest(&mut self, status: WcStatus, conn: &Connection, env: &mut Env<'_>) -> Fatal {
        if let Some(wqe) = self.queue.front() {
            let opcode = wqe.op.completion_opcode();
            env.out.push(Output::Sent(Completion { opcode, ..failure(conn, wqe.wr_id, status) }));
            self.queue.retire();
        }
        Fatal
    }
}

/// Returns a completion that contains only the failure of `wr_id`.
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
