//! Stream sockets: their state, and connection setup and teardown.

use std::cell::Cell;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicI16, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use urxe::verbs::Cq;
use urxe::verbs::cm::{CmEvent, CmEventKind, CmId, ConnParam, ConnectionManager, EventChannel, PortSpace};

use crate::buffers::{Received, Sink, Source};
use crate::call::Call;
use crate::common::{Common, errno};
use crate::connection::Connection;
use crate::link_polls::LinkPolls;
use crate::options::Options;
use crate::protocol::ConnData;
use crate::socket::{Socket, Waitable};
use crate::wait::{PollOutcome, until, wait_for_close};

/// Maximum time for which a close waits for the acknowledgement of sent data, unless set by `SO_LINGER`.
const LINGER: Duration = Duration::from_secs(30);

/// A stream socket.
pub struct Stream {
    common: Common,
    state: Mutex<State>,
    /// Pending `poll` events as of the last time that the state was locked.
    events: AtomicI16,
    /// Completion queue of the connection, once there is one. While this queue and the event channel are
    /// empty, `events` are current, and `rpoll` needs no lock: with 50 connections, the locks took a
    /// fifth of the time of redis-benchmark.
    cq: OnceLock<Cq>,
}

/// Mutable state of the socket.
pub(crate) struct State {
    pub phase: Phase,
    pub options: Options,
    /// Error of a failed connect or listener, not yet reported to the program.
    pub error: Option<c_int>,
}

/// State of the connection.
pub(crate) enum Phase {
    /// Neither listening nor connected, possibly bound.
    Idle(CmId),
    /// Listening, with the next connection request to accept, if one has arrived.
    Listening(CmId, Option<CmEvent>),
    /// Waiting for the peer to accept.
    Connecting(Connection),
    /// Connected, or no longer connected: see [`Connection::has_ended`].
    Connected(Connection),
    /// Failed to connect, or no longer listening.
    Failed,
    Closed,
}

impl Stream {
    /// Creates an unbound socket.
    ///
    /// # Errors
    /// An error number.
    pub(crate) fn new(manager: &ConnectionManager, family: c_int) -> Result<Stream, c_int> {
        let common = Common::new(manager, family, libc::SOCK_STREAM)?;
        let id = common.create_id(PortSpace::Tcp)?;
        Ok(Stream::with(common, Phase::Idle(id), Options::default()))
    }

    fn with(common: Common, phase: Phase, options: Options) -> Stream {
        let state = State { phase, options, error: None };
        let (events, cq) = (AtomicI16::new(0), OnceLock::new());
        let stream = Stream { common, state: Mutex::new(state), events, cq };
        stream.note_events(&stream.state.lock());
        stream
    }

    /// Records the pending events for calls without the lock.
    fn note_events(&self, state: &State) {
        self.events.store(state.events(), Ordering::Release);
        if let Phase::Connected(conn) = &state.phase {
            self.cq.get_or_init(|| {
                self.common.watchers.wake_all();
                conn.completions.cq.clone()
            });
        }
    }

