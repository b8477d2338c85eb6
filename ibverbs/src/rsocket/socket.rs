//! A socket of either kind.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::buffers::{Sink, Source};
use super::datagram::Datagram;
use super::keepalive::attend;
use super::options::Options;
use super::stream::{Phase, Stream};
use super::wait::Watchers;
use crate::cancel::Call;

/// A socket.
#[derive(Clone)]
pub enum Socket {
    Stream(Arc<Stream>),
    Datagram(Arc<Datagram>),
}

/// What a call has received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    pub bytes: usize,
    /// Sender of a datagram.
    pub from: Option<SocketAddr>,
    /// There was more of the datagram than room.
    pub is_cut: bool,
}

/// Calls a method of the stream or of the datagram socket.
macro_rules! either {
    ($self:ident, $socket:ident => $does:expr) => {
        match $self {
            Socket::Stream($socket) => $does,
            Socket::Datagram($socket) => $does,
        }
    };
}

impl Socket {
    /// # Errors
    /// An error number.
    pub fn new(family: c_int, kind: c_int) -> Result<Socket, c_int> {
        match kind {
            libc::SOCK_DGRAM => Datagram::new(family).map(|socket| Socket::Datagram(Arc::new(socket))),
            _ => Stream::new(family).map(|socket| Socket::Stream(Arc::new(socket))),
        }
    }

    /// One of streams, which has what datagrams have not.
    ///
    /// # Errors
    /// `EOPNOTSUPP`.
    pub fn stream(&self) -> Result<&Arc<Stream>, c_int> {
        match self {
            Socket::Stream(stream) => Ok(stream),
            Socket::Datagram(_) => Err(libc::EOPNOTSUPP),
        }
    }

    /// Where it is in memory, as long as somebody holds it.
    pub fn place(&self) -> *const () {
        either!(self, socket => Arc::as_ptr(socket).cast())
    }

    pub fn fd(&self) -> c_int {
        either!(self, socket => socket.fd())
    }

    pub fn family(&self) -> c_int {
        either!(self, socket => socket.family())
    }

    /// `SO_TYPE` and `SO_PROTOCOL`.
    pub fn kind(&self) -> (c_int, c_int) {
        match self {
            Socket::Stream(_) => (libc::SOCK_STREAM, libc::IPPROTO_TCP),
            Socket::Datagram(_) => (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
        }
    }

    /// Whether it is the parent's, and nothing to this process.
    pub fn is_inherited(&self) -> bool {
        either!(self, socket => socket.is_inherited())
    }

    pub fn watchers(&self) -> &Watchers {
        either!(self, socket => &socket.watchers)
    }

    /// Asks to hear of the next change, by these descriptors.
    pub fn arm(&self, by: impl FnMut(BorrowedFd<'_>)) {
        either!(self, socket => socket.arm(by));
    }

    /// Has its connection kept alive, if its options say so.
    ///
    /// # Errors
    /// As of [`attend`].
    pub fn attend(&self) -> Result<(), c_int> {
        match self {
            Socket::Stream(stream) if self.options(|options| options.keep_alive().is_some()) => {
                attend(stream)
            }
            _ => Ok(()),
        }
    }

    /// What `poll` says of it.
    pub fn events(&self) -> libc::c_short {
        either!(self, socket => socket.events())
    }

    pub fn options<R>(&self, f: impl FnOnce(&mut Options) -> R) -> R {
        either!(self, socket => socket.look(|state| f(&mut state.options)))
    }

    /// Why it failed, which is told once.
    pub fn take_error(&self) -> Option<c_int> {
        match self {
            Socket::Stream(stream) => stream.look(|state| state.take_error()),
            Socket::Datagram(datagram) => datagram.look(|state| state.take_error()),
        }
    }

    pub fn is_listening(&self) -> bool {
        let listens = |stream: &Arc<Stream>| stream.look(|state| matches!(state.phase, Phase::Listening(..)));
        self.stream().is_ok_and(listens)
    }

    pub fn bind(&self, to: SocketAddr) -> Result<(), c_int> {
        either!(self, socket => socket.bind(to))
    }

    /// To nobody: only datagrams can.
    pub fn connect(&self, call: &mut Call, to: Option<SocketAddr>) -> Result<(), c_int> {
        match self {
            Socket::Stream(stream) => stream.connect(call, to.ok_or(libc::EAFNOSUPPORT)?),
            Socket::Datagram(datagram) => datagram.connect(to),
        }
    }

    pub fn shutdown(&self, how: c_int) -> Result<(), c_int> {
        either!(self, socket => socket.shutdown(how))
    }

    pub fn local_addr(&self) -> Result<SocketAddr, c_int> {
        either!(self, socket => socket.local_addr())
    }

    pub fn peer_addr(&self) -> Result<SocketAddr, c_int> {
        either!(self, socket => socket.peer_addr())
    }

    pub fn receive(&self, call: &mut Call, sink: &mut Sink<'_>, flags: c_int) -> Result<Received, c_int> {
        match self {
            Socket::Stream(stream) => {
                stream.receive(call, sink, flags).map(|bytes| Received { bytes, ..Received::default() })
            }
            Socket::Datagram(datagram) => datagram.receive(call, sink, flags),
        }
    }

    /// The address is looked at of a datagram only, as of any socket that is connected.
    pub fn send(
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

    /// Has the peer told that nothing more comes, if it is to hear of it; how long closing may wait for that.
    pub fn conclude(&self) -> Duration {
        either!(self, socket => socket.conclude())
    }

    /// Ends it, after what was sent has arrived (a datagram: has left) or at the deadline.
    pub fn close(&self, deadline: Instant, patience: impl FnMut()) {
        either!(self, socket => socket.close(deadline, patience));
    }
}
