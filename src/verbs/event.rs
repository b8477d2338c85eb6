//! Asynchronous events: retrieving them, waiting for them, and a descriptor that signals them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Context, WaitError};
use crate::driver::EventListener;
use crate::transport::AsyncEvent;

/// Receiver of a notification when asynchronous events are queued: a descriptor that is readable while there
/// are any.
#[derive(Debug)]
pub(super) struct EventSignal(EventFd);

impl EventSignal {
    pub fn new() -> io::Result<EventSignal> {
        Ok(EventSignal(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?))
    }
}

impl EventListener for EventSignal {
    fn waiting(&self, any: bool) {
        // Writes and reads of 1 alternate, so the counter is never full when written, nor empty when read.
        let _ = if any { self.0.write(1).map(|_| ()) } else { self.0.read().map(|_| ()) };
    }
}

impl Context {
    /// Returns the oldest asynchronous event that has not been retrieved; never blocks (`ibv_get_async_event`
    /// on a non-blocking descriptor). Dropping a queue pair, completion queue or shared receive queue drops
    /// its events.
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
        self.0.events.0.as_fd()
    }
}
