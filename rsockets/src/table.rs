//! Table of the process's rsockets by file descriptor.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use crate::socket::Socket;

static SOCKETS: RwLock<BTreeMap<c_int, Arc<dyn Socket>>> = RwLock::new(BTreeMap::new());

/// Time limit for closing all sockets when the process exits.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Adds a socket to the table, and returns its file descriptor.
pub(crate) fn add(socket: Arc<dyn Socket>) -> c_int {
    let fd = socket.common().fd;
    let replaced = SOCKETS.write().insert(fd, socket);
    replaced.into_iter().for_each(leak);
    fd
}

/// Returns the socket for a file descriptor, or `None` if the descriptor is not that of an rsocket or, in a
/// forked child, if the socket is inherited.
fn find(sockets: &BTreeMap<c_int, Arc<dyn Socket>>, fd: c_int) -> Option<Arc<dyn Socket>> {
    sockets.get(&fd).filter(|socket| socket.common().process.is_current()).cloned()
}

/// Returns the socket of each file descriptor, like [`find`].
pub(crate) fn find_all(fds: impl Iterator<Item = c_int>) -> Vec<Option<Arc<dyn Socket>>> {
    let sockets = SOCKETS.read();
    fds.map(|fd| find(&sockets, fd)).collect()
}

/// Returns the socket for a file descriptor.
///
/// # Errors
/// `EBADF` if there is none.
pub fn get(fd: c_int) -> Result<Arc<dyn Socket>, c_int> {
    find(&SOCKETS.read(), fd).ok_or(libc::EBADF)
}

/// Closes a socket. Cancellation of the thread must be disabled, because it may wait.
///
/// # Errors
/// `EBADF` if there is none.
pub fn close(fd: c_int) -> Result<(), c_int> {
    let socket = SOCKETS.write().remove(&fd).ok_or(libc::EBADF)?;
    if socket.common().process.is_current() {
        let deadline = Instant::now() + socket.begin_close();
        socket.close(deadline, &|| ());
    } else {
        leak(socket);
    }
    Ok(())
}

/// Leaks a socket inherited by a forked child: dropping it would wait for threads that do not exist in the
/// child, and close file descriptors that the child may have reused.
fn leak(socket: Arc<dyn Socket>) {
    std::mem::forget(socket);
}

/// Closes all sockets, as the kernel closes the open files of an exiting process. Calls `on_progress`
/// periodically, so that the exiting thread keeps waiting. Cancellation of the thread must be disabled.
pub fn close_all(on_progress: &dyn Fn()) {
    let all = std::mem::take(&mut *SOCKETS.write());
    let (own, inherited): (Vec<_>, Vec<_>) =
        all.into_values().partition(|socket| socket.common().process.is_current());
    inherited.into_iter().for_each(leak);
    let end = Instant::now() + EXIT_TIMEOUT;
    let deadlines: Vec<_> = own.iter().map(|socket| end.min(Instant::now() + socket.begin_close())).collect();
    for (socket, deadline) in own.into_iter().zip(deadlines) {
        socket.close(deadline, on_progress);
    }
}
