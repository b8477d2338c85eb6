//! Retransmission: carries out the decisions of [loss recovery](crate::transport::recovery).

use super::{Fatal, Requester};
use crate::transport::connection::Connection;
use crate::transport::observer::QpEvent;
use crate::transport::recovery::{Action, Flight, Loss, Probe, Timer};
use crate::transport::slow_event::EventKind;
use crate::transport::{Env, WcStatus};
use crate::wire::Psn;

impl Requester {
    /// Recovers from a packet loss, and reduces the congestion window if the packet was lost on the path.
    pub(super) fn recover(
        &mut self,
        loss: Loss,
        cause: &'static str,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Fatal> {
        if loss != Loss::BehindNak {
            self.congestion.on_loss(loss == Loss::Single, &self.path_state(conn, env));
        }
        let action = self.recovery.on_loss(loss, conn);
        self.carry_out(action, cause, conn, env)
    }

    /// Carries out a recovery action; `cause` is traced as the reason.
    pub(super) fn carry_out(
        &mut self,
        action: Action,
        cause: &'static str,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Fatal> {
        match action {
            Action::Continue => {}
            Action::GoBackN => self.go_back_n(cause, conn, env),
            Action::Repair => {
                self.record_retransmission(cause, self.snd_una.next(), conn, env);
                self.recovery.on_repair(conn, env.now, env.tuning);
            }
            Action::FailPath => self.path_failed = true,
            Action::Fail(status) => {
                let (qpn, psn) = (conn.qpn, self.snd_una);
                trace_event!(DEBUG, "urxe::recovery", "retries exhausted", qpn = %qpn, cause = cause, psn = %psn, status = %status);
                env.counters.retry_exceeded_err += u64::from(status == WcStatus::RetryExcErr);
                env.counters.retry_rnr_exceeded_err += u64::from(status == WcStatus::RnrRetryExcErr);
                return Err(self.fail_oldest(status, conn, env));
            }
        }
        Ok(())
    }

    /// Moves the cursor (`snd_nxt`) back to the oldest unacknowledged PSN (`snd_una`), so that everything in
    /// flight is retransmitted (go-back-N).
    fn go_back_n(&mut self, cause: &'static str, conn: &Connection, env: &mut Env<'_>) {
        self.record_retransmission(cause, self.snd_max, conn, env);
        self.recovery.on_go_back_n(&self.flight());
        self.snd_nxt = self.position_of_snd_una();
        self.reads.clear();
        // Detected again when the cursor returns to it.
        self.failed = None;
    }

    /// Records that the packets from `snd_una` to `end` are about to be retransmitted.
    fn record_retransmission(&self, cause: &'static str, end: Psn, conn: &Connection, env: &mut Env<'_>) {
        let (qpn, psn, left) = (conn.qpn, self.snd_una, self.recovery.retries().0);
        trace_event!(DEBUG, "urxe::recovery", "retransmission", qpn = %qpn, cause = cause, psn = %psn, retries_left = left);
        env.counters.requester_retry += 1;
        conn.record(env.now, psn, None, EventKind::Resent { cause, end, left });
    }

    /// Retransmits all unacknowledged packets on the alternate path, with the retries restored.
    pub fn restart_on_alternate_path(&mut self, conn: &Connection, env: &mut Env<'_>) {
        self.recovery.on_new_path(conn);
        if self.snd_una.is_before(self.snd_max) {
            self.go_back_n("new path", conn, env);
        }
    }

    /// Handles the timers that have expired.
    pub fn handle_timeout(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Fatal> {
        let sent = self.recovery.ack_timer_start(conn, env.tuning);
        for timer in Timer::ALL {
            if !self.recovery.take_expired(timer, env.now) {
                continue;
            }
            match timer {
                Timer::RnrWait => self.recovery.on_rnr_wait_over(&self.flight(), self.queue.start()),
                Timer::ProbeTimeout | Timer::AckSilence => {
                    let newest = self.position_of_probe(Probe::Newest);
                    let action = self.recovery.on_probe_timer(timer, self.snd_una, newest.is_some());
                    if action == Action::Continue && timer == Timer::ProbeTimeout {
                        conn.record(env.now, self.snd_una, None, EventKind::Probe);
                    } else if let (Action::Continue, Some(newest)) = (action, newest) {
                        let psn = self
                            .queue
                            .get(newest.wqe)
                            .map_or(self.snd_una, |wqe| wqe.first_psn + newest.packet);
                        conn.observe(Some(env.now), || QpEvent::Slow(psn, EventKind::Probe));
                    }
                    self.carry_out(action, "probe timeout", conn, env)?;
                }
                Timer::LocalAck => {
                    env.counters.local_ack_timeout_err += 1;
                    let after = self.recovery.ack_timeout(conn, env.tuning).unwrap_or_default();
                    conn.record(env.now, self.snd_una, sent, EventKind::AckTimeout { after });
                    let loss = self.recovery.on_ack_timeout();
                    self.recover(loss, "local ACK timeout", conn, env)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the PSNs that delimit the packets in flight.
    pub(super) fn flight(&self) -> Flight {
        Flight { snd_una: self.snd_una, snd_nxt: self.next_psn(), snd_max: self.snd_max }
    }
}
