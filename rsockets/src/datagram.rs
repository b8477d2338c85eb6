//! Datagram sockets.
//!
//! A UDP socket holds the address and port, and beside it there is a UD queue pair for each local address
//! that datagrams are sent from. The first datagram to a peer is sent by UDP and names the sender's queue
//! pair; the peer's response names that of the peer, and all later datagrams are sent between the queue
//! pairs. There is no thread: each call processes what has arrived.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use urxe::verbs::cm::{ConnectionManager, PortSpace};

use crate::buffers::{Received, Sink, Source};
use crate::call::{Call, PENDING};
use crate::common::{Common, errno};
use crate::headers::{Header, MAX_HEADER_LEN, MAX_MESSAGE_LEN, Op, Resolution, source};
use crate::link_polls::LinkPolls;
use crate::options::Options;
use crate::peers::{Peers, Route, canonical, is_same};
use crate::socket::{Socket, Waitable};
use crate::ud_qp::{RecvDatagram, RecvSlot, UdQp};
use crate::udp::{UdpDatagram, UdpSocket};
use crate::wait::{PollOutcome, until, wait_for_close};

/// Maximum time for which a close waits until all datagrams are sent.
const LINGER: Duration = Duration::from_secs(5);
/// Maximum number of UDP datagrams processed per call.
const BATCH: usize = 64;
/// Memory accounted for a datagram received over UDP beyond its data, in bytes.
const OVERHEAD: usize = 64;
/// Time for which a call waits for room in the UDP socket's send buffer before it checks for other changes.
const UDP_FULL_WAIT: Duration = Duration::from_millis(10);
/// Maximum length of a message that peers send over UDP, including the header.
const MAX_UDP_LEN: usize = MAX_MESSAGE_LEN + MAX_HEADER_LEN;

/// A datagram socket.
pub(crate) struct Datagram {
    common: Common,
    udp: UdpSocket,
    state: Mutex<State>,
}

/// Mutable state of the socket.
#[derive(Default)]
struct State {
    options: Options,
    /// Local address of the UDP socket; `None` before it is bound.
    local: Option<SocketAddr>,
    /// Address of the connected peer. As everywhere in this struct except `local`, an IPv4-mapped IPv6
    /// address is stored as IPv4.
    peer: Option<SocketAddr>,
    can_read: bool,
    can_write: bool,
    is_closed: bool,
    /// Pending error, set when a device used by the socket is removed.
    error: Option<c_int>,
    qps: Vec<UdQp>,
    /// Known peers, which refer to their queue pairs by index in `qps`.
    peers: Peers,
    unread: VecDeque<(SocketAddr, Data)>,
    /// Memory occupied by unread datagrams received over UDP, in bytes.
    udp_bytes: usize,
}

/// Data of an unread datagram.
enum Data {
    /// In a receive buffer of the queue pair with the given index.
    InBuffer(usize, RecvSlot),
    Udp(Vec<u8>),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Data::InBuffer(_, slot) => slot.range.len(),
            Data::Udp(bytes) => bytes.len(),
        }
    }
}

/// Returns the address, or `None` if it is the wildcard.
fn specified(ip: IpAddr) -> Option<IpAddr> {
    Some(ip.to_canonical()).filter(|ip| !ip.is_unspecified())
}

impl Datagram {
    /// Creates an unbound socket, which the file descriptor of its UDP socket identifies.
    ///
    /// # Errors
    /// An error number.
    pub(crate) fn new(manager: &ConnectionManager, family: c_int) -> Result<Datagram, c_int> {
        let state = State { can_read: true, can_write: true, ..State::default() };
        let udp = UdpSocket::new(family == libc::AF_INET6)?;
        let common = Common::new(manager, family, libc::SOCK_DGRAM)?;
        let common = Common { fd: udp.as_fd().as_raw_fd(), ..common };
        Ok(Datagram { common, udp, state: Mutex::new(state) })
    }

