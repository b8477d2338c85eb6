//! Stream sockets: connection management, and the calls on them.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use urxe::verbs::cm::{CmEvent, CmEventKind, CmId, ConnParam, EventChannel, IdError, PortSpace};

use super::link::Link;
use super::options::Options;
use super::protocol::Hello;
use super::socket::Socket;
use super::wait::{Looked, Watchers, raw, restarts, undisturbed, until};
use crate::cancel::Call;
use crate::cm::process::Process;

/// Time that closing waits for the acknowledgement of sent data, unless `SO_LINGER` sets another.
const LINGER: Duration = Duration::from_secs(30);

/// A stream socket.
pub struct Stream {
    process: &'static Process,
    /// `AF_INET` or `AF_INET6`.
    family: c_int,
    /// Event channel of the socket, whose file descriptor identifies the rsocket to the program.
    channel: EventChannel,
    pub watchers: Watchers,
    state: Mutex<State>,
}

/// Mutable state of the socket.
pub struct State {
    pub phase: Phase,
    pub options: Options,
    /// Pending error of a failed connect or listener, until it is reported.
    pub error: Option<c_int>,
}

/// State of the connection.
pub enum Phase {
    /// Neither listening nor connected; bound or not.
    Idle(CmId),
    /// Listening, with the connection request to accept next.
    Listening(CmId, Option<CmEvent>),
    /// Waiting for the peer to accept.
    Connecting(Link),
    /// Connected, or disconnected afterwards: see [`Link::is_over`].
    Connected(Link),
    /// Failed to connect, or no longer listening.
    Failed,
    Closed,
}

/// Returns the error number of a connection manager error, as sockets report it.
pub fn errno(e: IdError) -> c_int {
    match e {
        IdError::PortTaken(_)
        | IdError::PortTakenByWildcard(_)
        | IdError::Claim { .. }
        | IdError::NoPort(_) => libc::EADDRINUSE,
        IdError::NoDevice(_) => libc::EADDRNOTAVAIL,
        other => other.errno(),
    }
}

impl Stream {
    /// Creates an unbound socket.
    ///
    /// # Errors
    /// An error number.
    pub fn new(family: c_int) -> Result<Stream, c_int> {
        let process = Process::this()?;
        let channel = EventChannel::new().map_err(|e| e.raw_os_error().unwrap_or(libc::EMFILE))?;
        let id = process.manager.create_id(&channel, PortSpace::Tcp).map_err(errno)?;
        Ok(Stream::with(process, family, channel, Phase::Idle(id), Options::default()))
    }

    fn with(
        process: &'static Process,
        family: c_int,
        channel: EventChannel,
        phase: Phase,
        options: Options,
    ) -> Stream {
        let state = Mutex::new(State { phase, options, error: None });
        Stream { process, family, channel, watchers: Watchers::default(), state }
    }

    /// Returns the file descriptor that identifies the socket.
    pub fn fd(&self) -> c_int {
        raw(&self.channel)
    }

    pub fn family(&self) -> c_int {
        self.family
    }

    /// Reports whether a forked child has inherited the socket from its parent, and must not use it.
    pub fn is_inherited(&self) -> bool {
        self.process.is_inherited()
    }

