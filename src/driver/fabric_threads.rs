//! Waits of threads on a fabric in virtual time, which run one at a time.

use std::time::Duration;

use super::wait::WaitEnd;
use crate::fabric::{Fabric, Wake};
use crate::transport::Instant;

/// Virtual time that a poll takes that finds nothing. Not measured: virtual time has to pass, or a thread
/// that polls would never see what it waits for. It is as long as the default latency of a wire of simulated
/// networks (`netsim/src/network/config.rs: Wire`), so that a thread that polls reacts at most one wire
/// later; every such poll is a step of the simulation, so a shorter time makes it slower.
const POLL_TIME: Duration = Duration::from_micros(1);

impl Fabric {
    /// Waits until `take` returns a value or the timeout expires, while other threads of the fabric run.
    pub(crate) fn wait_in_turn<R>(
        &self,
        timeout: Duration,
        take: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitEnd> {
        let deadline = self.now() + timeout;
        let ended = self.threads().wait(deadline, &|limit| self.advance_to_event(limit), take);
        ended.map_err(|wake| if wake == Wake::Idle { WaitEnd::Idle } else { WaitEnd::TimedOut(timeout) })
    }

    /// Runs `f` as a thread that was [added](crate::fabric::Threads::add) with the number `id`.
    pub(crate) fn run_thread<R>(&self, id: u64, f: impl FnOnce() -> R) -> R {
        self.threads().run(id, &|limit| self.advance_to_event(limit), f)
    }

    /// Lets other threads of the fabric run, if the current thread is one, after a poll that has found
    /// nothing.
    pub(crate) fn pause_after_poll(&self) {
        if self.threads().are_in_use() {
            self.threads().pause(self.now() + POLL_TIME, &|limit| self.advance_to_event(limit));
        }
    }

    fn advance_to_event(&self, limit: Instant) -> Wake {
        if self.step_until(limit).is_some() {
            return Wake::Change;
        }
        if limit == Instant(u64::MAX) {
            return Wake::Idle;
        }
        self.set_time(limit);
        Wake::Deadline
    }
}