    /// Processes completions and UDP datagrams, then calls `f` with the state.
    fn with_state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let changed = state.process(self);
        let result = f(&mut state);
        drop(state);
        if changed {
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
    /// which the call is attempted again. Fails with `EBADF` once the socket is closed.
    fn until<T>(
        self: &Arc<Self>,
        call: &mut Call,
        wait: (bool, Option<Duration>),
        mut f: impl FnMut(&mut State) -> PollOutcome<T>,
    ) -> Result<T, c_int> {
        until(call, self, wait, &Cell::new(0), || {
            self.with_state(|state| match state.is_closed {
                true => Some(Err(libc::EBADF)),
                false => f(state),
            })
        })
    }
}

impl Waitable for Datagram {
    fn common(&self) -> &Common {
        &self.common
    }

    fn arm(&self, by: &mut dyn FnMut(BorrowedFd<'_>)) {
        let mut state = self.state.lock();
        by(self.udp.as_fd());
        for qp in state.qps.iter_mut().filter(|qp| !qp.has_failed) {
            by(qp.completions.arm());
        }
    }

    fn stop_polling(&self) {
        self.state.lock().qps.iter().for_each(|qp| qp.completions.cq.stop_polling());
    }

    fn events(&self, _link_polls: &mut LinkPolls) -> libc::c_short {
        self.with_state(|state| state.events())
    }

    fn take_error(&self) -> Option<c_int> {
        self.with_state(|state| state.error.take())
    }

    fn begin_close(&self) -> Duration {
        self.with_state(|state| state.options.linger.unwrap_or(LINGER).min(LINGER))
    }

    fn close(self: Arc<Self>, deadline: Instant, on_progress: &dyn Fn()) {
        let flushed = |state: &mut State| state.qps.iter().all(UdQp::is_flushed).then_some(Ok(()));
        wait_for_close(deadline, on_progress, |call, timeout| self.until(call, (true, timeout), flushed));
        self.update(|state| {
            state.is_closed = true;
            state.unread.clear();
            std::mem::take(&mut state.peers);
            std::mem::take(&mut state.qps)
        });
    }
}

impl Socket for Datagram {
    fn options(&self) -> MappedMutexGuard<'_, Options> {
        MutexGuard::map(self.state.lock(), |state| &mut state.options)
    }

    fn bind(&self, to: SocketAddr) -> Result<(), c_int> {
        self.common.check_family(to)?;
        self.update(|state| {
            if state.local.is_some() {
                return Err(libc::EINVAL);
            }
            // An address that no device has cannot be used for RDMA.
            if let Some(ip) = specified(to.ip()) {
                let id = self.common.create_id(PortSpace::Udp)?;
                let bound = id.bind_addr((ip, 0).into());
                id.destroy();
                bound.map_err(errno)?;
            }
            state.bind_udp(self, to)
        })
    }

    /// Connects the socket, so that it exchanges datagrams with the peer `to` only, or disconnects it if `to`
    /// is `None`.
    fn connect(self: Arc<Self>, _call: &mut Call, to: Option<SocketAddr>) -> Result<(), c_int> {
        let Some(to) = to else {
            self.update(|state| state.peer = None);
            return Ok(());
        };
        self.common.check_family(to)?;
        self.update(|state| {
            let mut to = canonical(to);
            if to.ip().is_unspecified() {
                // As with UDP, the wildcard means the program's own address. Responses have that source
                // address.
                let bound = state.local.and_then(|local| specified(local.ip()));
                to = Route::resolve(&self.common, bound, to)?.peer;
            }
            state.qp_index_for(&self, to, None)?;
            state.peer = Some(to);
            Ok(())
        })
    }

    fn shutdown(&self, (reads, writes): (bool, bool)) -> Result<(), c_int> {
        self.update(|state| {
            state.can_read &= !reads;
            state.can_write &= !writes;
            state.peer.map(|_| ()).ok_or(libc::ENOTCONN)
        })
    }

