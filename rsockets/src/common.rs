//! State and steps that stream and datagram sockets have in common.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use urxe::sys::fork::ForkGeneration;
use urxe::verbs::cm::{CmId, ConnectionManager, EventChannel, IdError, PortSpace};
use urxe::verbs::errors::{CqOverflow, CreateError};
use urxe::verbs::{Completion, CompletionChannel, Context, Cq, CqOptions, Notify};

use crate::watchers::Watchers;

/// State of a socket that does not change.
pub(crate) struct Common {
    /// Process that created the socket. A forked child does not use the sockets of its parent.
    pub process: ForkGeneration,
    pub manager: ConnectionManager,
    /// `AF_INET` or `AF_INET6`.
    pub family: c_int,
    /// `SOCK_STREAM` or `SOCK_DGRAM`.
    pub kind: c_int,
    /// File descriptor that identifies the rsocket to the program.
    pub fd: c_int,
    /// Event channel of the connection manager ids of the socket.
    pub channel: EventChannel,
    pub watchers: Watchers,
}

impl Common {
    /// Creates the state of a socket, which the file descriptor of its event channel identifies.
    ///
    /// # Errors
    /// An error number.
    pub(crate) fn new(manager: &ConnectionManager, family: c_int, kind: c_int) -> Result<Common, c_int> {
        let channel = EventChannel::new().map_err(|e| e.raw_os_error().unwrap_or(libc::EMFILE))?;
        let fd = channel.as_fd().as_raw_fd();
        let (process, manager) = (ForkGeneration::current(), manager.clone());
        Ok(Common { process, manager, family, kind, fd, channel, watchers: Watchers::default() })
    }

    /// Creates a connection manager id on the event channel.
    ///
    /// # Errors
    /// An error number.
    pub(crate) fn create_id(&self, space: PortSpace) -> Result<CmId, c_int> {
        self.manager.create_id(&self.channel, space).map_err(errno)
    }

    /// Fails with `EAFNOSUPPORT` if an address is not of the socket's family.
    pub(crate) fn check_family(&self, address: SocketAddr) -> Result<(), c_int> {
        let is_v6 = self.family == libc::AF_INET6;
        if address.is_ipv6() == is_v6 { Ok(()) } else { Err(libc::EAFNOSUPPORT) }
    }

    /// Returns the wildcard address of the socket's family, with port 0.
    pub(crate) fn wildcard(&self) -> SocketAddr {
        match self.family {
            libc::AF_INET6 => (IpAddr::from(Ipv6Addr::UNSPECIFIED), 0).into(),
            _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }

    /// Converts an address to the socket's family: IPv4 to IPv4-mapped IPv6 on an IPv6 socket.
    pub(crate) fn to_family(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(v4) if self.family == libc::AF_INET6 => {
                (v4.ip().to_ipv6_mapped(), v4.port()).into()
            }
            other => other,
        }
    }
}

/// Returns the error number that a socket reports for a connection manager error.
pub(crate) fn errno(e: IdError) -> c_int {
    match e {
        IdError::PortInUse(_)
        | IdError::PortInUseByWildcard(_)
        | IdError::Claim { .. }
        | IdError::NoPort(_) => libc::EADDRINUSE,
        IdError::NoDevice(_) => libc::EADDRNOTAVAIL,
        other => other.errno(),
    }
}

/// Completion queue of a queue pair, with the channel that reports completions once it is [armed](Self::arm).
pub(crate) struct Completions {
    pub cq: Cq,
    /// Buffer for completions, kept between polls.
    pub polled: Vec<Completion>,
    channel: CompletionChannel,
    is_armed: bool,
}

impl Completions {
    /// Creates a queue with the given capacity.
    pub(crate) fn new(context: &Context, capacity: usize) -> Result<Completions, CreateError> {
        let channel = context.create_channel()?;
        let cq = context.create_cq(CqOptions::new(capacity).channel(&channel))?;
        Ok(Completions { cq, polled: Vec::new(), channel, is_armed: false })
    }

    /// Takes the completions that the queue has, in a buffer to be returned to `polled`. Completions that
    /// arrive meanwhile are left, so that peers that send without pause do not keep the thread busy. If the
    /// queue is empty and `polls_link` is set, polls the link first.
    ///
    /// # Errors
    /// [`CqOverflow`] if completions were lost.
    pub(crate) fn poll(&mut self, polls_link: bool) -> Result<Vec<Completion>, CqOverflow> {
        let mut polled = std::mem::take(&mut self.polled);
        polled.clear();
        match polls_link {
            true => self.cq.poll(usize::MAX, &mut polled)?,
            false => self.cq.poll_queued(usize::MAX, &mut polled)?,
        };
        Ok(polled)
    }

    /// Requests a notification of the next completion, which makes the returned descriptor readable. The
    /// caller must then poll once more for completions that arrived earlier. Only this function consumes
    /// completion events: if thread B polls after thread A has armed and before A sleeps, the event stays in
    /// the channel and wakes A.
    pub(crate) fn arm(&mut self) -> BorrowedFd<'_> {
        while self.channel.next_event().is_some() {
            self.is_armed = false;
        }
        if !std::mem::replace(&mut self.is_armed, true) {
            self.cq.arm(Notify::Any);
        }
        self.channel.as_fd()
    }
}
