//! Table of the process's rsockets by file descriptor.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use super::socket::Socket;
use crate::rdmacm::process::{ExitStage, set_exit_action};

static SOCKETS: RwLock<BTreeMap<c_int, Socket>> = RwLock::new(BTreeMap::new());

/// Time limit for closing all sockets when the process exits.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Adds a socket to the table, registers it for keepalive if enabled, and returns its file descriptor.
///
/// # Errors
/// The errors of [`Socket::update_keepalive`].
pub(super) fn add(socket: Socket) -> Result<c_int, c_int> {
    set_exit_action(ExitStage::Rsockets, |_, on_progress| close_all(on_progress));
    let fd = socket.fd();
    let replaced = SOCKETS.write().insert(fd, socket.clone());
    replaced.into_iter().for_each(leak);
    socket.update_keepalive().or_else(|e| close(fd).and(Err(e)))?;
    Ok(fd)
}

/// Returns the socket for a file descriptor, or `None` if the descriptor is not that of an rsocket or, in a
/// forked child, if the socket is inherited.
pub(super) fn find(fd: c_int) -> Option<Socket> {
    find_in(&SOCKETS.read(), fd)
}

/// Returns the socket of each file descriptor, like [`find`].
pub(super) fn find_all(fds: impl Iterator<Item = c_int>) -> Vec<Option<Socket>> {
    let sockets = SOCKETS.read();
    fds.map(|fd| find_in(&sockets, fd)).collect()
}

fn find_in(sockets: &BTreeMap<c_int, Socket>, fd: c_int) -> Option<Socket> {
    sockets.get(&fd).filter(|socket| !socket.is_inherited()).cloned()
}

/// Returns the socket for a file descriptor.
///
/// # Errors
/// `EBADF` if there is none.
pub(super) fn get(fd: c_int) -> Result<Socket, c_int> {
    find(fd).ok_or(libc::EBADF)
}

/// Closes a socket.
///
/// # Errors
/// `EBADF` if there is none.
pub(super) fn close(fd: c_int) -> Result<(), c_int> {
    let socket = SOCKETS.write().remove(&fd).ok_or(libc::EBADF)?;
    if socket.is_inherited() {
        leak(socket);
    } else {
        let deadline = Instant::now() + socket.begin_close();
        socket.close(deadline, || ());
    }
    Ok(())
}

/// Leaks a socket inherited by a forked child: dropping it would wait for threads that do not exist in the
/// child, and close file descriptors that the child may have reused.
fn leak(socket: Socket) {
    std::mem::forget(socket);
}

/// Closes all sockets, as the kernel closes the open files of an exiting process. Calls `on_progress`
/// periodically, so that the exiting thread keeps waiting.
fn close_all(on_progress: &dyn Fn()) {
    let all = std::mem::take(&mut *SOCKETS.write());
    let (inherited, own): (Vec<_>, Vec<_>) = all.into_values().partition(|socket| socket.is_inherited());
    inherited.into_iter().for_each(leak);
    let end = Instant::now() + EXIT_TIMEOUT;
    let deadlines: Vec<_> = own.iter().map(|socket| end.min(Instant::now() + socket.begin_close())).collect();
    for (socket, deadline) in own.iter().zip(deadlines) {
        socket.close(deadline, on_progress);
    }
}