    fn local_addr(&self) -> Result<SocketAddr, c_int> {
        let local = self.udp.local_addr()?;
        let from = self.with_state(|state| state.peers.qp_index(state.peer?).map(|at| state.qps[at].local));
        match (specified(local.ip()), from) {
            // As with UDP, a connected socket reports the address that it sends from.
            (None, Some(ip)) => Ok(self.common.to_family((ip, local.port()).into())),
            _ => Ok(local),
        }
    }

    fn peer_addr(&self) -> Result<SocketAddr, c_int> {
        self.with_state(|state| state.peer).map(|peer| self.common.to_family(peer)).ok_or(libc::ENOTCONN)
    }

    fn receive(
        self: Arc<Self>,
        call: &mut Call,
        sink: &mut Sink<'_>,
        flags: c_int,
    ) -> Result<Received, c_int> {
        let wait = self.options().receive_wait(flags);
        self.until(call, wait, |state| {
            let taken = state.recv_next(sink, flags);
            if taken.is_none()
                && let Some(errno) = state.error.take()
            {
                return Some(Err(errno));
            }
            let mut received = taken.or_else(|| (!state.can_read).then(Received::default))?;
            received.from = received.from.map(|from| self.common.to_family(from));
            Some(Ok(received))
        })
    }

    fn send(
        self: Arc<Self>,
        call: &mut Call,
        source: &mut Source<'_>,
        to: &dyn Fn() -> Result<Option<SocketAddr>, c_int>,
        flags: c_int,
    ) -> Result<usize, c_int> {
        let to = to()?;
        to.map_or(Ok(()), |to| self.common.check_family(to))?;
        let (may_block, timeout) = self.options().send_wait(flags);
        let deadline = call.deadline(timeout);
        let sent = self.until(call, (may_block, timeout), |state| {
            let Some(to) = to.map(canonical).or(state.peer) else {
                return Some(Err(libc::EDESTADDRREQ));
            };
            state.send(&self, source, to).transpose()
        });
        let remaining =
            deadline.map_or(UDP_FULL_WAIT, |deadline| deadline.saturating_duration_since(Instant::now()));
        match sent {
            // Before the deadline, only the send buffer of the UDP socket can be the reason. The wait is
            // short, because during it the thread is not among the watchers, so no other change wakes it.
            Err(libc::EAGAIN) if may_block && !remaining.is_zero() => {
                call.wait_for(self.common.fd, libc::POLLOUT, Some(remaining.min(UDP_FULL_WAIT)));
                Err(PENDING)
            }
            sent => sent,
        }
    }
}

impl State {
    /// Binds the UDP socket.
    fn bind_udp(&mut self, socket: &Datagram, to: SocketAddr) -> Result<(), c_int> {
        socket.udp.bind(to, self.options.reuses_address, self.options.only_v6)?;
        self.local = Some(socket.udp.local_addr()?);
        Ok(())
    }

    /// Returns the index of the queue pair that sends to a peer, creating the queue pair and the table entry
    /// if needed. `from` is the local address to send from, if known.
    fn qp_index_for(
        &mut self,
        socket: &Datagram,
        to: SocketAddr,
        from: Option<IpAddr>,
    ) -> Result<usize, c_int> {
        if to.ip().is_multicast() || to.port() == 0 {
            return Err(libc::EINVAL);
        }
        if self.local.is_none() {
            self.bind_udp(socket, socket.common.wildcard())?;
        }
        if let Some(at) = self.peers.qp_index(to) {
            return Ok(at);
        }
        let bound = self.local.and_then(|local| specified(local.ip()));
        let route = |from| Route::resolve(&socket.common, from, to);
        // The address that a peer has sent to may be one that no device has.
        let route = from.and_then(|ip| route(Some(ip)).ok()).map_or_else(|| route(bound), Ok)?;
        let local = bound.unwrap_or(route.local);
        let at = match self.qps.iter().position(|qp| qp.local == local && !qp.has_failed) {
            Some(at) => at,
            None => {
                let qp = UdQp::new(&route.context, local, route.mtu, &self.options.sizes)?;
                // Threads that wait already do not poll the new queue pair.
                socket.common.watchers.wake();
                self.insert_qp(qp)
            }
        };
        let traffic_class = self.options.traffic_class.unwrap_or(0);
        let to_peer = route.to.traffic_class(traffic_class);
        let path = self.qps[at].qp.pd().create_ah(&to_peer).map_err(|e| e.errno())?;
        self.peers.add(to, at, path);
        Ok(at)
    }

