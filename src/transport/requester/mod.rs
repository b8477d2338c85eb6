//! The requester: builds requests from the send queue, and completes work requests as responses arrive.
//!
//! [`build`] sends what the congestion window allows, [`bulk`] sends packets in bulk, [`local_ops`] executes
//! local operations, [`ack_request`] requests acknowledgements, [`diagnosis`] records failures, [`response`]
//! processes acknowledgements, NAKs and response data. When a packet is retransmitted is decided by
//! [`recovery`](super::recovery) and carried out by [`retransmit`]. The congestion window is that of a
//! [`QpController`]. `snd_nxt` is the next packet to send, `snd_una` the oldest unacknowledged PSN, `snd_max`
//! the highest PSN sent plus one.

mod ack_request;
mod build;
mod bulk;
mod diagnosis;
mod local_ops;
mod response;
mod retransmit;

use std::collections::VecDeque;

use super::congestion::{PathState, QpController};
use super::connection::{Connection, Fatal};
use super::credits::CreditLimit;
use super::recovery::Recovery;
use super::send_queue::{Datagram, SendQueue};
use super::{
    Completion, CountedOps, Destination, Env, Output, PolledSends, PostError, QpState, Quirks, SendCaps,
    SendWr, WcStatus,
};
use crate::memory::withdraw_payloads;
use crate::wire::{Flow, Mtu, Psn};

/// Flight cost that keeps a peer busy while a batch of up to the same cost is collected.
const BATCH_COST: u64 = 128 << 10;

/// Position of a packet: the index of its work request, and its own index within that work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Cursor {
    wqe: u64,
    packet: u32,
}

#[derive(Debug, Default)]
pub(super) struct Requester {
    pub(super) queue: SendQueue,
    /// Next packet to send.
    snd_nxt: Cursor,
    /// Oldest unacknowledged PSN; for a READ, the PSN of the next response packet.
    snd_una: Psn,
    /// Highest PSN sent, plus one.
    snd_max: Psn,
    /// Last PSN of each READ and atomic in flight, oldest first.
    reads: VecDeque<Psn>,
    pub(super) recovery: Recovery,
    pub(super) congestion: QpController,
    /// Length of the longest message that the peer has acknowledged, in bytes.
    longest_acked: u32,
    /// Total flight cost of everything that the peer has acknowledged.
    acked_cost: u64,
    /// Whether `snd_una` has advanced since [`on_progress`](Self::on_progress).
    has_advanced: bool,
    /// Whether the per-peer window blocked the last turn because other queue pairs had used it up.
    pub(super) is_blocked_by_peer_window: bool,
    /// Index and status of a work request that failed locally; it is completed once it is the oldest.
    failed: Option<(u64, WcStatus)>,
    /// Index after the newest executed local operation, so that a go-back does not execute local operations
    /// again.
    local_ops_done: u64,
    /// Whether the queued work requests are held back until the next post, because they were posted before
    /// RTS.
    pub(super) is_held: bool,
    /// Whether the queue pair must migrate: the retries are used up, and an alternate path is armed.
    pub(super) path_failed: bool,
    /// End-to-end credit limit advertised by the peer.
    credit: CreditLimit,
}

impl Requester {
    pub fn new(caps: SendCaps, quirks: &Quirks) -> Requester {
        Requester { queue: SendQueue::new(caps, quirks), ..Requester::default() }
    }

    /// Starts sending with PSN `conn.attr.sq_psn` (transition to RTS).
    pub fn start(&mut self, conn: &Connection) {
        self.acked_cost = self.queue.begin(conn);
        self.credit = CreditLimit::default();
        self.snd_una = conn.attr.sq_psn;
        self.snd_max = conn.attr.sq_psn;
        self.recovery = Recovery::new(conn);
        self.longest_acked = 0;
    }

    /// Returns the counter of polled completions, if they free the slots of the send queue.
    pub fn polled_sends(&self) -> Option<&PolledSends> {
        self.queue.slots.as_ref().map(|slots| &slots.polled)
    }

    /// Queues a work request.
    // Always inline: saves 26 of 1991 instructions for an 8-byte WRITE (callgrind).
    #[inline(always)]
    pub fn post(&mut self, wr: &SendWr<'_>, flow: Option<Flow>, conn: &Connection) -> Result<(), PostError> {
        if wr.op.awaits_response()
            && conn.attr.max_rd_atomic == 0
            && matches!(conn.state, QpState::Rts | QpState::Sqd)
        {
            return Err(PostError::NoReadResources);
        }
        let to = match (wr.to, flow) {
            (Some(Destination::Qp { qpn, qkey, .. }), Some(flow)) => {
                let qkey = if qkey.0 >> 31 == 1 { conn.attr.qkey } else { qkey };
                Some(Datagram { flow, qpn, qkey })
            }
            _ => None,
        };
        self.queue.post(wr, to, false, conn)?;
        self.is_held = false;
        Ok(())
    }

