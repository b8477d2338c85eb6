//! Going back after a loss, and the timers.

use super::ask::Probe;
use super::{Fatal, Requester};
use crate::transport::connection::Connection;
use crate::transport::{Env, MigrationState, WcStatus};

impl Requester {
    /// A packet was lost: narrows the window and [retries](Self::retry).
    pub(super) fn recover(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Fatal> {
        self.window.shrink(&self.rtt, conn.mtu, env.tuning);
        self.retry(conn, env)
    }

    /// Sends again from the oldest packet that is not acknowledged, if retries are left.
    pub(super) fn retry(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Fatal> {
        if self.retries_left == 0 && conn.migration == MigrationState::Armed {
            self.gives_path_up = true;
            return Ok(());
        }
        if self.retries_left == 0 {
            env.counters.retry_exceeded_err += 1;
            return Err(self.fail_oldest(WcStatus::RetryExcErr, conn, env));
        }
        self.retries_left -= 1;
        self.go_back(env);
        Ok(())
    }

    /// Whether the path has failed; said once.
    pub fn gives_path_up(&mut self) -> bool {
        std::mem::take(&mut self.gives_path_up)
    }

    /// By another path: all that is not acknowledged once more, with all retries.
    pub fn begin_again(&mut self, conn: &Connection, env: &mut Env<'_>) {
        self.reset_retries(conn);
        if self.unacked.is_before(self.frontier) {
            self.go_back(env);
        }
    }

    pub(super) fn go_back(&mut self, env: &mut Env<'_>) {
        env.counters.requester_retry += 1;
        self.cursor = self.position_of_unacked();
        self.reads.clear();
        self.resend_until = self.frontier;
        self.timer = None;
        self.ask.rewound();
        self.rtt.forget();
        // Found again when the cursor comes back to it.
        self.failed = None;
    }

    /// Whether the oldest packet in flight is also the next to be sent: another reason to go back is no news
    /// and costs no retry.
    pub(super) fn is_back(&self) -> bool {
        self.next_psn() == self.unacked
    }

    /// Starts the local ACK timeout anew while something is in flight. It is half as long again once it has expired
    /// (IBA 9.7.6.1.3 allows up to four times as long): a peer that is only slow gets time to work off what it was sent before,
    /// and retry exhaustion stays within 1.5 times the nominal time, timeout × (retries + 1).
    pub(super) fn arm_timer(&mut self, conn: &Connection, env: &Env<'_>) {
        let in_flight = self.unacked.is_before(self.frontier);
        self.timer = match conn.timeout.duration() {
            Some(t) if in_flight && self.pause.is_none() => {
                let timeout = t.max(env.tuning.min_timeout);
                Some(env.now + if self.silent == 0 { timeout } else { timeout * 3 / 2 })
            }
            _ => None,
        };
    }

    /// Has a packet or two sent once more; READs and atomics, where nothing else is in flight, from what is missing of
    /// the oldest on: rxe forgets the parts of a READ before the one that it was asked for last.
    fn late_answer(&mut self, env: &mut Env<'_>) {
        self.ask.expire(env.now);
        if self.place_of(Probe::Newest).is_none() {
            let timer = self.timer;
            self.go_back(env);
            // No retry is spent, and none is gained.
            self.timer = timer;
        }
    }

    /// Acts on what has expired.
    pub fn handle_timeout(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Fatal> {
        if self.pause.is_some_and(|until| until <= env.now) {
            self.pause = None;
        }
        if self.ask.deadline().is_some_and(|at| at <= env.now) {
            self.late_answer(env);
        }
        if self.timer.is_some_and(|at| at <= env.now) {
            self.timer = None;
            self.silent += 1;
            env.counters.local_ack_timeout_err += 1;
            self.recover(conn, env)?;
        }
        Ok(())
    }
}
