//! Waiting: on a descriptor in real time, by letting time pass in virtual time.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::{Context, WaitError};
use crate::link::fabric::Fabric;
use crate::link::process::signals_restart_calls;

impl Context {
    /// Waits until `take` brings something; `fd` becomes readable when it may.
    pub(super) fn wait_for<R>(
        &self,
        fd: BorrowedFd<'_>,
        timeout: Duration,
        take: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        if let Some(fabric) = self.0.shards.virtual_fabric() {
            return step_until(fabric.fabric(), timeout, take);
        }
        self.0.shards.stop_polling_all();
        until_readable(fd, Some(timeout), take)
    }
}

/// Waits in real time until `take` brings something, for ever if no timeout is given; `fd` becomes readable when it may.
pub(super) fn until_readable<R>(
    fd: BorrowedFd<'_>,
    timeout: Option<Duration>,
    mut take: impl FnMut() -> Option<R>,
) -> Result<R, WaitError> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        if let Some(taken) = take() {
            return Ok(taken);
        }
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if let (Some(Duration::ZERO), Some(timeout)) = (left, timeout) {
            return Err(WaitError::TimedOut(timeout));
        }
        let ready = ppoll(&mut [PollFd::new(fd, PollFlags::POLLIN)], left.map(TimeSpec::from), None);
        match (ready, timeout) {
            (Ok(0), Some(timeout)) => return Err(WaitError::TimedOut(timeout)),
            (Ok(_), _) => {}
            (Err(Errno::EINTR), _) if !signals_restart_calls() => return Err(WaitError::Interrupted),
            (Err(Errno::EINTR), _) => {}
            // poll fails for want of memory only; a short rest is better than a loop.
            (Err(_), _) => {
                std::thread::sleep(left.unwrap_or(Duration::MAX).min(Duration::from_millis(1)));
            }
        }
    }
}

/// Lets virtual time pass until `take` brings something.
pub(super) fn step_until<R>(
    fabric: &Fabric,
    timeout: Duration,
    mut take: impl FnMut() -> Option<R>,
) -> Result<R, WaitError> {
    let deadline = fabric.now() + timeout;
    while fabric.now() <= deadline {
        if let Some(taken) = take() {
            return Ok(taken);
        }
        fabric.step().ok_or(WaitError::Idle)?;
    }
    Err(WaitError::TimedOut(timeout))
}