    /// Polls the link, processes completions and events, then calls `f` with the state.
    pub(crate) fn with_state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        self.with_state_after(&mut LinkPolls::All, f)
    }

    /// Calls `f` like [`with_state`](Self::with_state), after the given polls.
    fn with_state_after<R>(&self, link_polls: &mut LinkPolls, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let changed = state.process(&self.common.channel, link_polls);
        let was_over = state.has_ended();
        let result = f(&mut state);
        let ended = state.has_ended() != was_over;
        self.note_events(&state);
        drop(state);
        if changed || ended {
            self.common.watchers.wake();
        }
        result
    }

    /// Calls `f` like [`with_state`](Self::with_state), then wakes the threads waiting for a change of the
    /// socket.
    fn update<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let result = self.with_state(f);
        self.common.watchers.wake();
        result
    }

    /// Returns the result of `f`. If `f` has no result yet and the call may block, sets up a wait, after
    /// which the call is attempted again. `done` is the number of bytes that the call has transferred.
    ///
    /// # Errors
    /// The errors of [`until`].
    pub(crate) fn until<T>(
        self: &Arc<Self>,
        call: &mut Call,
        wait: (bool, Option<Duration>),
        done: &Cell<usize>,
        mut f: impl FnMut(&mut State) -> PollOutcome<T>,
    ) -> Result<T, c_int> {
        until(call, self, wait, done, || {
            // Polling the link costs system calls, which data that have arrived do not need.
            self.with_state_after(&mut LinkPolls::None, &mut f).or_else(|| self.with_state(&mut f))
        })
    }

    /// Listens for connections. The backlog is the maximum number of pending ones, at least 1.
    ///
    /// # Errors
    /// `EINVAL` if the socket is or was connected, or is closed; those of binding it.
    pub fn listen(&self, backlog: c_int) -> Result<(), c_int> {
        self.update(|state| {
            let id = match &state.phase {
                Phase::Idle(id) => id.clone(),
                Phase::Listening(..) => return Ok(()),
                _ => return Err(libc::EINVAL),
            };
            if id.local_addr().is_none() {
                state.prepare(&id)?;
                id.bind_addr(self.common.wildcard()).map_err(errno)?;
            }
            id.listen(usize::try_from(backlog).unwrap_or(0).max(1)).map_err(errno)?;
            state.phase = Phase::Listening(id, None);
            Ok(())
        })
    }

    /// Waits for the next connection request and accepts it.
    pub(crate) fn accept(self: &Arc<Self>, call: &mut Call) -> Result<Stream, c_int> {
        let wait = self.options().receive_wait(0);
        loop {
            let (event, options) = self.until(call, wait, &Cell::new(0), |state| match &mut state.phase {
                Phase::Listening(_, request) => {
                    request.take().map(|event| Ok((event, state.options.clone())))
                }
                Phase::Closed => Some(Err(libc::EBADF)),
                _ => Some(Err(libc::EINVAL)),
            })?;
            // A peer with another protocol is rejected without an error for the program.
            let Ok(peer) = ConnData::parse(event.private_data()) else {
                let _ = event.id.reject(&[]);
                continue;
            };
            return self.accept_request(&event.id, &peer, options).inspect_err(|_| {
                let _ = event.id.reject(&[]);
            });
        }
    }

    /// Accepts a connection request and creates the socket for the connection.
    fn accept_request(&self, id: &CmId, peer: &ConnData, options: Options) -> Result<Stream, c_int> {
        let common = Common::new(&self.common.manager, self.common.family, libc::SOCK_STREAM)?;
        id.migrate(&common.channel).map_err(errno)?;
        let context = id.context().ok_or(libc::ECONNABORTED)?;
        let mut conn = Connection::new(id.clone(), &context, &options.sizes)?;
        conn.start(peer);
        id.accept(&ConnParam::with_data(&conn.conn_data().bytes())).map_err(|_| libc::ECONNABORTED)?;
        let mut options = options;
        options.is_nonblocking = false;
        Ok(Stream::with(common, Phase::Connected(conn), options))
    }

    /// Starts to connect. Returns true if the call must wait for the result.
    fn begin_to_connect(&self, to: SocketAddr) -> Result<bool, c_int> {
        self.common.check_family(to)?;
        self.update(|state| {
            let may_block = !state.options.is_nonblocking;
            let id = match &state.phase {
                Phase::Idle(id) => id.clone(),
                // As with TCP, a failed connect may be repeated.
                Phase::Failed => self.common.create_id(PortSpace::Tcp)?,
                Phase::Connecting(_) => return Err(libc::EALREADY),
                Phase::Connected(_) => return Err(libc::EISCONN),
                Phase::Listening(..) => return Err(libc::EINVAL),
                Phase::Closed => return Err(libc::EBADF),
            };
            state.error = None;
            state.phase = Phase::Failed;
            let conn = self.send_request(&id, to, state)?;
            state.phase = Phase::Connecting(conn);
            Ok(may_block)
        })
    }

    /// Resolves the route to a peer and sends the connection request.
    fn send_request(&self, id: &CmId, to: SocketAddr, state: &State) -> Result<Connection, c_int> {
        state.prepare(id)?;
        // Both events are pending at once, because no resolution over the network is needed.
        let expect_event = |kind: CmEventKind| match self.common.channel.try_event() {
            Some(event) if event.kind == kind => Ok(()),
            _ => Err(libc::ENETUNREACH),
        };
        id.resolve_addr(None, to, Duration::ZERO).map_err(errno)?;
        expect_event(CmEventKind::AddrResolved)?;
        id.resolve_route(Duration::ZERO).map_err(errno)?;
        expect_event(CmEventKind::RouteResolved)?;
        let context = id.context().ok_or(libc::ENETUNREACH)?;
        let conn = Connection::new(id.clone(), &context, &state.options.sizes)?;
        id.connect(&ConnParam::with_data(&conn.conn_data().bytes())).map_err(errno)?;
        Ok(conn)
    }

    /// Converts an address to the socket's address family, and `None` to the wildcard address.
    fn to_family(&self, address: Option<SocketAddr>) -> SocketAddr {
        address.map_or_else(|| self.common.wildcard(), |address| self.common.to_family(address))
    }

    /// Calls `f` with the connection.
    ///
    /// # Errors
    /// `ENOTCONN` if there is none, and the errors of `f`.
    pub fn with_connection<R>(
        &self,
        f: impl FnOnce(&mut Connection) -> Result<R, c_int>,
    ) -> Result<R, c_int> {
        self.with_state(|state| match &mut state.phase {
            Phase::Connected(conn) => f(conn),
            _ => Err(libc::ENOTCONN),
        })
    }

    /// Probes the connection if it is idle. Returns the time at which to call this again, or `None` if no
    /// probes are needed.
    pub(crate) fn keep_alive(&self, now: Instant) -> Option<Instant> {
        self.with_state(|state| state.keep_alive(now))
    }
}

