//! Descriptor that signals asynchronous events.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::driver::EventListener;

/// An eventfd that is readable while asynchronous events are queued.
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

impl AsFd for EventSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