    /// Processes what has arrived, then calls `f` with the state.
    pub fn look<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let changed = state.turn(&self.channel);
        let was_over = state.is_over();
        let result = f(&mut state);
        let ended = state.is_over() != was_over;
        drop(state);
        if changed || ended {
            self.watchers.wake();
        }
        result
    }

    /// Like [`look`](Self::look), for a change that other threads may wait for.
    fn change<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let result = self.look(f);
        self.watchers.wake();
        result
    }

    /// Requests a notification of the next change, and passes the file descriptors that become readable then.
    pub fn arm(&self, mut by: impl FnMut(BorrowedFd<'_>)) {
        let mut state = self.state.lock();
        by(self.channel.as_fd());
        if let Phase::Connected(link) = &mut state.phase {
            link.arm();
            by(link.completions.as_fd());
        } else if !state.has_request() {
            // The call makes the background threads of the devices take over the polling, even if it finds no
            // event.
            if let Ok(event) = self.channel.get_event(Some(Duration::ZERO)) {
                state.heed(event);
                drop(state);
                self.watchers.wake();
            }
        }
    }

    /// Calls `f` until it has a result, unless the call may not block.
    ///
    /// # Errors
    /// The errors of [`until`].
    pub fn until<T>(
        self: &Arc<Self>,
        call: &mut Call,
        waits: bool,
        timeout: Option<Duration>,
        mut f: impl FnMut(&mut State) -> Looked<T>,
    ) -> Result<T, c_int> {
        until(call, || Socket::Stream(self.clone()), waits, timeout, || self.look(&mut f))
    }

    pub fn bind(&self, to: SocketAddr) -> Result<(), c_int> {
        self.check_family(to)?;
        self.look(|state| {
            let Phase::Idle(id) = &state.phase else { return Err(libc::EINVAL) };
            state.prepare(id)?;
            id.bind_addr(to).map_err(errno)
        })
    }

    fn check_family(&self, address: SocketAddr) -> Result<(), c_int> {
        let is_v6 = self.family == libc::AF_INET6;
        if address.is_ipv6() == is_v6 { Ok(()) } else { Err(libc::EAFNOSUPPORT) }
    }

    pub fn listen(&self, backlog: c_int) -> Result<(), c_int> {
        let any = match self.family {
            libc::AF_INET6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        self.change(|state| {
            let id = match &state.phase {
                Phase::Idle(id) => id.clone(),
                Phase::Listening(..) => return Ok(()),
                _ => return Err(libc::EINVAL),
            };
            if id.local_addr().is_none() {
                state.prepare(&id)?;
                id.bind_addr((any, 0).into()).map_err(errno)?;
            }
            id.listen(usize::try_from(backlog).unwrap_or(0).max(1)).map_err(errno)?;
            state.phase = Phase::Listening(id, None);
            Ok(())
        })
    }

    /// Accepts the next connection of a listener.
    pub fn accept(self: &Arc<Self>, call: &mut Call) -> Result<Stream, c_int> {
        let (waits, timeout) =
            self.look(|state| (!state.options.is_nonblocking, state.options.receive_timeout));
        loop {
            let found = self.until(call, waits, timeout, |state| match &mut state.phase {
                Phase::Listening(_, request) => {
                    request.take().map(|event| Ok((event, state.options.clone())))
                }
                Phase::Closed => Some(Err(libc::EBADF)),
                _ => Some(Err(libc::EINVAL)),
            });
            if restarts(&found, timeout, 0) {
                continue;
            }
            let (event, options) = found?;
            // A peer with another protocol is rejected without an error for the program.
            let Ok(peer) = Hello::parse(event.private_data()) else {
                let _ = event.id.reject(&[]);
                continue;
            };
            return self.admit(&event.id, &peer, options).inspect_err(|_| {
                let _ = event.id.reject(&[]);
            });
        }
    }

    /// Accepts a connection request and creates its socket.
    fn admit(&self, id: &CmId, peer: &Hello, options: Options) -> Result<Stream, c_int> {
        let channel = EventChannel::new().map_err(|e| e.raw_os_error().unwrap_or(libc::EMFILE))?;
        id.migrate(&channel).map_err(errno)?;
        let context = id.context().ok_or(libc::ECONNABORTED)?;
        let mut link = Link::new(id.clone(), &context, &options.sizes)?;
        link.begin(peer);
        id.accept(&ConnParam::with_data(&link.hello().bytes())).map_err(|_| libc::ECONNABORTED)?;
        let mut options = options;
        options.is_nonblocking = false;
        Ok(Stream::with(self.process, self.family, channel, Phase::Connected(link), options))
    }

    /// Connects to a peer.
    pub fn connect(self: &Arc<Self>, call: &mut Call, to: SocketAddr) -> Result<(), c_int> {
        if !call.begun {
            if !self.begin_to_connect(to)? {
                return Err(libc::EINPROGRESS);
            }
            call.begun = true;
        }
        loop {
            let result = self.until(call, true, None, |state| match &state.phase {
                Phase::Connecting(_) => None,
                Phase::Connected(_) => Some(Ok(())),
                Phase::Closed => Some(Err(libc::EBADF)),
                _ => Some(Err(state.error.take().unwrap_or(libc::ECONNREFUSED))),
            });
            if !restarts(&result, None, 0) {
                return result;
            }
        }
    }

    /// Starts to connect; reports whether the call has to wait for the result.
    fn begin_to_connect(self: &Arc<Self>, to: SocketAddr) -> Result<bool, c_int> {
        self.check_family(to)?;
        self.change(|state| {
            let waits = !state.options.is_nonblocking;
            let id = match &state.phase {
                Phase::Idle(id) => id.clone(),
                // As with TCP, a failed connect may be repeated.
                Phase::Failed => {
                    self.process.manager.create_id(&self.channel, PortSpace::Tcp).map_err(errno)?
                }
                Phase::Connecting(_) => return Err(libc::EALREADY),
                Phase::Connected(_) => return Err(libc::EISCONN),
                Phase::Listening(..) => return Err(libc::EINVAL),
                Phase::Closed => return Err(libc::EBADF),
            };
            state.error = None;
            state.phase = Phase::Failed;
            let link = self.ask(&id, to, state)?;
            state.phase = Phase::Connecting(link);
            Ok(waits)
        })
    }

    /// Resolves the route to a peer and sends the connection request.
    fn ask(&self, id: &CmId, to: SocketAddr, state: &State) -> Result<Link, c_int> {
        state.prepare(id)?;
        // Both events are pending at once, because no resolution over the network is needed.
        let answered = |kind: CmEventKind| match self.channel.try_event() {
            Some(event) if event.kind == kind => Ok(()),
            _ => Err(libc::ENETUNREACH),
        };
        id.resolve_addr(None, to, Duration::ZERO).map_err(errno)?;
        answered(CmEventKind::AddrResolved)?;
        id.resolve_route(Duration::ZERO).map_err(errno)?;
        answered(CmEventKind::RouteResolved)?;
        let context = id.context().ok_or(libc::ENETUNREACH)?;
        let link = Link::new(id.clone(), &context, &state.options.sizes)?;
        id.connect(&ConnParam::with_data(&link.hello().bytes())).map_err(errno)?;
        Ok(link)
    }

    pub fn shutdown(&self, how: c_int) -> Result<(), c_int> {
        let (reads, writes) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(libc::EINVAL),
        };
        self.change(|state| match &mut state.phase {
            Phase::Connected(link) => {
                link.shut(reads, writes);
                Ok(())
            }
            Phase::Listening(..) => {
                // No more connections arrive, and waiting threads fail.
                state.phase = Phase::Failed;
                Ok(())
            }
            Phase::Closed => Err(libc::EBADF),
            _ => Err(libc::ENOTCONN),
        })
    }

    /// Shuts down both directions unless the linger time is zero, and returns the time that closing may wait
    /// for the acknowledgement of sent data.
    pub fn conclude(&self) -> Duration {
        self.change(|state| {
            let linger = state.options.linger.unwrap_or(LINGER);
            if let Phase::Connected(link) = &mut state.phase
                && !linger.is_zero()
            {
                link.shut(true, true);
            }
            linger
        })
    }

    /// Closes the socket once all sent data has been acknowledged, or at the deadline. The socket is no
    /// longer in the process's table by then. Calls `patience` at least every 50 ms while it waits.
    pub fn close(self: &Arc<Self>, deadline: Instant, mut patience: impl FnMut()) {
        while Instant::now() < deadline {
            patience();
            let flushed = |state: &mut State| match &state.phase {
                Phase::Connected(link) if !link.is_flushed() => None,
                _ => Some(Ok(())),
            };
            let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(50));
            match undisturbed(|call| self.until(call, true, Some(left), flushed)) {
                Err(libc::EAGAIN | libc::EINTR) => {}
                _ => break,
            }
        }
        let phase = self.change(|state| std::mem::replace(&mut state.phase, Phase::Closed));
        match phase {
            Phase::Idle(id) => id.destroy(),
            Phase::Listening(id, request) => {
                request.into_iter().for_each(|event| event.id.destroy());
                id.destroy();
            }
            _ => {}
        }
    }

    /// Converts an address to the form of the socket's address family; `None` to the wildcard.
    fn shown(&self, address: Option<SocketAddr>) -> SocketAddr {
        match (address, self.family) {
            (Some(SocketAddr::V4(v4)), libc::AF_INET6) => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
            (Some(address), _) => address,
            (None, libc::AF_INET6) => (Ipv6Addr::UNSPECIFIED, 0).into(),
            (None, _) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }

    pub fn local_addr(&self) -> Result<SocketAddr, c_int> {
        self.look(|state| match &state.phase {
            Phase::Idle(id) | Phase::Listening(id, _) => Ok(self.shown(id.local_addr())),
            Phase::Connecting(link) | Phase::Connected(link) => Ok(self.shown(link.id.local_addr())),
            Phase::Failed => Ok(self.shown(None)),
            Phase::Closed => Err(libc::EBADF),
        })
    }

    pub fn peer_addr(&self) -> Result<SocketAddr, c_int> {
        self.look(|state| match &state.phase {
            Phase::Connected(link) => {
                link.id.peer_addr().map(|peer| self.shown(Some(peer))).ok_or(libc::ENOTCONN)
            }
            _ => Err(libc::ENOTCONN),
        })
    }

    /// Probes an idle connection; returns the time of the next call, `None` if there is to be none.
    pub fn keep_alive(&self, now: Instant) -> Option<Instant> {
        self.look(|state| state.keep_alive(now))
    }

    /// Returns the current `poll` events of the socket.
    pub fn events(&self) -> libc::c_short {
        self.look(|state| state.events())
    }
}