impl Waitable for Stream {
    fn common(&self) -> &Common {
        &self.common
    }

    fn arm(&self, by: &mut dyn FnMut(BorrowedFd<'_>)) {
        let mut state = self.state.lock();
        by(self.common.channel.as_fd());
        if let Phase::Connected(conn) = &mut state.phase {
            by(conn.completions.arm());
        }
    }

    fn stop_polling(&self) {
        match &self.state.lock().phase {
            Phase::Connected(conn) => conn.completions.cq.stop_polling(),
            _ => self.common.channel.stop_polling(),
        }
    }

    fn events(&self, link_polls: &mut LinkPolls) -> libc::c_short {
        if let Some(cq) = self.cq.get()
            && !link_polls.take(cq)
            && cq.is_quiet()
            && !self.common.channel.has_event()
        {
            return self.events.load(Ordering::Acquire);
        }
        self.with_state_after(link_polls, |state| state.events())
    }

    fn take_error(&self) -> Option<c_int> {
        self.with_state(|state| match &mut state.phase {
            Phase::Connected(conn) if conn.error.is_some() => conn.error.take(),
            _ => state.error.take(),
        })
    }

    fn begin_close(&self) -> Duration {
        self.update(|state| {
            let linger = state.options.linger.unwrap_or(LINGER);
            if let Phase::Connected(conn) = &mut state.phase
                && !linger.is_zero()
            {
                conn.shutdown(true, true);
            }
            linger
        })
    }

    fn close(self: Arc<Self>, deadline: Instant, on_progress: &dyn Fn()) {
        let flushed = |state: &mut State| match &state.phase {
            Phase::Connected(conn) if !conn.is_flushed() => None,
            _ => Some(Ok(())),
        };
        wait_for_close(deadline, on_progress, |call, timeout| {
            self.until(call, (true, timeout), &Cell::new(0), flushed)
        });
        let phase = self.update(|state| std::mem::replace(&mut state.phase, Phase::Closed));
        match phase {
            Phase::Idle(id) => id.destroy(),
            Phase::Listening(id, request) => {
                request.into_iter().for_each(|event| event.id.destroy());
                id.destroy();
            }
            _ => {}
        }
    }
}

impl Socket for Stream {
    fn options(&self) -> MappedMutexGuard<'_, Options> {
        MutexGuard::map(self.state.lock(), |state| &mut state.options)
    }

    fn bind(&self, to: SocketAddr) -> Result<(), c_int> {
        self.common.check_family(to)?;
        self.with_state(|state| {
            let Phase::Idle(id) = &state.phase else { return Err(libc::EINVAL) };
            state.prepare(id)?;
            id.bind_addr(to).map_err(errno)
        })
    }

