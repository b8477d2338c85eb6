//! Diagnosis of a failed work request: the record of the failure, from the queue pair's history.

use super::Requester;
use crate::memory::Accessor;
use crate::transport::connection::Connection;
use crate::transport::failure::{
    FailedRequest, Failure, FailureCause, LastAck, LocalCheck, PathSizes, RetryLimits, TransmissionEnd,
    transmissions,
};
use crate::transport::send_queue::SendWqe;
use crate::transport::slow_event::EventKind;
use crate::transport::{Env, WcStatus, WrOp};
use crate::wire::Psn;

impl Requester {
    /// Records an event that concerns the packet `psn`, the oldest unacknowledged one.
    #[cold]
    pub(super) fn record(&self, psn: Psn, kind: EventKind, conn: &Connection, env: &Env<'_>) {
        conn.record(env.now, psn, self.recovery.ack_timer_start(conn, env.tuning), kind);
    }

    /// Records why the oldest work request fails with `status`, and how it was transmitted.
    #[cold]
    pub(super) fn record_failure(&self, status: WcStatus, conn: &Connection, env: &Env<'_>) {
        let Some(wqe) = self.queue.front() else { return };
        let mut failure = conn.failure(self.cause_of(status, wqe, conn, env), env.now);
        let acknowledged = self.snd_una.since(wqe.first_psn).max(0) as u32;
        failure.request = Some(FailedRequest {
            wr_id: wqe.wr_id,
            opcode: wqe.op.completion_opcode(),
            status,
            len: wqe.len,
            psns: (wqe.packets > 0).then(|| (wqe.first_psn, wqe.end_psn().prev())),
            acknowledged: acknowledged.min(wqe.packets),
            packets: wqe.packets,
            remote: wqe.op.remote(),
        });
        let ago = |at| env.now.since(at);
        let recovery = &self.recovery;
        failure.last_ack =
            recovery.last_progress.map(|at| LastAck { psn: self.snd_una.prev(), ago: ago(at) });
        let was_sent = self.snd_una.is_before(self.snd_max);
        if was_sent {
            failure.transmissions = transmissions(&failure.events, self.snd_una);
        }
        if failure.cause == FailureCause::NoResponse {
            let heard = |t: &crate::transport::Transmission| match t.end {
                Some((ago, end)) if !matches!(end, TransmissionEnd::AckTimeout(_)) => Some(ago),
                _ => None,
            };
            let first = failure.transmissions.first().and_then(|t| t.sent);
            let acknowledged = failure.last_ack.map(|last| last.ago);
            let answers = failure.transmissions.iter().filter_map(heard);
            failure.silence = answers.chain(first).chain(acknowledged).min();
        }
        if was_sent && failure.cause.is_loss() {
            let mtu = conn.attr.mtu.bytes() as u32;
            let done = acknowledged.min(wqe.packets);
            let longest = if done > 0 { mtu } else { self.longest_acked.min(mtu) };
            failure.path = Some(PathSizes {
                mtu,
                lost: wqe.len.saturating_sub(done.saturating_mul(mtu)).min(mtu),
                acknowledged: recovery.last_progress.map(|_| longest),
            });
        }
        let (left, rnr_left) = recovery.retries();
        failure.retries = RetryLimits {
            ack_timeout: conn.attr.timeout.duration().map(|t| t.max(env.tuning.min_timeout)),
            retry_cnt: conn.attr.retry_cnt,
            retries_used: conn.attr.retry_cnt.saturating_sub(left),
            rnr_retry: conn.attr.rnr_retry,
            rnr_retries_used: conn.attr.rnr_retry.saturating_sub(rnr_left),
        };
        conn.history.set_failure(failure);
    }

    /// Returns the cause for which the oldest work request fails with `status`.
    fn cause_of(&self, status: WcStatus, wqe: &SendWqe, conn: &Connection, env: &Env<'_>) -> FailureCause {
        let newest = conn.history.newest(|kind| !matches!(kind, EventKind::Resent { .. } | EventKind::Probe));
        match (status, newest) {
            (WcStatus::RetryExcErr, Some(EventKind::SequenceNak)) => FailureCause::SequenceNaks,
            (WcStatus::RetryExcErr, Some(EventKind::MissingResponse)) => FailureCause::MissingResponses,
            (WcStatus::RetryExcErr, _) => FailureCause::NoResponse,
            (WcStatus::RnrRetryExcErr, _) => FailureCause::ReceiverNotReady,
            (WcStatus::BadRespErr, _) => FailureCause::BadResponse,
            (WcStatus::LocQpOpErr, _) => FailureCause::Unsupported,
            (
                WcStatus::RemInvReqErr | WcStatus::RemAccessErr | WcStatus::RemOpErr,
                Some(EventKind::Nak(code)),
            ) => FailureCause::Nak(code),
            _ => {
                let known = conn.history.take_failed_check(self.queue.start());
                FailureCause::Local(known.unwrap_or_else(|| self.local_check(wqe, conn, env)))
            }
        }
    }

    /// Records the local check that the work request with index `index` has just failed. It completes once it
    /// is the oldest, when the check might no longer fail.
    #[cold]
    pub(super) fn record_failed_check(&self, index: u64, status: WcStatus, conn: &Connection, env: &Env<'_>) {
        if matches!(status, WcStatus::LocProtErr | WcStatus::LocLenErr)
            && let Some(wqe) = self.queue.get(index)
        {
            conn.history.set_failed_check(index, self.local_check(wqe, conn, env));
        }
    }

    /// Repeats the checks of a work request, and returns the one that fails.
    fn local_check(&self, wqe: &SendWqe, conn: &Connection, env: &Env<'_>) -> LocalCheck {
        let mtu = conn.attr.mtu.bytes() as u32;
        if wqe.is_datagram() && wqe.len > mtu {
            return LocalCheck::TooLong { len: wqe.len, mtu };
        }
        let by: Accessor = conn.accessor();
        match self.queue.denied(wqe, by, env.memory) {
            Some((sge, error)) => LocalCheck::Access { sge, error },
            None => LocalCheck::Faulted,
        }
    }
}

impl WrOp {
    /// Returns the remote address and key, if the operation has them.
    fn remote(&self) -> Option<(u64, crate::wire::RKey)> {
        match *self {
            WrOp::Write { va, rkey }
            | WrOp::WriteWithImm { va, rkey, .. }
            | WrOp::Read { va, rkey }
            | WrOp::Atomic { va, rkey, .. }
            | WrOp::AtomicWrite { va, rkey, .. }
            | WrOp::Flush { va, rkey, .. } => Some((va, rkey)),
            _ => None,
        }
    }
}

impl Connection {
    /// Returns the record of a failure without a work request.
    pub(in crate::transport) fn failure(
        &self,
        cause: FailureCause,
        now: crate::transport::Instant,
    ) -> Failure {
        Failure {
            at: now.0,
            qpn: self.qpn,
            qp_type: self.qp_type,
            peer: self.flow.map(|flow| (flow.dst, self.attr.dest_qpn)),
            cause,
            request: None,
            transmissions: Vec::new(),
            last_ack: None,
            silence: None,
            path: None,
            retries: RetryLimits::default(),
            events: self.history.past(now),
        }
    }
}