impl State {
    /// Processes what has arrived; reports whether anything has changed.
    fn turn(&mut self, channel: &EventChannel) -> bool {
        let mut changed = match &mut self.phase {
            // Completions come first, because they are older than an event that ends the connection.
            Phase::Connected(link) => link.turn(),
            _ => false,
        };
        while !self.has_request()
            && let Some(event) = channel.try_event()
        {
            self.heed(event);
            changed = true;
        }
        changed
    }

    fn is_over(&self) -> bool {
        matches!(&self.phase, Phase::Connected(link) if link.is_over())
    }

    /// Reports whether a connection request is ready to be accepted. Further requests stay in the event
    /// channel, where they count in the backlog.
    fn has_request(&self) -> bool {
        matches!(&self.phase, Phase::Listening(_, request) if request.is_some())
    }

    /// Processes an event of the connection manager.
    fn heed(&mut self, event: CmEvent) {
        match (&mut self.phase, event.kind) {
            (Phase::Listening(_, request), CmEventKind::ConnectRequest) => *request = Some(event),
            // The device of a bound listener is gone. A listener on the wildcard address goes on with the
            // other devices.
            (Phase::Listening(..), CmEventKind::DeviceRemoval) if event.id.context().is_some() => {
                self.error = Some(libc::ENODEV);
                self.phase = Phase::Failed;
            }
            (Phase::Connecting(_), CmEventKind::Established) => self.answered(&event),
            (Phase::Connecting(_), _) => {
                self.error = Some(match (event.kind, event.status) {
                    (CmEventKind::Rejected, _) => libc::ECONNREFUSED,
                    (CmEventKind::Unreachable, _) => libc::ETIMEDOUT,
                    (_, status @ ..0) => -status,
                    _ => libc::ECONNREFUSED,
                });
                self.phase = Phase::Failed;
            }
            (Phase::Connected(link), CmEventKind::Established) => link.establish(),
            (Phase::Connected(_), CmEventKind::TimewaitExit | CmEventKind::AddrChange) => {}
            (Phase::Connected(link), CmEventKind::Disconnected) => {
                // Data that the peer sent before it disconnected have arrived.
                link.turn();
                link.end();
            }
            (Phase::Connected(link), _) => link.fail(libc::ECONNRESET),
            _ => {}
        }
    }