    /// Stores a queue pair and returns its index. Replaces a queue pair whose device was removed, if there is
    /// one without unread data in its buffers.
    fn insert_qp(&mut self, qp: UdQp) -> usize {
        let has_unread =
            |at| self.unread.iter().any(|(_, data)| matches!(data, Data::InBuffer(of, _) if *of == at));
        match (0..self.qps.len()).find(|at| self.qps[*at].has_failed && !has_unread(*at)) {
            Some(at) => {
                self.peers.remove_of_qp(at);
                self.qps[at] = qp;
                at
            }
            None => {
                self.qps.push(qp);
                self.qps.len() - 1
            }
        }
    }

    /// Sends a datagram. Returns its length, or `None` if the queue pair's send queue is full. The source is
    /// advanced only if the entire datagram is sent.
    ///
    /// # Errors
    /// An error number; `EAGAIN` if the datagram must be sent over UDP, and the UDP socket's send buffer is
    /// full.
    fn send(
        &mut self,
        socket: &Datagram,
        data: &mut Source<'_>,
        to: SocketAddr,
    ) -> Result<Option<usize>, c_int> {
        if !self.can_write {
            return Err(libc::EPIPE);
        }
        // A host without a free port reports `EAGAIN` too, which is no full send buffer.
        let no_port = |errno| if errno == libc::EAGAIN { libc::EADDRNOTAVAIL } else { errno };
        let at = self.qp_index_for(socket, to, None).map_err(no_port)?;
        let qp = &mut self.qps[at];
        let port = self.local.map_or(0, |local| local.port());
        let (header, len) = (source((qp.local, port).into()), data.remaining());
        if len > qp.max_data_len(&header) {
            return Err(libc::EMSGSIZE);
        }
        match self.peers.direct(to, Instant::now()) {
            Some(direct) => Ok(qp.send(direct, &header, data)?.then_some(len)),
            None => {
                let header = self.header(at, Op::Data);
                let mut parts = vec![IoSlice::new(header.bytes())];
                let mut rest = data.clone();
                rest.take(0..len, |_, piece| parts.push(IoSlice::new(piece)));
                self.send_udp(socket, &parts, to, at)?;
                *data = rest;
                Ok(Some(len))
            }
        }
    }

    /// Returns the header of a UDP message that announces the queue pair with index `at`.
    fn header(&self, at: usize, op: Op) -> Header {
        Resolution { op, qpn: self.qps[at].qp.qpn() }.header(self.qps[at].local)
    }

