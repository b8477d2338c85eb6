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

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use urxe::sys::thread::spawn_background;

use crate::socket::Socket;
use crate::stream::Stream;

/// Channel on which sockets are registered with the keepalive thread, and the ID of the process in which the
/// thread runs. Its lock needs no handling at a fork: the child does not use its parent's channel or sockets.
static WORKER: Mutex<Option<(u32, Sender<Weak<Stream>>)>> = Mutex::new(None);

/// Runs the keepalive thread: adds the sockets that are registered, probes the connections that are due, and
/// drops those that no longer need keepalive.
fn run(registered: &Receiver<Weak<Stream>>) {
    let mut streams: Vec<Weak<Stream>> = Vec::new();
    let mut next: Option<Instant> = None;
    loop {
        // The channel is never disconnected: `WORKER` keeps the sender.
        let added = match next {
            Some(next) => registered.recv_deadline(next).ok(),
            None => registered.recv().ok(),
        };
        streams.extend(added.filter(|added| !streams.iter().any(|stream| stream.ptr_eq(added))));
        let now = Instant::now();
        next = None;
        streams.retain(|stream| {
            let at = stream.upgrade().and_then(|stream| stream.keep_alive(now));
            next = next.into_iter().chain(at).min();
            at.is_some()
        });
    }
}

/// Registers a socket for keepalive if `SO_KEEPALIVE` is set. If it is already registered, makes the thread
/// read its changed options.
///
/// # Errors
/// `EAGAIN` if the thread cannot be started.
pub(crate) fn update(stream: &Arc<Stream>) -> Result<(), c_int> {
    if stream.options().keep_alive().is_none() {
        return Ok(());
    }
    let current_pid = std::process::id();
    let mut worker = WORKER.lock();
    // A forked child has none of its parent's threads.
    if worker.as_ref().is_none_or(|(pid, _)| *pid != current_pid) {
        let (sender, registered) = unbounded();
        spawn_background("urxe-keepalive".into(), move || run(&registered)).map_err(|_| libc::EAGAIN)?;
        // The parent's sender is leaked: a thread that does not exist in the child may have locked the
        // channel.
        std::mem::forget(worker.replace((current_pid, sender)));
    }
    // The thread never ends, so the channel is connected.
    worker.iter().for_each(|(_, sender)| drop(sender.send(Arc::downgrade(stream))));
    Ok(())
}