    /// Completes a connect that the peer has accepted.
    fn answered(&mut self, event: &CmEvent) {
        let Phase::Connecting(mut link) = std::mem::replace(&mut self.phase, Phase::Failed) else { return };
        match Hello::parse(event.private_data()) {
            Ok(peer) => {
                link.begin(&peer);
                link.establish();
                link.turn();
                self.phase = Phase::Connected(link);
            }
            Err(_) => self.error = Some(libc::EPROTO),
        }
    }

    /// Sets the options of an ID that have to be set before it is bound.
    fn prepare(&self, id: &CmId) -> Result<(), c_int> {
        if id.local_addr().is_none() {
            id.set_reuse_addr(self.options.reuses_address).map_err(errno)?;
            id.set_af_only(self.options.only_v6).map_err(errno)?;
        }
        self.options.traffic_class.map_or(Ok(()), |class| id.set_tos(class).map_err(errno))
    }

    fn keep_alive(&mut self, now: Instant) -> Option<Instant> {
        let idle = self.options.keep_alive()?;
        match &mut self.phase {
            Phase::Connected(link) => link.keep_alive(idle, now),
            Phase::Listening(..) | Phase::Closed => None,
            // The socket may become connected later.
            Phase::Idle(_) | Phase::Connecting(_) | Phase::Failed => Some(now + idle),
        }
    }

    fn events(&self) -> libc::c_short {
        use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM};
        let (read, write) = (POLLIN | POLLRDNORM, POLLOUT | POLLWRNORM);
        let when = |is: bool, events: libc::c_short| if is { events } else { 0 };
        match &self.phase {
            Phase::Idle(_) => write | POLLHUP,
            Phase::Listening(_, request) => when(request.is_some(), read),
            Phase::Connecting(_) => 0,
            Phase::Connected(link) => {
                when(link.unread() > 0, read)
                    | when(!link.can_read, read)
                    | when(link.is_writable(), write)
                    | when(!link.can_write, write)
                    // The end is reported only after all data have been read, because programs stop reading
                    // at these events.
                    | when(!link.can_read && link.unread() == 0, POLLRDHUP)
                    | when(!link.can_read && !link.can_write && link.unread() == 0, POLLHUP)
                    | when(link.error.is_some(), POLLERR)
            }
            Phase::Failed => read | write | POLLHUP | when(self.error.is_some(), POLLERR),
            Phase::Closed => POLLNVAL,
        }
    }

    /// Takes the pending error (`SO_ERROR`).
    pub fn take_error(&mut self) -> Option<c_int> {
        let of_link = match &mut self.phase {
            Phase::Connected(link) => link.error.take(),
            _ => None,
        };
        of_link.or_else(|| self.error.take())
    }
}