    /// Sends a message over UDP, from the queue pair's address unless the socket is bound to a specific
    /// address.
    fn send_udp(
        &self,
        socket: &Datagram,
        parts: &[IoSlice<'_>],
        to: SocketAddr,
        at: usize,
    ) -> Result<(), c_int> {
        let is_bound = self.local.is_some_and(|local| specified(local.ip()).is_some());
        let from = (!is_bound).then(|| self.qps[at].local);
        socket.udp.send(parts, socket.common.to_family(to), from)
    }

    /// Processes completions and UDP datagrams. Returns true if anything has changed.
    fn process(&mut self, socket: &Datagram) -> bool {
        let mut changed = false;
        if self.is_closed {
            return false;
        }
        // UDP comes before the queue pairs, because datagrams received over UDP are older.
        let mut buffer = [0; MAX_UDP_LEN];
        for _ in 0..BATCH {
            let Some(arrived) = socket.udp.receive(&mut buffer) else { break };
            let Some(arrived) = arrived else { continue };
            changed = true;
            self.on_udp_datagram(socket, &buffer[..arrived.len], &arrived);
        }
        let (peer, now) = (self.peer, Instant::now());
        for (at, qp) in self.qps.iter_mut().enumerate() {
            let (peers, unread) = (&mut self.peers, &mut self.unread);
            changed |= qp.process(|qp, RecvDatagram { from, qpn, slot }| {
                let from = peers.on_recv(from, qpn, now);
                match peer.is_none_or(|peer| is_same(peer, from)) {
                    true => unread.push_back((from, Data::InBuffer(at, slot))),
                    false => qp.post_recv(slot.index),
                }
            });
            if qp.take_failure() {
                changed = true;
                self.error = Some(libc::ENETDOWN);
                // The peers are resolved again, through a device that still exists.
                self.peers.remove_of_qp(at);
            }
        }
        changed
    }

    /// Processes a datagram received over UDP. Messages of other protocols are dropped.
    fn on_udp_datagram(&mut self, socket: &Datagram, bytes: &[u8], arrived: &UdpDatagram) {
        let from = canonical(arrived.from);
        let Ok((Resolution { op, qpn }, data)) = Resolution::parse(bytes) else { return };
        if op == Op::Control {
            return self.peers.set_qpn(from, qpn, Instant::now());
        }
        // A datagram without a route to its source is received, but no response is sent.
        if let Ok(at) = self.qp_index_for(socket, from, arrived.to.and_then(specified)) {
            self.peers.set_qpn(from, qpn, Instant::now());
            let header = self.header(at, Op::Control);
            // A lost response needs no retransmission: the peer's next datagram by UDP requests another.
            let _ = self.send_udp(socket, &[IoSlice::new(header.bytes())], from, at);
        }
        let fits = self.udp_bytes + OVERHEAD + data.len() <= 2 * self.options.sizes.receive_half;
        if fits && self.peer.is_none_or(|peer| is_same(peer, from)) {
            self.udp_bytes += OVERHEAD + data.len();
            self.unread.push_back((from, Data::Udp(data.to_vec())));
        }
    }

    /// Copies the next datagram, and removes it from the queue unless `MSG_PEEK` is set.
    fn recv_next(&mut self, sink: &mut Sink<'_>, flags: c_int) -> Option<Received> {
        let (from, data) = self.unread.front()?;
        let (len, from) = (data.len(), *from);
        let at = sink.take(0..len, |at, piece| match data {
            Data::InBuffer(qp, slot) => self.qps[*qp].read(slot, at, piece),
            Data::Udp(bytes) => piece.copy_from_slice(&bytes[at..at + piece.len()]),
        });
        if flags & libc::MSG_PEEK == 0 {
            match self.unread.pop_front() {
                Some((_, Data::InBuffer(qp, slot))) => self.qps[qp].post_recv(slot.index),
                Some((_, Data::Udp(bytes))) => self.udp_bytes -= OVERHEAD + bytes.len(),
                None => {}
            }
        }
        let bytes = if flags & libc::MSG_TRUNC != 0 { len } else { at };
        Some(Received { bytes, from: Some(from), is_truncated: at < len })
    }

    fn events(&self) -> libc::c_short {
        use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM};
        let when = |is: bool, events: libc::c_short| if is { events } else { 0 };
        if self.is_closed {
            return POLLNVAL;
        }
        when(!self.unread.is_empty() || !self.can_read, POLLIN | POLLRDNORM)
            | when(self.qps.iter().all(UdQp::is_writable), POLLOUT | POLLWRNORM)
            | when(self.error.is_some(), POLLERR)
            | when(!self.can_read, POLLRDHUP)
            | when(!self.can_read && !self.can_write, POLLHUP)
    }
}
