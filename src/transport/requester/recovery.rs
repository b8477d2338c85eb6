//! Loss recovery: go-back-N retransmission and the retransmission timers.

use super::ack_request::Probe;
use super::{Fatal, Requester};
use crate::transport::congestion::Controller;
use crate::transport::connection::Connection;
use crate::transport::{Env, MigrationState, WcStatus};

impl Requester {
    /// Recovers from a packet loss: reduces the congestion window and [retransmits](Self::retransmit).
    pub(super) fn on_loss(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Fatal> {
        self.congestion.on_loss(&self.path_state(conn, env));
        self.retransmit(conn, env)
    }

    /// Retransmits from the oldest unacknowledged packet on (go-back-N) if retries are left. Otherwise
    /// reports the path failed if an alternate path is armed, or fails the oldest work request with
    /// RETRY_EXC_ERR.
    pub(super) fn retransmit(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Fatal> {
        if self.retries_left == 0 && conn.migration == MigrationState::Armed {
            self.take_path_failed = true;
            return Ok(());
        }
        if self.retries_left == 0 {
            env.counters.retry_exceeded_err += 1;
            return Err(self.fail_oldest(WcStatus::RetryExcErr, conn, env));
        }
        self.retries_left -= 1;
        self.go_back_n(env);
        Ok(())
    }

    /// Returns and clears the flag that the path has failed (migration).
    pub fn take_path_failed(&mut self) -> bool {
        std::mem::take(&mut self.take_path_failed)
    }

    /// Retransmits everything unacknowledged over another path, with the full number of retries.
    pub fn restart_on_alternate_path(&mut self, conn: &Connection, env: &mut Env<'_>) {
        self.reset_retries(conn);
        if self.snd_una.is_before(self.snd_max) {
            self.go_back_n(env);
        }
    }

    /// Go-back-N: moves the cursor (snd_nxt) back to the oldest unacknowledged PSN (snd_una), so that
    /// everything in flight is retransmitted; stops the timers and discards the RTT measurement (Karn's
    /// algorithm).
    pub(super) fn go_back_n(&mut self, env: &mut Env<'_>) {
        env.counters.requester_retry += 1;
        self.snd_nxt = self.position_of_snd_una();
        self.reads.clear();
        self.retransmit_until = self.snd_max;
        self.ack_timer = None;
        self.ack_request.on_go_back_n();
        self.rtt.discard_sample();
        // Detected again when the cursor returns to it.
        self.failed = None;
    }

    /// Reports whether the oldest packet in flight is also the next to send: then another reason to go back
    /// carries no new information and costs no retry.
    pub(super) fn is_at_snd_una(&self) -> bool {
        self.next_psn() == self.snd_una
    }

    /// Restarts the local ACK timer while something is in flight. The timeout is 1.5 times as long after an
    /// expiry (IBA 9.7.6.1.3 allows up to four times): a peer that is merely slow gets time to process what
    /// it was sent, and retry exhaustion stays within 1.5 times the nominal time, timeout * (retries + 1).
    pub(super) fn arm_ack_timer(&mut self, conn: &Connection, env: &Env<'_>) {
        let in_flight = self.snd_una.is_before(self.snd_max);
        self.ack_timer = match conn.timeout.duration() {
            Some(t) if in_flight && self.rnr_wait_until.is_none() => {
                let timeout = t.max(env.tuning.min_timeout);
                Some(env.now + if self.ack_timeouts == 0 { timeout } else { timeout * 3 / 2 })
            }
            _ => None,
        };
    }

    /// Handles a probe timeout (PTO): schedules a probe, or goes back to the oldest missing response if only
    /// READs and atomics are in flight, because rxe forgets the parts of a READ before the one requested
    /// last.
    fn on_probe_timeout(&mut self, env: &mut Env<'_>) {
        self.ack_request.expire(env.now);
        if self.position_of_probe(Probe::Newest).is_none() {
            let timer = self.ack_timer;
            self.go_back_n(env);
            // The local ACK timer keeps running: this go-back neither costs a retry nor postpones the
            // timeout.
            self.ack_timer = timer;
        }
    }

    /// Handles the timers that have expired: RNR wait, probe timeout and local ACK timeout.
    pub fn handle_timeout(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Fatal> {
        if self.rnr_wait_until.is_some_and(|until| until <= env.now) {
            self.rnr_wait_until = None;
        }
        if self.ack_request.deadline().is_some_and(|at| at <= env.now) {
            self.on_probe_timeout(env);
        }
        if self.ack_timer.is_some_and(|at| at <= env.now) {
            self.ack_timer = None;
            self.ack_timeouts += 1;
            env.counters.local_ack_timeout_err += 1;
            self.on_loss(conn, env)?;
        }
        Ok(())
    }
}
