//! State and steps that stream and datagram sockets have in common.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use urxe::verbs::cm::EventChannel;
use urxe::verbs::errors::CreateError;
use urxe::verbs::{CompletionChannel, Context, Cq, CqOptions, Notify};

use super::wait::{Watchers, uncancellable};
use crate::cancel::Call;
use crate::rdmacm::process::ProcessGlobals;

/// State of a socket that does not change.
pub(super) struct Common {
    pub process: &'static ProcessGlobals,
    /// `AF_INET` or `AF_INET6`.
    pub family: c_int,
    /// Event channel of the connection manager ids of the socket.
    pub channel: EventChannel,
    pub watchers: Watchers,
}

impl Common {
    /// Creates the state of a socket.
    ///
    /// # Errors
    /// An error number.
    pub(super) fn new(family: c_int) -> Result<Common, c_int> {
        let process = ProcessGlobals::current()?;
        let channel = EventChannel::new().map_err(|e| e.raw_os_error().unwrap_or(libc::EMFILE))?;
        Ok(Common { process, family, channel, watchers: Watchers::default() })
    }

    /// Fails with `EAFNOSUPPORT` if an address is not of the socket's family.
    pub(super) fn check_family(&self, address: SocketAddr) -> Result<(), c_int> {
        let is_v6 = self.family == libc::AF_INET6;
        if address.is_ipv6() == is_v6 { Ok(()) } else { Err(libc::EAFNOSUPPORT) }
    }

    /// Returns the wildcard address of the socket's family, with port 0.
    pub(super) fn wildcard(&self) -> SocketAddr {
        match self.family {
            libc::AF_INET6 => (IpAddr::from(Ipv6Addr::UNSPECIFIED), 0).into(),
            _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }

    /// Converts an address to the socket's family: IPv4 to IPv4-mapped IPv6 on an IPv6 socket.
    pub(super) fn to_family(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(v4) if self.family == libc::AF_INET6 => {
                (v4.ip().to_ipv6_mapped(), v4.port()).into()
            }
            other => other,
        }
    }
}

/// Returns whether a call of `shutdown` ends reads, and whether it ends writes.
pub(super) fn ended_directions(how: c_int) -> Result<(bool, bool), c_int> {
    match how {
        libc::SHUT_RD => Ok((true, false)),
        libc::SHUT_WR => Ok((false, true)),
        libc::SHUT_RDWR => Ok((true, true)),
        _ => Err(libc::EINVAL),
    }
}

/// Repeats a wait until it succeeds or fails for good, or until the deadline. Calls `on_progress` at least
/// every 50 ms.
pub(super) fn wait_for_close(
    deadline: Instant,
    mut on_progress: impl FnMut(),
    mut wait: impl FnMut(&mut Call, Option<Duration>) -> Result<(), c_int>,
) {
    while Instant::now() < deadline {
        on_progress();
        let remaining = deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(50));
        match uncancellable(|call| wait(call, Some(remaining))) {
            Err(libc::EAGAIN | libc::EINTR) => {}
            _ => break,
        }
    }
}

/// Completion queue of a queue pair, with the channel that reports completions once it is [armed](Self::arm).
pub(super) struct Completions {
    pub cq: Cq,
    channel: CompletionChannel,
    is_armed: bool,
}

impl Completions {
    /// Creates a queue with the given capacity.
    pub(super) fn new(context: &Context, capacity: usize) -> Result<Completions, CreateError> {
        let channel = context.create_channel()?;
        let cq = context.create_cq(CqOptions::new(capacity).channel(&channel))?;
        Ok(Completions { cq, channel, is_armed: false })
    }

    /// Requests a notification of the next completion, which makes the returned descriptor readable. The
    /// caller must then poll once more for completions that arrived earlier. Only this function consumes
    /// completion events: if thread B polls after thread A has armed and before A sleeps, the event stays in
    /// the channel and wakes A.
    pub(super) fn arm(&mut self) -> BorrowedFd<'_> {
        while self.channel.next_event().is_some() {
            self.is_armed = false;
        }
        if !std::mem::replace(&mut self.is_armed, true) {
            self.cq.arm(Notify::Any);
        }
        self.channel.as_fd()
    }
}
