//! Asynchronous events: retrieving them, waiting for them, and a descriptor that signals them.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::{Context, WaitError};
use crate::transport::AsyncEvent;

impl Context {
    /// Removes and returns the oldest queued asynchronous event, or returns `None` if there is none; never
    /// blocks (`ibv_get_async_event` on a non-blocking descriptor). Dropping a queue pair, completion queue
    /// or shared receive queue drops its queued events.
    pub fn next_event(&self) -> Option<AsyncEvent> {
        self.0.asynchronous.next(self.0.reader)
    }

    /// Reports whether an asynchronous event is queued.
    pub(super) fn has_event(&self) -> bool {
        self.0.asynchronous.has_some(self.0.reader)
    }

    /// Blocks until there is an asynchronous event and returns it.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]; [`WaitError::Interrupted`] by a signal; [`WaitError::Idle`] in virtual time.
    pub fn wait_event(&self, timeout: Duration) -> Result<AsyncEvent, WaitError> {
        self.wait_for(self.event_fd(), timeout, || self.next_event())
    }

    /// Returns a descriptor that is readable while asynchronous events are queued. Use it for polling only:
    /// reading from it would clear the signal.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.events.as_fd()
    }
}
