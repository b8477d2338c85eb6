//! Busy waiting, on the calling thread, for completions and for changes in memory.

use std::time::{Duration, Instant};

use super::CliError;
use super::interrupt::Interrupt;
use super::nic_args::NicArgs;
use urxe::verbs::errors::WaitError;
use urxe::verbs::{Completion, Context, Cq, WcStatus};

/// Number of empty polls between checks for the timeout and for Ctrl-C.
const POLLS_PER_CHECK: u32 = 256;

/// Busy wait that fails after a timeout without progress, or on Ctrl-C. It never sleeps, but regularly yields
/// the CPU, in case there are fewer cores than busy threads.
pub struct Spin<'a> {
    interrupt: &'a Interrupt,
    timeout: Duration,
    empty: u32,
    since: Option<Instant>,
    nic: &'a NicArgs,
}

impl<'a> Spin<'a> {
    /// Creates a wait that gives up after `timeout` without progress. `nic` says whether the failure of a
    /// work request is explained.
    pub fn new(interrupt: &'a Interrupt, timeout: Duration, nic: &'a NicArgs) -> Spin<'a> {
        Spin { interrupt, timeout, empty: 0, since: None, nic }
    }

    /// Records progress, which restarts the timeout.
    pub fn progress(&mut self) {
        self.empty = 0;
        self.since = None;
    }

    /// Records an empty poll. Every 256th empty poll also yields the CPU and checks for Ctrl-C and the
    /// timeout.
    ///
    /// # Errors
    /// [`CliError::Failed`] on Ctrl-C, [`WaitError::TimedOut`] when the timeout has expired.
    pub fn idle(&mut self) -> Result<(), CliError> {
        self.empty += 1;
        if self.empty < POLLS_PER_CHECK {
            std::hint::spin_loop();
            return Ok(());
        }
        self.empty = 0;
        // On a machine with fewer free cores than busy-waiting threads, the peer may be waiting for this
        // core.
        std::thread::yield_now();
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.interrupt.is_set() {
            return Err(CliError::Failed("interrupted during the measurement".into()));
        }
        if since.elapsed() > self.timeout {
            return Err(WaitError::TimedOut(self.timeout).into());
        }
        Ok(())
    }

    /// Polls until at least one completion is available, and checks that all polled completions are
    /// successful.
    ///
    /// # Errors
    /// The errors of [`idle`](Self::idle), or [`WaitError::Failed`] if a work request failed.
    pub fn poll(&mut self, cq: &Cq, max: usize, out: &mut Vec<Completion>) -> Result<(), CliError> {
        out.clear();
        while cq.poll(max, out)? == 0 {
            self.idle()?;
        }
        self.progress();
        self.check_status(cq, out)
    }

    /// Polls once, and checks that all completions are successful.
    ///
    /// # Errors
    /// [`WaitError::Failed`] if a work request failed.
    pub fn try_poll(&mut self, cq: &Cq, max: usize, out: &mut Vec<Completion>) -> Result<(), CliError> {
        out.clear();
        if cq.poll(max, out)? > 0 {
            self.progress();
        }
        self.check_status(cq, out)
    }

    /// Drives the NIC until `done`, which typically checks memory, returns true.
    ///
    /// # Errors
    /// The errors of [`idle`](Self::idle).
    pub fn until(&mut self, context: &Context, mut done: impl FnMut() -> bool) -> Result<(), CliError> {
        while !done() {
            context.poll();
            self.idle()?;
        }
        self.progress();
        Ok(())
    }

    fn check_status(&self, cq: &Cq, completions: &[Completion]) -> Result<(), CliError> {
        let Some(failed) = completions.iter().find(|c| c.status != WcStatus::Success) else { return Ok(()) };
        self.nic.explain(cq, failed);
        Err(WaitError::Failed(*failed).into())
    }
}
