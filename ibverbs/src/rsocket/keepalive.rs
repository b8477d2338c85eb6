//! Keepalive of connections (`SO_KEEPALIVE`): a connection that has received nothing for a while
//! (`TCP_KEEPIDLE`) sends an RDMA WRITE without data, which the peer's NIC acknowledges. Without an
//! acknowledgement the transport retries as for any message, and then the connection fails. `TCP_KEEPINTVL`
//! and `TCP_KEEPCNT`, which control the retries of TCP, are stored and not used.
//!
//! A program may leave its sockets alone for a long time, so a thread does this. The thread starts when the
//! first socket asks for it.

use std::ffi::c_int;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::stream::Stream;
use crate::cm::process::spawn;

/// Bell of the keepalive thread, and the ID of the process that the thread belongs to.
static BELL: Mutex<Option<(u32, Arc<Bell>)>> = Mutex::new(None);

/// Connections that the thread keeps alive, and a signal that makes it look again early. None of the locks in
/// it matters to a forked child, which does not use its parent's bell or sockets.
#[derive(Default)]
struct Bell {
    kept: Mutex<Vec<Weak<Stream>>>,
    is_rung: Mutex<bool>,
    rings: Condvar,
}

impl Bell {
    fn add(&self, stream: &Arc<Stream>) {
        let mut kept = self.kept.lock();
        if !kept.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(stream))) {
            kept.push(Arc::downgrade(stream));
        }
    }

    /// Handles keepalive of all connections, drops those that no longer need it, and returns the time of the
    /// next call.
    fn look(&self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        // The lock is held throughout, so that a socket that registers again meanwhile is not lost.
        self.kept.lock().retain(|stream| {
            let at = stream.upgrade().and_then(|stream| stream.keep_alive(now));
            next = next.into_iter().chain(at).min();
            at.is_some()
        });
        next
    }

    /// Wakes the thread.
    fn ring(&self) {
        *self.is_rung.lock() = true;
        self.rings.notify_one();
    }

    /// Waits for [`ring`](Self::ring) or the given time.
    fn wait(&self, until: Option<Instant>) {
        let mut is_rung = self.is_rung.lock();
        let mut is_time = false;
        while !*is_rung && !is_time {
            match until {
                Some(until) => is_time = self.rings.wait_until(&mut is_rung, until).timed_out(),
                None => self.rings.wait(&mut is_rung),
            }
        }
        *is_rung = false;
    }
}

/// Registers a connection for keepalive, or makes the thread read its changed options.
///
/// # Errors
/// `EAGAIN` if the thread cannot be started.
pub fn attend(stream: &Arc<Stream>) -> Result<(), c_int> {
    let this = std::process::id();
    let mut bell = BELL.lock();
    // A forked child has none of its parent's threads.
    if let Some((_, bell)) = bell.as_ref().filter(|(of, _)| *of == this) {
        bell.add(stream);
        bell.ring();
        return Ok(());
    }
    let new = Arc::new(Bell::default());
    new.add(stream);
    let its = new.clone();
    spawn("urxe-keepalive", move || {
        loop {
            let next = its.look(Instant::now());
            its.wait(next);
        }
    })
    .map_err(|_| libc::EAGAIN)?;
    *bell = Some((this, new));
    Ok(())
}
