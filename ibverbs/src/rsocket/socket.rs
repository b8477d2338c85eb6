//! Socket handle, for stream and datagram sockets alike.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::buffers::{Received, Sink, Source};
use super::common::Common;
use super::datagram::Datagram;
use super::keepalive::register;
use super::link_polls::LinkPolls;
use super::options::Options;
use super::stream::{Phase, Stream};
use super::wait::Waitable;
use crate::cancel::Call;

/// Shared handle to a socket.
#[derive(Clone)]
pub(super) enum Socket {
    Stream(Arc<Stream>),
    Datagram(Arc<Datagram>),
}

/// Evaluates an expression with the stream or datagram socket bound to a name.
macro_rules! either {
    ($self:ident, $socket:ident => $expr:expr) => {
        match $self {
            Socket::Stream($socket) => $expr,
            Socket::Datagram($socket) => $expr,
        }
    };
}

impl Socket {
    /// Creates a socket: a datagram socket if `kind` is `SOCK_DGRAM`, a stream socket otherwise.
    ///
    /// # Errors
    /// An error number.
    pub(super) fn new(family: c_int, kind: c_int) -> Result<Socket, c_int> {
        match kind {
            libc::SOCK_DGRAM => Datagram::new(family).map(|socket| Socket::Datagram(Arc::new(socket))),
            _ => Stream::new(family).map(|socket| Socket::Stream(Arc::new(socket))),
        }
    }

    /// Returns the stream socket, for operations that datagram sockets do not support.
    ///
    /// # Errors
    /// `EOPNOTSUPP` on a datagram socket.
    pub(super) fn stream(&self) -> Result<&Arc<Stream>, c_int> {
        match self {
            Socket::Stream(stream) => Ok(stream),
            Socket::Datagram(_) => Err(libc::EOPNOTSUPP),
        }
    }

    /// Returns the socket as one to wait for.
    pub(super) fn waitable(&self) -> Arc<dyn Waitable> {
        either!(self, socket => socket.clone())
    }

    /// Returns the socket's memory address, which identifies the socket as long as a handle exists.
    pub(super) fn address(&self) -> *const () {
        either!(self, socket => Arc::as_ptr(socket).cast())
    }

    pub(super) fn fd(&self) -> c_int {
        either!(self, socket => socket.fd())
    }

    fn common(&self) -> &Common {
        either!(self, socket => &socket.common)
    }

    pub(super) fn family(&self) -> c_int {
        self.common().family
    }

    /// Returns the values of `SO_TYPE` and `SO_PROTOCOL`.
    pub(super) fn kind(&self) -> (c_int, c_int) {
        match self {
            Socket::Stream(_) => (libc::SOCK_STREAM, libc::IPPROTO_TCP),
            Socket::Datagram(_) => (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
        }
    }

    /// Reports whether this process is a forked child that inherited the socket from its parent, and must not
    /// use it.
    pub(super) fn is_inherited(&self) -> bool {
        self.common().process.is_inherited()
    }

    /// Registers the socket for keepalive if `SO_KEEPALIVE` is set.
    ///
    /// # Errors
    /// The errors of [`register`].
    pub(super) fn update_keepalive(&self) -> Result<(), c_int> {
        match self {
            Socket::Stream(stream) if self.options(|options| options.keep_alive().is_some()) => {
                register(stream)
            }
            _ => Ok(()),
        }
    }

    /// Returns the `poll` events that are currently pending.
    pub(super) fn events(&self, link_polls: &mut LinkPolls) -> libc::c_short {
        match self {
            Socket::Stream(stream) => stream.events(link_polls),
            Socket::Datagram(datagram) => datagram.events(),
        }
    }

    /// Calls `f` with the socket's options.
    pub(super) fn options<R>(&self, f: impl FnOnce(&mut Options) -> R) -> R {
        match self {
            Socket::Stream(stream) => stream.options(f),
            Socket::Datagram(datagram) => datagram.with_state(|state| f(&mut state.options)),
        }
    }

    /// Takes the pending error (`SO_ERROR`).
    pub(super) fn take_error(&self) -> Option<c_int> {
        match self {
            Socket::Stream(stream) => stream.with_state(|state| state.take_error()),
            Socket::Datagram(datagram) => datagram.with_state(|state| state.take_error()),
        }
    }

    pub(super) fn is_listening(&self) -> bool {
        let listens =
            |stream: &Arc<Stream>| stream.with_state(|state| matches!(state.phase, Phase::Listening(..)));
        self.stream().is_ok_and(listens)
    }

    pub(super) fn bind(&self, to: SocketAddr) -> Result<(), c_int> {
        either!(self, socket => socket.bind(to))
    }

    /// Connects to a peer, or disconnects a datagram socket if `to` is `None`.
    pub(super) fn connect(&self, call: &mut Call, to: Option<SocketAddr>) -> Result<(), c_int> {
        match self {
            Socket::Stream(stream) => stream.connect(call, to.ok_or(libc::EAFNOSUPPORT)?),
            Socket::Datagram(datagram) => datagram.connect(to),
        }
    }

    pub(super) fn shutdown(&self, how: c_int) -> Result<(), c_int> {
        either!(self, socket => socket.shutdown(how))
    }

    pub(super) fn local_addr(&self) -> Result<SocketAddr, c_int> {
        either!(self, socket => socket.local_addr())
    }

    pub(super) fn peer_addr(&self) -> Result<SocketAddr, c_int> {
        either!(self, socket => socket.peer_addr())
    }

    pub(super) fn receive(
        &self,
        call: &mut Call,
        sink: &mut Sink<'_>,
        flags: c_int,
    ) -> Result<Received, c_int> {
        match self {
            Socket::Stream(stream) => {
                stream.receive(call, sink, flags).map(|bytes| Received { bytes, ..Received::default() })
            }
            Socket::Datagram(datagram) => datagram.receive(call, sink, flags),
        }
    }

    /// Sends data. `to` is evaluated only on a datagram socket: stream sockets ignore the address, as TCP
    /// sockets do.
    pub(super) fn send(
        &self,
        call: &mut Call,
        source: &mut Source<'_>,
        to: impl FnOnce() -> Result<Option<SocketAddr>, c_int>,
        flags: c_int,
    ) -> Result<usize, c_int> {
        match self {
            Socket::Stream(stream) => stream.send(call, source, flags),
            Socket::Datagram(datagram) => datagram.send(call, source, to()?, flags),
        }
    }

    /// Starts to close the socket, and returns the maximum time to wait for delivery. On a stream socket,
    /// announces the end of the data to the peer, unless the linger time is zero.
    pub(super) fn begin_close(&self) -> Duration {
        either!(self, socket => socket.begin_close())
    }

    /// Closes the socket once all data has been acknowledged (stream) or sent (datagram), or at the deadline.
    /// Calls `on_progress` periodically while waiting.
    pub(super) fn close(&self, deadline: Instant, on_progress: impl FnMut()) {
        either!(self, socket => socket.close(deadline, on_progress));
    }
}
