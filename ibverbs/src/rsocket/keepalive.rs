//! Keeping connections alive (`SO_KEEPALIVE`): a connection on which nothing has come for a while (`TCP_KEEPIDLE`) writes
//! nothing to its peer, whose NIC acknowledges that. If it does not, the transport tries again as often as it does of all
//! messages, and the connection is over. `TCP_KEEPINTVL` and `TCP_KEEPCNT`, which say how TCP tries again, are kept and not used.
//!
//! A program may not look at its sockets for long, so a thread does it, which there is where a socket asks for it.

use std::ffi::c_int;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::stream::Stream;
use crate::cm::process::spawn;

/// The thread's, and in which process that is.
static BELL: Mutex<Option<(u32, Arc<Bell>)>> = Mutex::new(None);

/// The connections that the thread keeps alive, and a signal to look again before its time. Nothing that it locks is
/// anything to a child of fork, but for its parent's sockets, which the child leaves alone.
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

    /// Keeps alive who still is to be; when to come again.
    fn look(&self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        // With the lock: who asks again meanwhile is not forgotten.
        self.kept.lock().retain(|stream| {
            let at = stream.upgrade().and_then(|stream| stream.keep_alive(now));
            next = next.into_iter().chain(at).min();
            at.is_some()
        });
        next
    }

    fn ring(&self) {
        *self.is_rung.lock() = true;
        self.rings.notify_one();
    }

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

/// A socket is to be kept alive, or after another time than before.
///
/// # Errors
/// `EAGAIN`: there can be no thread.
pub fn attend(stream: &Arc<Stream>) -> Result<(), c_int> {
    let this = std::process::id();
    let mut bell = BELL.lock();
    // A child of fork has none of its parent's threads.
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
