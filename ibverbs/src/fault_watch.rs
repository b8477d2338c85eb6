//! Fault counts of a process that ends without running its exit handlers, by a signal or `_exit`: a process of `urxe` reads
//! them from shared memory and prints them.

use std::io;
use std::os::fd::AsFd;

use rustix::process::{PidfdFlags, getpid, pidfd_open};
use urxe::broker::start_detached;
use urxe::middleware::faults::FaultCount;

/// Shares the counts of the faults created from now on, and starts the process that waits for the end of this one. The first call of a
/// process does so. Without the `urxe` program, or if that is not possible, the counts are printed at a regular exit only.
pub(crate) fn start() {
    let _ = try_start();
}

fn try_start() -> io::Result<()> {
    let Some(counts) = FaultCount::share()? else { return Ok(()) };
    let Ok(Some(sharing)) = crate::env::sharing() else { return Ok(()) };
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    let stderr = io::stderr();
    let pid = std::process::id().to_string();
    let arguments = ["fault-counts", &pid].into_iter();
    let stdio = [counts.as_fd(), process.as_fd(), stderr.as_fd()].map(Some);
    start_detached(&sharing.program, arguments, stdio)
}
