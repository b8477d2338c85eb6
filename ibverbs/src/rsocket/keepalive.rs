//! Connection keepalive (`SO_KEEPALIVE`): a connection that has received nothing for the time `TCP_KEEPIDLE`
//! sends an RDMA WRITE without data, which the peer's NIC acknowledges. Without an acknowledgement, the
//! transport retries as for any message, and then the connection fails. `TCP_KEEPINTVL` and `TCP_KEEPCNT`,
//! which control TCP's retries, are stored but not used.
//!
//! A thread does this, because the program may leave its sockets unused for a long time. It starts when the
//! first socket enables keepalive.

use std::ffi::c_int;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use urxe::sys::thread::spawn_background;

use super::stream::Stream;

/// State of the keepalive thread, and the ID of the process in which the thread runs.
static WORKER: Mutex<Option<(u32, Arc<Worker>)>> = Mutex::new(None);

/// Sockets with keepalive, and a channel that wakes the thread early. Its locks need no handling at a fork:
/// the child does not use its parent's worker or sockets.
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

    /// Probes the connections that are due, drops those that no longer need keepalive, and returns the time
    /// of the next call.
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

    /// Waits for [`wake`](Self::wake), but no longer than until the given time.
    fn wait(&self, until: Option<Instant>) {
        // The channel is never disconnected: the worker has both its ends.
        let _ = match until {
            Some(until) => self.wake.1.recv_deadline(until).ok(),
            None => self.wake.1.recv().ok(),
        };
    }
}

/// Registers a socket for keepalive. If it is already registered, makes the thread read its changed options.
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
    spawn_background("urxe-keepalive".into(), move || {
        loop {
            let next = thread_worker.run_due(Instant::now());
            thread_worker.wait(next);
        }
    })
    .map_err(|_| libc::EAGAIN)?;
    *worker = Some((current_pid, new));
    Ok(())
}
