//! Asynchronous events: taking them, waiting for them, and a descriptor that tells of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Context, WaitError};
use crate::nic::EventListener;
use crate::transport::AsyncEvent;

/// A descriptor that is readable while events wait.
#[derive(Debug)]
pub(super) struct EventSignal(EventFd);

impl EventSignal {
    pub fn new() -> io::Result<EventSignal> {
        Ok(EventSignal(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?))
    }
}

impl EventListener for EventSignal {
    fn waiting(&self, any: bool) {
        // One of both alternately, so the counter is never full, nor empty when it is read.
        let _ = if any { self.0.write(1).map(|_| ()) } else { self.0.read().map(|_| ()) };
    }
}

impl Context {
    /// The oldest asynchronous event that nobody has taken. Events of a queue pair, completion queue or shared
    /// receive queue go with it.
    pub fn next_event(&self) -> Option<AsyncEvent> {
        self.0.asynchronous.next(self.0.reader)
    }

    /// Whether there is one.
    pub(super) fn has_event(&self) -> bool {
        self.0.asynchronous.has_some(self.0.reader)
    }

    /// Waits for an asynchronous event.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]; [`WaitError::Idle`] in virtual time.
    pub fn wait_event(&self, timeout: Duration) -> Result<AsyncEvent, WaitError> {
        self.wait_for(self.event_fd(), timeout, || self.next_event())
    }

    /// A descriptor that is readable while asynchronous events wait. For polling only: reading from it would take
    /// that away.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.events.0.as_fd()
    }
}
