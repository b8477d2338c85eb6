//! Keepalive of connections (`SO_KEEPALIVE`): a connection that has received nothing for a while
//! (`TCP_KEEPIDLE`) sends an RDMA WRITE without data, which the peer's NIC acknowledges. Without an
//! acknowledgement the transport retries as for any message, and then the connection fails. `TCP_KEEPINTVL`
//! and `TCP_KEEPCNT`, which control the retries of TCP, are stored and not used.
//!
//! A program may not use its sockets for a long time, so a thread does this. The thread starts when the
//! first socket enables keepalive.

use std::ffi::c_int;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use super::stream::Stream;
use crate::rdmacm::process::spawn;

/// State of the keepalive thread, and the ID of the process that the thread belongs to.
static WORKER: Mutex<Option<(u32, Arc<Worker>)>> = Mutex::new(None);

/// Connections that the thread keeps alive, and a signal that makes it run again early. None of its locks
/// matters to a forked child, which does not use its parent's worker or sockets.
struct Worker {
    streams: Mutex<Vec<Weak<Stream>>>,
    wake: (Sender<()>, Receiver<()>),
}

impl Worker {
    fn new() -> Worker {
        Worker { streams: Mutex::default(), wake: bounded(1) }
    }

    fn add(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams.lock();
        if !streams.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(stream))) {
            streams.push(Arc::downgrade(stream));
        }
    }

    /// Handles keepalive of all connections, drops those that no longer need it, and returns the time of the
    /// next call.
    fn run_due(&self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        // The lock is held throughout, so that a socket that registers again meanwhile is not lost.
        self.streams.lock().retain(|stream| {
            let at = stream.upgrade().and_then(|stream| stream.keep_alive(now));
            next = next.into_iter().chain(at).min();
            at.is_some()
        });
        next
    }

    /// Wakes the thread.
    fn wake(&self) {
        // If the channel is full, the thread runs again anyway.
        let _ = self.wake.0.try_send(());
    }

    /// Waits for [`wake`](Self::wake) or the given time.
    fn wait(&self, until: Option<Instant>) {
        // The channel is never disconnected: the worker has both its ends.
        let _ = match until {
            Some(until) => self.wake.1.recv_deadline(until).ok(),
            None => self.wake.1.recv().ok(),
        };
    }
}

/// Registers a connection for keepalive, or makes the thread read its changed options.
///
/// # Errors
/// `EAGAIN` if the thread cannot be started.
pub(super) fn register(stream: &Arc<Stream>) -> Result<(), c_int> {
    let current_pid = std::process::id();
    let mut worker = WORKER.lock();
    // A forked child has none of its parent's threads.
    if let Some((_, worker)) = worker.as_ref().filter(|(pid, _)| *pid == current_pid) {
        worker.add(stream);
        worker.wake();
        return Ok(());
    }
    let new = Arc::new(Worker::new());
    new.add(stream);
    let thread_worker = new.clone();
    spawn("urxe-keepalive", move || {
        loop {
            let next = thread_worker.run_due(Instant::now());
            thread_worker.wait(next);
        }
    })
    .map_err(|_| libc::EAGAIN)?;
    *worker = Some((current_pid, new));
    Ok(())
}
