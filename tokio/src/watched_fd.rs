//! Descriptors watched by tokio's reactor.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A duplicate of a descriptor, registered with the reactor of the current tokio runtime.
#[derive(Debug)]
pub struct WatchedFd(AsyncFd<OwnedFd>);

impl WatchedFd {
    /// Duplicates `fd`, and registers the duplicate.
    ///
    /// # Errors
    /// If the system is out of descriptors, or the runtime is shutting down.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or in one without I/O.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<WatchedFd> {
        let duplicate = fd.try_clone_to_owned()?;
        // SAFETY: `OwnedFd` keeps its descriptor open, and returns the same one from every call, until it is
        // dropped; the `AsyncFd` owns it, and this type gives nobody access to it.
        let registered = unsafe { AsyncFd::register_with_interest(duplicate, Interest::READABLE) };
        Ok(WatchedFd(registered.map_err(|e| e.into_parts().1)?))
    }

    /// Waits until the descriptor has been readable at some time since the previous call. After each call,
    /// the caller must check for whatever makes the descriptor readable. Readiness is cleared before this
    /// call returns, so anything that arrives during that check completes the next call.
    ///
    /// # Errors
    /// If the runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}
