//! The calls that stream and datagram sockets implement.

use std::any::Any;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MappedMutexGuard;

use crate::buffers::{Received, Sink, Source};
use crate::call::Call;
use crate::common::Common;
use crate::link_polls::LinkPolls;
use crate::options::Options;

/// The part of a socket that the other files of this crate use.
pub(crate) trait Waitable: Any + Send + Sync {
    /// Returns the state that does not change.
    fn common(&self) -> &Common;

    /// Requests a notification of the next change, and passes the file descriptors that the change makes
    /// readable to `by`.
    fn arm(&self, by: &mut dyn FnMut(BorrowedFd<'_>));

    /// Makes the background threads of the devices poll for the changes.
    fn stop_polling(&self);

    /// Returns the `poll` events that are currently pending.
    fn events(&self, link_polls: &mut LinkPolls) -> libc::c_short;

    /// Takes the pending error (`SO_ERROR`).
    fn take_error(&self) -> Option<c_int>;

    /// Starts to close the socket, and returns the maximum time to wait for delivery. On a stream socket,
    /// announces the end of the data to the peer, unless the linger time is zero.
    fn begin_close(&self) -> Duration;

    /// Closes the socket once all data has been acknowledged (stream) or sent (datagram), or at the deadline.
    /// The caller has already removed the socket from the process's table. Calls `on_progress` at least every
    /// 50 ms while waiting.
    fn close(self: Arc<Self>, deadline: Instant, on_progress: &dyn Fn());
}

/// A stream or datagram socket. All calls fail with an error number.
#[allow(private_bounds, reason = "only this crate defines sockets, and waits for them")]
pub trait Socket: Waitable {
    /// Locks the socket's options.
    fn options(&self) -> MappedMutexGuard<'_, Options>;

    /// Binds the socket to a local address, which must be of its family.
    fn bind(&self, to: SocketAddr) -> Result<(), c_int>;

    /// Makes one attempt to connect to a peer. Disconnects a datagram socket if `to` is `None`.
    fn connect(self: Arc<Self>, call: &mut Call, to: Option<SocketAddr>) -> Result<(), c_int>;

    /// Ends reads, writes, or both.
    fn shutdown(&self, ended: (bool, bool)) -> Result<(), c_int>;

    /// Returns the local address, which is the wildcard address with port 0 before the socket is bound.
    fn local_addr(&self) -> Result<SocketAddr, c_int>;

    /// Returns the address of the peer. Fails with `ENOTCONN` if the socket is not connected.
    fn peer_addr(&self) -> Result<SocketAddr, c_int>;

    /// Makes one attempt to receive data of a stream, or the next datagram, truncated to the size of the
    /// sink. `flags` are those of `recv`.
    fn receive(
        self: Arc<Self>,
        call: &mut Call,
        sink: &mut Sink<'_>,
        flags: c_int,
    ) -> Result<Received, c_int>;

    /// Makes one attempt to send data, from a datagram socket to an address, or to the connected peer if
    /// there is none. Returns the number of bytes. `to` is evaluated only on a datagram socket: stream
    /// sockets ignore the address, as TCP sockets do. `flags` are those of `send`.
    fn send(
        self: Arc<Self>,
        call: &mut Call,
        source: &mut Source<'_>,
        to: &dyn Fn() -> Result<Option<SocketAddr>, c_int>,
        flags: c_int,
    ) -> Result<usize, c_int>;
}
