//! Blocking waits by application threads.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{Context, WaitError};
use crate::driver::{ALL_SHARDS, WaitEnd, step_until, until_readable};
use crate::fabric::Fabric;

impl Context {
    /// Waits until `take` returns a value, and returns that value. In real time, `fd` must become readable
    /// whenever `take` may have a value to return.
    pub(super) fn wait_for<R>(
        &self,
        fd: BorrowedFd<'_>,
        timeout: Duration,
        take: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        Ok(match self.prepare_wait() {
            Some(fabric) => step_until(&fabric, timeout, take)?,
            None => until_readable(fd, Some(timeout), take)?,
        })
    }

    /// Prepares the device for a blocking wait. In real time, hands polling back to the background threads;
    /// in virtual time, returns the fabric, which the caller must step instead of blocking.
    #[doc(hidden)]
    pub fn prepare_wait(&self) -> Option<Fabric> {
        let fabric = self.virtual_fabric();
        if fabric.is_none() {
            self.0.shards.stop_polling(ALL_SHARDS);
        }
        fabric
    }

    /// Returns the device's fabric, if its time is virtual.
    #[doc(hidden)]
    pub fn virtual_fabric(&self) -> Option<Fabric> {
        self.0.shards.virtual_fabric().map(|handle| handle.fabric().clone())
    }
}

impl From<WaitEnd> for WaitError {
    fn from(end: WaitEnd) -> WaitError {
        match end {
            WaitEnd::TimedOut(timeout) => WaitError::TimedOut(timeout),
            WaitEnd::Interrupted => WaitError::Interrupted,
            WaitEnd::Idle => WaitError::Idle,
            WaitEnd::System(errno) => WaitError::System(errno as i32),
        }
    }
}
