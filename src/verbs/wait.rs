//! Blocking waits of the application.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{Context, WaitError};
use crate::driver::{WaitEnd, step_until, until_readable};

impl Context {
    /// Waits until `take` returns a value. In real time `fd` must become readable when it may.
    pub(super) fn wait_for<R>(
        &self,
        fd: BorrowedFd<'_>,
        timeout: Duration,
        take: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        if let Some(fabric) = self.0.shards.virtual_fabric() {
            return Ok(step_until(fabric.fabric(), timeout, take)?);
        }
        self.0.shards.stop_polling_all();
        Ok(until_readable(fd, Some(timeout), take)?)
    }
}

impl From<WaitEnd> for WaitError {
    fn from(end: WaitEnd) -> WaitError {
        match end {
            WaitEnd::TimedOut(timeout) => WaitError::TimedOut(timeout),
            WaitEnd::Interrupted => WaitError::Interrupted,
            WaitEnd::Idle => WaitError::Idle,
        }
    }
}
