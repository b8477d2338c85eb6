//! Response processing: acknowledgements, NAKs, READ responses and atomic responses.

use super::{Cursor, Fatal, Requester};
use crate::burst::{PayloadRun, ReceivedPayload};
use crate::transport::connection::Connection;
use crate::transport::credits::CreditLimit;
use crate::transport::observer::QpEvent;
use crate::transport::recovery::Action;
use crate::transport::slow_event::EventKind;
use crate::transport::{Completion, CountedOps, Env, Output, QpType, WcStatus, WrOp};
use crate::wire::{Aeth, NakCode, Operation, Packet, Psn, RnrTimer, Syndrome};

/// Reports whether the peer answers `op` with READ responses. FLUSH and ATOMIC WRITE are answered like a READ
/// of zero bytes (annex A19.4.3).
const fn is_answered_like_a_read(op: WrOp) -> bool {
    matches!(op, WrOp::Read { .. } | WrOp::AtomicWrite { .. } | WrOp::Flush { .. })
}

/// Range that an acknowledgement covered.
#[derive(PartialEq, Eq)]
enum Acked {
    /// Everything up to the acknowledged PSN.
    All,
    /// Everything before a READ or atomic whose response has not arrived: that response was lost (IBA
    /// 9.7.5.2.8).
    UntilRead,
}

impl Requester {
    /// Processes a response packet.
    pub fn handle(&mut self, packet: &Packet<'_>, conn: &Connection, env: &mut Env<'_>) -> Result<(), Fatal> {
        let psn = packet.bth().psn;
        if psn.is_before(self.snd_una) || !psn.is_before(self.snd_max) {
            // A duplicate, or a response to a request that was never sent (a ghost).
            env.counters.unexpected_response += 1;
            return Ok(());
        }
        if let Some(Aeth { syndrome: Syndrome::Ack { credits }, msn }) = packet.aeth()
            && conn.quirks().credits
        {
            self.credit = CreditLimit::new(msn, credits);
        }
        if packet.row().operation != Operation::ReadResponse {
            self.settle_progress(conn, env);
        }
        match packet.row().operation {
            Operation::Acknowledge => {
                let syndrome = packet.aeth().map_or(Syndrome::Reserved(0), |a| a.syndrome);
                if syndrome.is_nak() {
                    let qpn = conn.qpn;
                    trace_event!(DEBUG, "urxe::nak", "NAK received", qpn = %qpn, psn = %psn, syndrome = ?syndrome);
                    conn.observe(Some(env.now), || QpEvent::NakReceived(psn, syndrome));
                }
                match syndrome {
                    Syndrome::Ack { .. } => {
                        if self.acknowledge(psn, conn, env)? == Acked::UntilRead {
                            self.on_implied_nak(conn, env)?;
                        }
                    }
                    Syndrome::RnrNak(timer) => self.on_rnr_nak(psn, timer, conn, env)?,
                    Syndrome::Nak(code) => self.on_nak(psn, code, conn, env)?,
                    Syndrome::Reserved(_) => env.counters.unexpected_response += 1,
                }
            }
            Operation::ReadResponse => self.read_response(psn, env.payload_of(packet), conn, env)?,
            Operation::AtomicAcknowledge => {
                let original = packet.atomic_ack().map_or(0, |a| a.original);
                self.atomic_response(psn, original, conn, env)?;
            }
            _ => env.counters.unexpected_response += 1,
        }
        self.settle_failure(conn, env)
    }

    /// Acknowledges everything up to and including `last`.
    fn acknowledge(&mut self, last: Psn, conn: &Connection, env: &mut Env<'_>) -> Result<Acked, Fatal> {
        let before = self.snd_una;
        let mut acked = Acked::All;
        while let Some(wqe) = self.queue.front()
            && !last.is_before(self.snd_una)
        {
            if wqe.op.awaits_response() {
                acked = Acked::UntilRead;
                break;
            }
            if last.next().is_before(wqe.end_psn()) {
                self.snd_una = last.next();
                break;
            }
            self.retire(conn, Output::Sent, env);
        }
        if self.snd_una != before {
            self.on_progress(conn, env);
        }
        Ok(acked)
    }

    /// Retires the oldest work request and the local operations behind it that have already been executed.
    /// `report` converts a completion into an [`Output`].
    #[inline]
    pub(super) fn retire(&mut self, conn: &Connection, report: fn(Completion) -> Output, env: &mut Env<'_>) {
        self.retire_one(conn, report, env);
        self.retire_local_ops(conn, report, env);
    }