    /// Queues a work request that will complete with LOC_QP_OP_ERR in its turn.
    pub fn post_to_fail(&mut self, wr: &SendWr<'_>, conn: &Connection) -> Result<(), PostError> {
        self.queue.post(wr, None, true, conn)?;
        self.is_held = false;
        Ok(())
    }

    /// Reports whether posted packets, retransmissions or a probe are waiting to be sent.
    pub fn has_unsent(&self) -> bool {
        self.snd_nxt.wqe < self.queue.end() && !self.is_held || self.recovery.probe_due().is_some()
    }

    /// Reports whether no message is partially sent and nothing is in flight.
    pub fn is_drained(&self) -> bool {
        // READ responses that are not reported yet belong to an incomplete READ.
        let is_incomplete = self.has_advanced || self.snd_nxt.packet != 0;
        !is_incomplete && !self.snd_una.is_before(self.snd_max) && self.failed.is_none()
    }

    /// Returns the flight cost of all packets sent (since the last go-back, if any) but not yet acknowledged.
    pub fn in_flight(&self, mtu: Mtu) -> u64 {
        let sent = match self.queue.get(self.snd_nxt.wqe) {
            Some(wqe) => wqe.cost_at(self.snd_nxt.packet, mtu),
            None => self.queue.cost,
        };
        sent - self.acked_cost
    }

    /// Reports whether posted work requests may wait to be batched: an outstanding acknowledgement will
    /// trigger the next turn, and enough is in flight to keep the peer busy until then.
    pub fn may_batch(&self, mtu: Mtu) -> bool {
        let unsent = (self.queue.cost - self.acked_cost).saturating_sub(self.in_flight(mtu));
        self.recovery.awaits_ack()
            && self.recovery.probe_due().is_none()
            && self.in_flight(mtu) >= BATCH_COST
            && unsent < BATCH_COST
    }

    /// Returns the path state for the congestion controller.
    fn path_state<'e>(&self, conn: &Connection, env: &Env<'e>) -> PathState<'e> {
        PathState {
            peer_window: env.window as u64,
            mtu: conn.attr.mtu,
            rtt: self.recovery.round_trip(),
            now: env.now,
            config: &env.tuning.congestion,
        }
    }

    /// Returns the destination of the next datagram to send; `None` if there is none.
    pub fn next_datagram(&self) -> Option<&Datagram> {
        self.queue.destination(self.queue.get(self.snd_nxt.wqe)?)
    }

    /// Returns the indices of the incomplete work requests of which packets have been sent.
    #[cfg(feature = "live")]
    pub fn begun(&self) -> std::ops::Range<u64> {
        let begun = self.snd_nxt.wqe + u64::from(self.snd_nxt.packet > 0);
        self.queue.start()..begun.clamp(self.queue.start(), self.queue.end())
    }

    /// Returns the oldest unacknowledged PSN.
    #[cfg(feature = "live")]
    pub fn unacknowledged(&self) -> Psn {
        self.snd_una
    }

    /// Returns the PSN of the next packet to send.
    pub fn next_psn(&self) -> Psn {
        match self.queue.get(self.snd_nxt.wqe) {
            Some(wqe) => wqe.first_psn + self.snd_nxt.packet,
            None => self.queue.next_psn,
        }
    }

    /// Completes all work requests with WR_FLUSH_ERR, in order.
    pub fn flush(&mut self, conn: &Connection, env: &mut Env<'_>) {
        while self.complete_failed(WcStatus::WrFlushErr, conn, env) {}
        self.quiesce();
    }

    /// Drops all work requests without completing them (RESET).
    pub fn clear(&mut self) {
        self.queue.clear();
        self.quiesce();
    }

    /// Withdraws payloads that other processes may still copy, if any request is not acknowledged. To be
    /// called before the requests in flight end.
    pub fn withdraw(&self) {
        if self.snd_una.is_before(self.snd_max) {
            withdraw_payloads();
        }
    }

    /// Stops all timers and forgets everything in flight.
    fn quiesce(&mut self) {
        self.withdraw();
        self.snd_nxt = Cursor { wqe: self.queue.end(), packet: 0 };
        self.acked_cost = self.queue.cost;
        self.reads.clear();
        (self.failed, self.is_held, self.has_advanced) = (None, false, false);
        self.recovery.stop();
    }

    /// Completes the oldest work request with an error. The caller must move the queue pair to the error
    /// state.
    fn fail_oldest(&mut self, status: WcStatus, conn: &Connection, env: &mut Env<'_>) -> Fatal {
        self.record_failure(status, conn, env);
        self.complete_failed(status, conn, env);
        Fatal
    }

    /// Completes the oldest work request with an error. Returns false if there is none.
    fn complete_failed(&mut self, status: WcStatus, conn: &Connection, env: &mut Env<'_>) -> bool {
        let Some(wqe) = self.queue.front() else { return false };
        let opcode = wqe.op.completion_opcode();
        conn.op_counters.failed(CountedOps::of(&wqe.op));
        env.out.push(Output::Sent(Completion { opcode, ..conn.completion(wqe.wr_id, status) }));
        self.queue.on_completion();
        self.queue.retire();
        true
    }
}