    fn connect(self: Arc<Self>, call: &mut Call, to: Option<SocketAddr>) -> Result<(), c_int> {
        if !call.started {
            if !self.begin_to_connect(to.ok_or(libc::EAFNOSUPPORT)?)? {
                return Err(libc::EINPROGRESS);
            }
            call.started = true;
        }
        self.until(call, (true, None), &Cell::new(0), |state| match &state.phase {
            Phase::Connecting(_) => None,
            Phase::Connected(_) => Some(Ok(())),
            Phase::Closed => Some(Err(libc::EBADF)),
            _ => Some(Err(state.error.take().unwrap_or(libc::ECONNREFUSED))),
        })
    }

    fn shutdown(&self, (reads, writes): (bool, bool)) -> Result<(), c_int> {
        self.update(|state| match &mut state.phase {
            Phase::Connected(conn) => {
                conn.shutdown(reads, writes);
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

    fn local_addr(&self) -> Result<SocketAddr, c_int> {
        self.with_state(|state| match &state.phase {
            Phase::Idle(id) | Phase::Listening(id, _) => Ok(self.to_family(id.local_addr())),
            Phase::Connecting(conn) | Phase::Connected(conn) => Ok(self.to_family(conn.id.local_addr())),
            Phase::Failed => Ok(self.to_family(None)),
            Phase::Closed => Err(libc::EBADF),
        })
    }

    fn peer_addr(&self) -> Result<SocketAddr, c_int> {
        self.with_state(|state| match &state.phase {
            Phase::Connected(conn) => {
                conn.id.peer_addr().map(|peer| self.to_family(Some(peer))).ok_or(libc::ENOTCONN)
            }
            _ => Err(libc::ENOTCONN),
        })
    }

    fn receive(
        self: Arc<Self>,
        call: &mut Call,
        sink: &mut Sink<'_>,
        flags: c_int,
    ) -> Result<Received, c_int> {
        let bytes = self.receive_bytes(call, sink, flags)?;
        Ok(Received { bytes, ..Received::default() })
    }

    fn send(
        self: Arc<Self>,
        call: &mut Call,
        source: &mut Source<'_>,
        _to: &dyn Fn() -> Result<Option<SocketAddr>, c_int>,
        flags: c_int,
    ) -> Result<usize, c_int> {
        self.send_with(call, source, flags, |conn, source| {
            conn.send_from(source);
            Ok(())
        })
    }
}

impl State {
    /// Processes completions and events. Returns true if anything has changed.
    fn process(&mut self, channel: &EventChannel, link_polls: &mut LinkPolls) -> bool {
        let mut changed = match &mut self.phase {
            // Completions come first, because they are older than an event that ends the connection.
            Phase::Connected(conn) => conn.process(link_polls),
            _ => false,
        };
        while !self.has_request()
            && let Some(event) = channel.try_event()
        {
            self.on_event(event);
            changed = true;
        }
        changed
    }

    fn has_ended(&self) -> bool {
        matches!(&self.phase, Phase::Connected(conn) if conn.has_ended)
    }

    /// Reports whether a connection request is ready to be accepted. Further requests stay in the event
    /// channel and count against the backlog.
    fn has_request(&self) -> bool {
        matches!(&self.phase, Phase::Listening(_, request) if request.is_some())
    }

    /// Processes a connection manager event.
    fn on_event(&mut self, event: CmEvent) {
        match (&mut self.phase, event.kind) {
            (Phase::Listening(_, request), CmEventKind::ConnectRequest) => *request = Some(event),
            // The device of a bound listener was removed. A listener on the wildcard address continues with
            // the other devices.
            (Phase::Listening(..), CmEventKind::DeviceRemoval) if event.id.context().is_some() => {
                self.error = Some(libc::ENODEV);
                self.phase = Phase::Failed;
            }
            (Phase::Connecting(_), CmEventKind::Established) => self.on_established(&event),
            (Phase::Connecting(_), _) => {
                self.error = Some(match (event.kind, event.status) {
                    (CmEventKind::Rejected, _) => libc::ECONNREFUSED,
                    (CmEventKind::Unreachable, _) => libc::ETIMEDOUT,
                    (_, status @ ..0) => -status,
                    _ => libc::ECONNREFUSED,
                });
                self.phase = Phase::Failed;
            }
            (Phase::Connected(conn), CmEventKind::Established) => {
                conn.is_established = true;
                // Sends what could not be sent before, such as mappings.
                conn.process(&mut LinkPolls::All);
            }
            (Phase::Connected(_), CmEventKind::TimewaitExit | CmEventKind::AddrChange) => {}
            (Phase::Connected(conn), CmEventKind::Disconnected) => {
                // Data that the peer sent before it disconnected have arrived.
                conn.process(&mut LinkPolls::All);
                conn.disconnect();
            }
            (Phase::Connected(conn), _) => conn.fail(libc::ECONNRESET),
            _ => {}
        }
    }

    /// Completes a connection that the peer has accepted.
    fn on_established(&mut self, event: &CmEvent) {
        let Phase::Connecting(mut conn) = std::mem::replace(&mut self.phase, Phase::Failed) else { return };
        match ConnData::parse(event.private_data()) {
            Ok(peer) => {
                conn.start(&peer);
                conn.is_established = true;
                conn.process(&mut LinkPolls::All);
                self.phase = Phase::Connected(conn);
            }
            Err(_) => self.error = Some(libc::EPROTO),
        }
    }

    /// Sets an ID's traffic class and, before the ID is bound, the options that only take effect then.
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
            Phase::Connected(conn) => conn.keep_alive(idle, now),
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
            Phase::Connected(conn) => {
                when(conn.inc.unread > 0, read)
                    | when(!conn.can_read, read)
                    | when(conn.is_writable(), write)
                    | when(!conn.can_write, write)
                    // The end is reported only after all data have been read, because programs stop reading
                    // at these events.
                    | when(!conn.can_read && conn.inc.unread == 0, POLLRDHUP)
                    | when(!conn.can_read && !conn.can_write && conn.inc.unread == 0, POLLHUP)
                    | when(conn.error.is_some(), POLLERR)
            }
            Phase::Failed => read | write | POLLHUP | when(self.error.is_some(), POLLERR),
            Phase::Closed => POLLNVAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use urxe::verbs::{Context, Fabric};

    use super::*;
    use crate::call::PENDING;
    use crate::wait::{uncancellable, wait};

    /// A thread that waits for data must not sleep without the connection's completion channel.
    #[test]
    fn connection_established_in_the_last_look_before_the_sleep_wakes_the_thread_again() {
        let context = Context::on_fabric(&Fabric::new()).unwrap();
        let address = (context.address().unwrap(), 0).into();
        let manager = ConnectionManager::new(vec![context]).unwrap();
        let listener = Arc::new(Stream::new(&manager, libc::AF_INET6).unwrap());
        listener.bind(address).unwrap();
        listener.listen(1).unwrap();
        let time = Duration::from_secs(60);
        listener.options().receive_timeout = Some(time);
        let client = Arc::new(Stream::new(&manager, libc::AF_INET6).unwrap());
        client.options().is_nonblocking = true;
        let connected = client.clone().connect(&mut Call::default(), listener.local_addr().ok());
        assert_eq!(connected, Err(libc::EINPROGRESS));

        let mut call = Call::default();
        let deadline = Instant::now() + time;
        let mut accepted = None;
        let is_connected = |state: &mut State| matches!(state.phase, Phase::Connected(_));
        let sockets: [Arc<dyn Socket>; 1] = [client.clone()];
        let end = wait(&mut call, &sockets, &mut [], Some(deadline), |_| {
            // The client is armed once this thread is among its watchers.
            if !client.common.watchers.is_empty() {
                accepted = Some(uncancellable(|call| listener.accept(call)));
                while !client.with_state(is_connected) {
                    assert!(Instant::now() < deadline, "the connection is not established");
                    std::thread::yield_now();
                }
            }
            None::<()>
        });
        assert_eq!(end, Err(PENDING));
        let _accepted = accepted.expect("the last look has taken place").unwrap();
        call.wait();
        call.end();
        assert!(Instant::now() < deadline, "the thread slept although the socket had a new descriptor");
    }
}
