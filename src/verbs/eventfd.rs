//! Descriptors that signal events.

use std::io;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::driver::EventListener;

/// Creates a descriptor that never blocks.
pub(super) fn eventfd() -> io::Result<EventFd> {
    Ok(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?)
}

/// The descriptor is readable while events are queued.
impl EventListener for EventFd {
    fn waiting(&self, any: bool) {
        // Writes and reads of 1 alternate, so the counter is never full when written, nor empty when read.
        let _ = if any { self.write(1).map(|_| ()) } else { self.read().map(|_| ()) };
    }
}
