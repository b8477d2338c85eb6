//! Keeping connections alive (`SO_KEEPALIVE`): a connection on which nothing has come for a while (`TCP_KEEPIDLE`) writes
//! nothing to its peer, whose NIC acknowledges that. If it does not, the transport tries again as often as it does of all
//! messages, and the connection is over. `TCP_KEEPINTVL` and `TCP_KEEPCNT`, which say how TCP tries again, are kept and not used.
//!
//! A program may not look at its sockets for long, so a thread does it, which there is where a socket asks for it.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::table;
use crate::cm::process::spawn;

/// The thread's, and in which process that is.
static BELL: Mutex<Option<(u32, Arc<Bell>)>> = Mutex::new(None);

/// Has the thread look again before its time.
#[derive(Default)]
struct Bell {
    is_rung: Mutex<bool>,
    rings: Condvar,
}

impl Bell {
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
pub fn attend() -> Result<(), c_int> {
    let this = std::process::id();
    let mut bell = BELL.lock();
    // A child of fork has none of its parent's threads.
    if let Some((_, bell)) = bell.as_ref().filter(|(of, _)| *of == this) {
        bell.ring();
        return Ok(());
    }
    let new = Arc::new(Bell::default());
    let its = new.clone();
    spawn("urxe-keepalive", move || {
        loop {
            let now = Instant::now();
            // Without the sockets, which may be closed meanwhile.
            let next = table::all().iter().filter_map(|socket| socket.keep_alive(now)).min();
            its.wait(next);
        }
    })
    .map_err(|_| libc::EAGAIN)?;
    *bell = Some((this, new));
    Ok(())
}