    /// Retires the oldest work request, and reports its completion if it is signaled.
    #[inline(always)]
    pub(super) fn retire_one(
        &mut self,
        conn: &Connection,
        report: fn(Completion) -> Output,
        env: &mut Env<'_>,
    ) {
        let Some(wqe) = self.queue.front() else { return };
        self.snd_una = wqe.end_psn();
        env.counters.rdma_sends += 1;
        if wqe.len > self.longest_acked {
            self.longest_acked = wqe.len;
        }
        conn.op_counters.completed(CountedOps::of(&wqe.op), wqe.len);
        if wqe.flags.signaled || conn.signal_all {
            env.out.push(report(Completion {
                opcode: wqe.op.completion_opcode(),
                byte_len: wqe.len,
                solicited: false,
                ..conn.completion(wqe.wr_id, WcStatus::Success)
            }));
            self.queue.on_completion();
        }
        self.queue.retire();
    }

    /// Reports the READ responses since the last call to loss recovery and congestion control. One report per
    /// response costs a tenth of the throughput: fio's READs of 256 KiB reach 24 to 26 instead of 26 to
    /// 29 Gb/s over sockets.
    #[inline]
    pub fn settle_progress(&mut self, conn: &Connection, env: &mut Env<'_>) {
        if self.has_advanced {
            self.on_progress(conn, env);
        }
    }

    /// Handles an advance of `snd_una`, and reports it to loss recovery and congestion control.
    fn on_progress(&mut self, conn: &Connection, env: &mut Env<'_>) {
        self.has_advanced = false;
        while self.reads.front().is_some_and(|last| last.is_before(self.snd_una)) {
            self.reads.pop_front();
        }
        // After a go-back, an acknowledgement of the first transmission may overtake the cursor.
        if self.next_psn().is_before(self.snd_una) || self.snd_nxt.wqe < self.queue.start() {
            self.snd_nxt = self.position_of_snd_una();
        }
        // A work request that failed on retransmission has succeeded if its first transmission is
        // acknowledged.
        self.failed = self.failed.filter(|(index, _)| *index >= self.queue.start());
        self.recovery.on_progress(&self.flight(), self.queue.start(), conn, env.now, env.tuning);
        let acked = match self.queue.front() {
            Some(wqe) => wqe.cost_at(self.snd_una.since(wqe.first_psn).max(0) as u32, conn.attr.mtu),
            None => self.queue.cost,
        };
        self.congestion.on_ack(acked - self.acked_cost, &self.path_state(conn, env));
        self.acked_cost = acked;
    }

    /// Returns the position of `snd_una` in the send queue.
    pub(super) fn position_of_snd_una(&self) -> Cursor {
        match self.queue.front() {
            Some(wqe) => {
                Cursor { wqe: self.queue.start(), packet: self.snd_una.since(wqe.first_psn).max(0) as u32 }
            }
            None => Cursor { wqe: self.queue.end(), packet: 0 },
        }
    }

    /// Acknowledges everything before `psn`, as implied by a NAK and by the response to a READ or atomic.
    /// Returns false if an earlier response is missing, in which case `psn` is not the oldest unacknowledged
    /// PSN.
    fn acknowledge_before(&mut self, psn: Psn, conn: &Connection, env: &mut Env<'_>) -> Result<bool, Fatal> {
        if psn != self.snd_una && self.acknowledge(psn.prev(), conn, env)? == Acked::UntilRead {
            self.on_implied_nak(conn, env)?;
            return Ok(false);
        }
        Ok(psn == self.snd_una)
    }

