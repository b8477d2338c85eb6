//! The process's sockets, by the numbers of their descriptors.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use super::socket::Socket;

static SOCKETS: RwLock<BTreeMap<c_int, Socket>> = RwLock::new(BTreeMap::new());

/// How long all may take when the process exits.
const AT_EXIT: Duration = Duration::from_secs(2);

/// Its number from now on.
///
/// # Errors
/// As of [`Socket::attend`].
pub fn add(socket: Socket) -> Result<c_int, c_int> {
    let fd = socket.fd();
    let before = SOCKETS.write().insert(fd, socket.clone());
    before.into_iter().for_each(leave);
    socket.attend().or_else(|e| close(fd).and(Err(e)))?;
    Ok(fd)
}

/// The socket of a number, if it is one of this process's.
pub fn find(fd: c_int) -> Option<Socket> {
    SOCKETS.read().get(&fd).filter(|socket| !socket.is_inherited()).cloned()
}

/// # Errors
/// `EBADF`.
pub fn get(fd: c_int) -> Result<Socket, c_int> {
    find(fd).ok_or(libc::EBADF)
}

/// Closes one.
///
/// # Errors
/// `EBADF`.
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

/// The parent's, in a child: to end what it is made of is to wait for threads that are not here, and descriptors of such
/// numbers may be others' by now.
fn leave(socket: Socket) {
    std::mem::forget(socket);
}

/// Closes all, as the system does of what an exiting process leaves open. `patience` is called now and then.
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
