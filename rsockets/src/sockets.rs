//! Steps of calls on sockets of both kinds: creation, acceptance, options.

use std::any::Any;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;

use urxe::verbs::cm::ConnectionManager;

use crate::call::Call;
use crate::common::Common;
use crate::datagram::Datagram;
use crate::socket::Socket;
use crate::stream::{Phase, State, Stream};
use crate::{keepalive, table};

/// Creates a socket and returns its file descriptor. `family` is `AF_INET` or `AF_INET6`; `kind` is
/// `SOCK_STREAM` or `SOCK_DGRAM`, with any flags of `socket`.
///
/// # Errors
/// An error number.
pub fn create(manager: &ConnectionManager, family: c_int, kind: c_int) -> Result<c_int, c_int> {
    let socket: Arc<dyn Socket> = match kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
        libc::SOCK_DGRAM => Arc::new(Datagram::new(manager, family)?),
        _ => Arc::new(Stream::new(manager, family)?),
    };
    socket.options().is_nonblocking = kind & libc::SOCK_NONBLOCK != 0;
    Ok(table::add(socket))
}

/// Returns the stream socket, for operations that datagram sockets do not support.
///
/// # Errors
/// `EOPNOTSUPP` on a datagram socket.
pub fn stream(socket: Arc<dyn Socket>) -> Result<Arc<Stream>, c_int> {
    let socket: Arc<dyn Any + Send + Sync> = socket;
    socket.downcast().map_err(|_| libc::EOPNOTSUPP)
}

/// Returns the socket of a call. All attempts of the call must use the same socket.
///
/// # Errors
/// `EBADF` if it is closed, or its descriptor denotes another socket by now.
pub fn get_for(call: &mut Call, fd: c_int) -> Result<Arc<dyn Socket>, c_int> {
    let socket = table::get(fd)?;
    // The address identifies the socket as long as a handle exists.
    if call.is_same_object(Arc::as_ptr(&socket).cast::<()>()) { Ok(socket) } else { Err(libc::EBADF) }
}

/// Makes one attempt to accept a connection of a listener. Returns the file descriptor of the connection's
/// socket, and the address of the peer.
///
/// # Errors
/// An error number, or [`PENDING`](crate::PENDING).
pub fn accept(call: &mut Call, fd: c_int) -> Result<(c_int, Option<SocketAddr>), c_int> {
    let new = Arc::new(stream(get_for(call, fd)?)?.accept(call)?);
    let fd = table::add(new.clone());
    keepalive::update(&new).or_else(|e| table::close(fd).and(Err(e)))?;
    Ok((fd, new.peer_addr().ok()))
}

/// Sets an option.
///
/// # Errors
/// `ENOPROTOOPT` for an unknown option; `EINVAL` or `EDOM` for an invalid value; `EAGAIN` if the keepalive
/// thread cannot be started.
pub fn set_option(socket: Arc<dyn Socket>, level: c_int, name: c_int, value: &[u8]) -> Result<(), c_int> {
    socket.options().set(level, name, value)?;
    stream(socket).map_or(Ok(()), |stream| keepalive::update(&stream))
}

/// Returns the value of an option, which may be a read-only one, such as the socket type.
///
/// # Errors
/// `ENOPROTOOPT` for an unknown option.
pub fn option(socket: Arc<dyn Socket>, level: c_int, name: c_int) -> Result<Vec<u8>, c_int> {
    let int = |value: c_int| Ok(value.to_ne_bytes().to_vec());
    let Common { family, kind, .. } = *socket.common();
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => int(socket.take_error().unwrap_or(0)),
        (libc::SOL_SOCKET, libc::SO_TYPE) => int(kind),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) if kind == libc::SOCK_DGRAM => int(libc::IPPROTO_UDP),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => int(libc::IPPROTO_TCP),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => int(family),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            let listens = |state: &mut State| matches!(state.phase, Phase::Listening(..));
            int(stream(socket).is_ok_and(|stream| stream.with_state(listens)).into())
        }
        _ => socket.options().get(level, name),
    }
}
