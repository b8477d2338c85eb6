//! The process's sockets, by the numbers of their descriptors.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::socket::Socket;

static SOCKETS: RwLock<BTreeMap<c_int, Arc<Socket>>> = RwLock::new(BTreeMap::new());

/// Closing may take as long as it wants.
const ANY: Duration = Duration::MAX;
/// How long one may take when the process exits.
const AT_EXIT: Duration = Duration::from_secs(2);

/// Its number from now on.
pub fn add(socket: Socket) -> c_int {
    let fd = socket.fd();
    SOCKETS.write().insert(fd, Arc::new(socket));
    fd
}

/// The socket of a number, if it is one of this process's.
pub fn find(fd: c_int) -> Option<Arc<Socket>> {
    SOCKETS.read().get(&fd).filter(|socket| !socket.is_inherited()).cloned()
}

/// # Errors
/// `EBADF`.
pub fn get(fd: c_int) -> Result<Arc<Socket>, c_int> {
    find(fd).ok_or(libc::EBADF)
}

/// Closes one.
///
/// # Errors
/// `EBADF`.
pub fn close(fd: c_int) -> Result<(), c_int> {
    let socket = SOCKETS.write().remove(&fd).ok_or(libc::EBADF)?;
    if !socket.is_inherited() {
        socket.close(ANY, || ());
    }
    Ok(())
}

/// Closes all, as the system does of what an exiting process leaves open. `patience` is called now and then.
pub fn close_all(patience: &dyn Fn()) {
    let all = std::mem::take(&mut *SOCKETS.write());
    for socket in all.into_values().filter(|socket| !socket.is_inherited()) {
        socket.close(AT_EXIT, patience);
    }
}
