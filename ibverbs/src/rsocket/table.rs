//! Table of the process's sockets by file descriptor.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use super::socket::Socket;

static SOCKETS: RwLock<BTreeMap<c_int, Socket>> = RwLock::new(BTreeMap::new());

/// Time limit for closing all sockets when the process exits.
const AT_EXIT: Duration = Duration::from_secs(2);

/// Adds a socket to the table and returns its file descriptor.
///
/// # Errors
/// The errors of [`Socket::attend`].
pub fn add(socket: Socket) -> Result<c_int, c_int> {
    let fd = socket.fd();
    let before = SOCKETS.write().insert(fd, socket.clone());
    before.into_iter().for_each(leave);
    socket.attend().or_else(|e| close(fd).and(Err(e)))?;
    Ok(fd)
}

/// Returns the socket of a file descriptor; `None` for other descriptors and for sockets of the parent of a
/// forked child.
pub fn find(fd: c_int) -> Option<Socket> {
    SOCKETS.read().get(&fd).filter(|socket| !socket.is_inherited()).cloned()
}

/// Returns the socket of a file descriptor.
///
/// # Errors
/// `EBADF` if there is none.
pub fn get(fd: c_int) -> Result<Socket, c_int> {
    find(fd).ok_or(libc::EBADF)
}

/// Closes a socket.
///
/// # Errors
/// `EBADF` if there is none.
pub fn close(fd: c_int) -> Result<(), c_int> {
    let socket = SOCKETS.write().remove(&fd).ok_or(libc::EBADF)?;
    if socket.is_inherited() {
        leave(socket);
    } else {
        let deadline = Instant::now() + socket.conclude();
        socket.close(deadline, || ());
    }
    Ok(())
}

/// Leaks a socket that a forked child has inherited from its parent: dropping it would wait for threads that
/// do not exist here, and close file descriptors that may belong to other objects by now.
fn leave(socket: Socket) {
    std::mem::forget(socket);
}

/// Closes all sockets, as the system does with the files that an exiting process leaves open. Calls
/// `patience` periodically as a sign of progress, for which the exiting thread waits.
pub fn close_all(patience: &dyn Fn()) {
    let all = std::mem::take(&mut *SOCKETS.write());
    let (inherited, own): (Vec<_>, Vec<_>) = all.into_values().partition(|socket| socket.is_inherited());
    inherited.into_iter().for_each(leave);
    let end = Instant::now() + AT_EXIT;
    let deadlines: Vec<_> = own.iter().map(|socket| end.min(Instant::now() + socket.conclude())).collect();
    for (socket, deadline) in own.iter().zip(deadlines) {
        socket.close(deadline, patience);
    }
}
