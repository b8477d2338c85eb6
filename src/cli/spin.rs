//! Waiting for completions on the polling thread.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::CliError;
use super::interrupt::Interrupt;
use crate::verbs::{Completion, Context, Cq, WaitError, WcStatus};

/// Empty polls between two looks at the clock.
const LOOKS: u32 = 256;

/// A busy wait that ends when the peer is silent for too long, or by Ctrl-C. It never sleeps,
/// but lets others run where there are too few cores.
#[derive(Debug)]
pub struct Spin {
    interrupt: Interrupt,
    patience: Duration,
    empty: u32,
    since: Option<Instant>,
}

impl Spin {
    /// Gives up after `patience` without anything.
    pub fn new(interrupt: &Interrupt, patience: Duration) -> Spin {
        Spin { interrupt: interrupt.clone(), patience, empty: 0, since: None }
    }

    /// Something came.
    pub fn progress(&mut self) {
        self.empty = 0;
        self.since = None;
    }

    /// Nothing came.
    ///
    /// # Errors
    /// When it is time to give up.
    pub fn idle(&mut self) -> Result<(), CliError> {
        self.empty += 1;
        if self.empty < LOOKS {
            std::hint::spin_loop();
            return Ok(());
        }
        self.empty = 0;
        // On a machine with fewer free cores than busy waits the peer may be what waits for this one.
        std::thread::yield_now();
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.interrupt.is_set() {
            return Err(CliError::Failed("interrupted in the middle of a run".into()));
        }
        if since.elapsed() > self.patience {
            return Err(CliError::Wait(WaitError::TimedOut(self.patience)));
        }
        Ok(())
    }

    /// Polls until at least one completion is there, all of them successes.
    ///
    /// # Errors
    /// When it is time to give up, or a work request failed.
    pub fn poll(&mut self, cq: &Cq, max: usize, out: &mut Vec<Completion>) -> Result<(), CliError> {
        out.clear();
        while cq.poll(max, out).map_err(WaitError::from)? == 0 {
            self.idle()?;
        }
        self.progress();
        succeeded(out)
    }

    /// Polls once.
    ///
    /// # Errors
    /// When a work request failed.
    pub fn try_poll(&mut self, cq: &Cq, max: usize, out: &mut Vec<Completion>) -> Result<(), CliError> {
        out.clear();
        if cq.poll(max, out).map_err(WaitError::from)? > 0 {
            self.progress();
        }
        succeeded(out)
    }

    /// Drives the NIC until `done` says so: for a program that polls on memory.
    ///
    /// # Errors
    /// When it is time to give up.
    pub fn until(&mut self, context: &Context, mut done: impl FnMut() -> bool) -> Result<(), CliError> {
        while !done() {
            context.poll();
            self.idle()?;
        }
        self.progress();
        Ok(())
    }
}

fn succeeded(completions: &[Completion]) -> Result<(), CliError> {
    match completions.iter().find(|c| c.status != WcStatus::Success) {
        Some(bad) => Err(CliError::Wait(WaitError::Failed(*bad))),
        None => Ok(()),
    }
}