    fn read_response(
        &mut self,
        psn: Psn,
        data: ReceivedPayload<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Fatal> {
        if psn != self.snd_una {
            self.settle_progress(conn, env);
            if !self.acknowledge_before(psn, conn, env)? {
                return Ok(());
            }
        }
        let Some(wqe) = self.queue.front().filter(|w| is_answered_like_a_read(w.op)) else {
            env.counters.unexpected_response += 1;
            return Ok(());
        };
        let mtu = conn.attr.mtu.bytes() as u32;
        let offset = psn.since(wqe.first_psn) as u32 * mtu;
        let expected = (wqe.len - offset).min(mtu);
        // The position in the opcode is not checked: a READ that is requested again from the middle may be
        // answered as a new message (FIRST) or as the rest of the old one (rxe: MIDDLE).
        if data.len() != expected as usize {
            self.settle_progress(conn, env);
            return Err(self.fail_oldest(WcStatus::BadRespErr, conn, env));
        }
        if self.queue.scatter(wqe, offset, data, conn.accessor(), env).is_err() {
            if env.has_lost_payload() {
                return Ok(());
            }
            self.settle_progress(conn, env);
            return Err(self.fail_oldest(WcStatus::LocProtErr, conn, env));
        }
        if psn.next() == wqe.end_psn() {
            self.retire(conn, Output::Sent, env);
            self.on_progress(conn, env);
        } else {
            self.snd_una = psn.next();
            self.has_advanced = true;
        }
        Ok(())
    }

    /// Stores the payloads of the READ responses that follow `packet`, a middle packet, with consecutive
    /// PSNs, and returns their number. The others must be processed one by one.
    pub fn continue_read_run(
        &mut self,
        packet: &Packet<'_>,
        run: &PayloadRun<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> usize {
        let each = conn.attr.mtu.bytes();
        let Some(wqe) = self.queue.front().filter(|w| matches!(w.op, WrOp::Read { .. })) else { return 0 };
        if packet.bth().psn.next() != self.snd_una
            || packet.payload().len() != each
            || !self.snd_una.is_before(wqe.end_psn())
        {
            return 0;
        }
        let at = self.snd_una.since(wqe.first_psn) as usize * each;
        // At least one byte is left for the last packet.
        let left = (wqe.len as usize).saturating_sub(at + 1);
        let requested = self.snd_max.since(self.snd_una).max(0) as usize;
        let most = run.count().min(left / each).min(requested);
        if most == 0 {
            return 0;
        }
        let found = self.queue.gather(wqe, at as u32, (most * each) as u32, conn.accessor(), env);
        let (Ok(()), [first, ..]) = (found, &env.scratch[..]) else { return 0 };
        let count = first.len() / each;
        if count == 0 || run.store_to(first.split_at(count * each).0, each).is_err() {
            return 0;
        }
        self.snd_una += count as u32;
        self.has_advanced = true;
        count
    }

    fn atomic_response(
        &mut self,
        psn: Psn,
        original: u64,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Fatal> {
        if !self.acknowledge_before(psn, conn, env)? {
            return Ok(());
        }
        let Some(wqe) = self.queue.front().filter(|w| matches!(w.op, WrOp::Atomic { .. })) else {
            env.counters.unexpected_response += 1;
            return Ok(());
        };
        let bytes = original.to_ne_bytes();
        if self.queue.scatter(wqe, 0, ReceivedPayload::of(&bytes), conn.accessor(), env).is_err() {
            return Err(self.fail_oldest(WcStatus::LocProtErr, conn, env));
        }
        self.retire(conn, Output::Sent, env);
        self.on_progress(conn, env);
        Ok(())
    }

    /// Handles an RNR NAK.
    fn on_rnr_nak(
        &mut self,
        psn: Psn,
        timer: RnrTimer,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Fatal> {
        env.counters.rcvd_rnr_err += 1;
        if !self.acknowledge_before(psn, conn, env)? {
            return Ok(());
        }
        let wait = timer.duration();
        let left = self.recovery.retries().1;
        if !self.recovery.is_in_rnr_wait() {
            self.record(psn, EventKind::RnrNak { wait, left }, conn, env);
        }
        let action = self.recovery.on_rnr_nak(psn, self.queue.start(), wait, conn, env.now);
        if action == Action::GoBackN {
            trace_event!(DEBUG, "urxe::recovery", "RNR wait", qpn = %conn.qpn, psn = %psn, wait = ?wait);
        }
        self.carry_out(action, "RNR NAK", conn, env)
    }

    /// Handles a NAK: retransmits after a sequence error, and fails the oldest work request on any other
    /// assigned code.
    fn on_nak(&mut self, psn: Psn, code: NakCode, conn: &Connection, env: &mut Env<'_>) -> Result<(), Fatal> {
        let status = match code {
            NakCode::PsnSequenceError => None,
            NakCode::InvalidRequest | NakCode::InvalidRdRequest => Some(WcStatus::RemInvReqErr),
            NakCode::RemoteAccessError => Some(WcStatus::RemAccessErr),
            NakCode::RemoteOperationalError => Some(WcStatus::RemOpErr),
            // Dropped before the requests in front of its PSN count as acknowledged (IBA 9.7.6).
            NakCode::Reserved(_) => {
                env.counters.unexpected_response += 1;
                return Ok(());
            }
        };
        env.counters.rcvd_seq_err += status.is_none() as u64;
        if !self.acknowledge_before(psn, conn, env)? {
            return Ok(());
        }
        let kind = if status.is_none() { EventKind::SequenceNak } else { EventKind::Nak(code) };
        self.record(psn, kind, conn, env);
        let Some(status) = status else {
            let is_repairable = self.is_repairable(conn);
            return match self.recovery.on_sequence_nak(psn, is_repairable, &self.flight()) {
                Some(loss) => self.recover(loss, "sequence error NAK", conn, env),
                None => Ok(()),
            };
        };
        env.counters.req_remote_err += 1;
        Err(self.fail_oldest(status, conn, env))
    }

    /// Reports whether the oldest packet may be retransmitted alone. It may not if READs or atomics are in
    /// flight, which the peer does not keep: the retransmission of the newest packet does not include
    /// them, so nothing would reveal the loss.
    fn is_repairable(&self, conn: &Connection) -> bool {
        conn.quirks().selective_repeat && conn.qp_type == QpType::Rc && self.reads.is_empty()
    }

    /// Handles a missing response, revealed by a later response (implied NAK).
    fn on_implied_nak(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Fatal> {
        match self.recovery.on_implied_nak(&self.flight()) {
            Some(loss) => {
                env.counters.implied_nak_seq_err += 1;
                self.record(self.snd_una, EventKind::MissingResponse, conn, env);
                self.recover(loss, "missing response", conn, env)
            }
            None => Ok(()),
        }
    }
}
