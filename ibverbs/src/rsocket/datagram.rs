//! Datagram sockets.
//!
//! A UDP socket holds the address and port, and beside it there is a UD queue pair for each local address
//! that datagrams are sent from. The first datagram to a peer goes by UDP and names the sender's queue pair;
//! the peer's answer names the peer's, and from then on datagrams go between the queue pairs. There is no
//! thread: each call processes what has arrived.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use urxe::verbs::cm::{EventChannel, PortSpace};

use super::buffers::{Sink, Source};
use super::headers::{Header, LONGEST, MOST, Op, Resolution, source};
use super::options::Options;
use super::pair::{Came, Pair, Place};
use super::peers::{Peers, Way, canonical, is_same};
use super::socket::{Received, Socket};
use super::stream::errno;
use super::udp::{Arrived, Udp};
use super::wait::{Looked, NOT_YET, Watchers, raw, restarts, undisturbed, until};
use crate::cancel::Call;
use crate::cm::process::Process;

/// Time that closing waits at most until all sent datagrams have left.
const LINGER: Duration = Duration::from_secs(5);
/// Number of datagrams that are received by UDP at a time.
const BATCH: usize = 64;
/// Memory accounted for a datagram received by UDP in addition to its data, in bytes.
const OVERHEAD: usize = 64;
/// Time that a call waits for room in the UDP socket before it checks for other changes.
const FULL: Duration = Duration::from_millis(10);
/// Length of the longest message that peers send by UDP, with its header.
const BY_UDP: usize = LONGEST + MOST;

/// A datagram socket.
pub struct Datagram {
    process: &'static Process,
    /// `AF_INET` or `AF_INET6`.
    family: c_int,
    /// The UDP socket, whose file descriptor identifies the rsocket to the program.
    udp: Udp,
    /// Event channel of the connection manager IDs that resolve routes.
    channel: EventChannel,
    pub watchers: Watchers,
    state: Mutex<State>,
}

/// Mutable state of the socket.
pub struct State {
    pub options: Options,
    /// Local address, as the UDP socket reports it; `None` before it is bound.
    local: Option<SocketAddr>,
    /// Address of the connected peer. Like all addresses in this struct except `local`, it is IPv4 if it can
    /// be.
    peer: Option<SocketAddr>,
    can_read: bool,
    can_write: bool,
    is_closed: bool,
    /// Pending error: a device that the socket used is gone.
    error: Option<c_int>,
    pairs: Vec<Pair>,
    /// UD queue pairs, by local address. Other fields refer to them by index.
    peers: Peers,
    unread: VecDeque<(SocketAddr, Data)>,
    /// Memory taken by the unread datagrams that came by UDP, in bytes.
    held: usize,
}

/// Outcome of sending a datagram.
enum Sent {
    /// Sent, with this number of bytes.
    All(usize),
    /// Not sent: the datagram has to go by UDP, whose send buffer is full.
    UdpIsFull,
}

/// Data of an unread datagram.
enum Data {
    /// In a receive buffer of the queue pair with this index.
    InPlace(usize, Place),
    ByUdp(Vec<u8>),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Data::InPlace(_, place) => place.len(),
            Data::ByUdp(bytes) => bytes.len(),
        }
    }
}

/// Returns the address, or `None` if it is the wildcard.
fn specified(ip: IpAddr) -> Option<IpAddr> {
    Some(ip.to_canonical()).filter(|ip| !ip.is_unspecified())
}

impl Datagram {
    /// Creates an unbound socket.
    ///
    /// # Errors
    /// An error number.
    pub fn new(family: c_int) -> Result<Datagram, c_int> {
        let process = Process::this()?;
        let channel = EventChannel::new().map_err(|e| e.raw_os_error().unwrap_or(libc::EMFILE))?;
        let state = State {
            options: Options::default(),
            local: None,
            peer: None,
            can_read: true,
            can_write: true,
            is_closed: false,
            error: None,
            pairs: Vec::new(),
            peers: Peers::default(),
            unread: VecDeque::new(),
            held: 0,
        };
        let (udp, watchers) = (Udp::new(family == libc::AF_INET6)?, Watchers::default());
        Ok(Datagram { process, family, udp, channel, watchers, state: Mutex::new(state) })
    }

    /// Returns the file descriptor that identifies the socket.
    pub fn fd(&self) -> c_int {
        raw(&self.udp)
    }

    pub fn family(&self) -> c_int {
        self.family
    }

    /// See [`Stream::is_inherited`](super::stream::Stream::is_inherited).
    pub fn is_inherited(&self) -> bool {
        self.process.is_inherited()
    }

    /// Processes what has arrived, then calls `f` with the state.
    pub fn look<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let changed = state.turn(self);
        let result = f(&mut state);
        drop(state);
        if changed {
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
        by(self.udp.as_fd());
        for pair in state.pairs.iter_mut().filter(|pair| !pair.is_over()) {
            pair.arm();
            by(pair.completions.as_fd());
        }
    }

    /// Calls `f` until it has a result, for a call that may block; fails with `EBADF` once the socket is
    /// closed.
    fn until<T>(
        self: &Arc<Self>,
        call: &mut Call,
        waits: bool,
        timeout: Option<Duration>,
        mut f: impl FnMut(&mut State) -> Looked<T>,
    ) -> Result<T, c_int> {
        let mut look = || {
            self.look(|state| match state.is_closed {
                true => Some(Err(libc::EBADF)),
                false => f(state),
            })
        };
        loop {
            let result = until(call, || Socket::Datagram(self.clone()), waits, timeout, &mut look);
            if !restarts(&result, timeout, 0) {
                return result;
            }
        }
    }

    fn check_family(&self, address: SocketAddr) -> Result<(), c_int> {
        let is_v6 = self.family == libc::AF_INET6;
        if address.is_ipv6() == is_v6 { Ok(()) } else { Err(libc::EAFNOSUPPORT) }
    }

    pub fn bind(&self, to: SocketAddr) -> Result<(), c_int> {
        self.check_family(to)?;
        self.change(|state| {
            if state.local.is_some() {
                return Err(libc::EINVAL);
            }
            // An address that no device has cannot be used for RDMA.
            if let Some(ip) = specified(to.ip()) {
                let id = self.process.manager.create_id(&self.channel, PortSpace::Udp).map_err(errno)?;
                let bound = id.bind_addr((ip, 0).into());
                id.destroy();
                bound.map_err(errno)?;
            }
            state.name(self, to)
        })
    }

    /// Connects to a peer, so that datagrams are exchanged with it only, or disconnects.
    pub fn connect(&self, to: Option<SocketAddr>) -> Result<(), c_int> {
        let Some(to) = to else {
            self.change(|state| state.peer = None);
            return Ok(());
        };
        self.check_family(to)?;
        self.change(|state| {
            let mut to = canonical(to);
            if to.ip().is_unspecified() {
                // As with UDP, the wildcard means the program's own address. Answers come from that one.
                let bound = state.local.and_then(|local| specified(local.ip()));
                to = Way::find(self.process, &self.channel, bound, to)?.peer;
            }
            state.find(self, to, None)?;
            state.peer = Some(to);
            Ok(())
        })
    }

    pub fn shutdown(&self, how: c_int) -> Result<(), c_int> {
        let (reads, writes) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(libc::EINVAL),
        };
        self.change(|state| {
            state.can_read &= !reads;
            state.can_write &= !writes;
            state.peer.map(|_| ()).ok_or(libc::ENOTCONN)
        })
    }

    /// Returns the time that closing may wait until all sent datagrams have left.
    pub fn conclude(&self) -> Duration {
        self.look(|state| state.options.linger.unwrap_or(LINGER).min(LINGER))
    }

    /// See [`Stream::close`](super::stream::Stream::close).
    pub fn close(self: &Arc<Self>, deadline: Instant, mut patience: impl FnMut()) {
        while Instant::now() < deadline {
            patience();
            let flushed = |state: &mut State| state.pairs.iter().all(Pair::is_flushed).then_some(Ok(()));
            let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(50));
            match undisturbed(|call| self.until(call, true, Some(left), flushed)) {
                Err(libc::EAGAIN | libc::EINTR) => {}
                _ => break,
            }
        }
        self.change(|state| {
            state.is_closed = true;
            state.unread.clear();
            std::mem::take(&mut state.peers);
            std::mem::take(&mut state.pairs)
        });
    }

    /// Converts an address to the form of the socket's address family.
    fn shown(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(v4) if self.family == libc::AF_INET6 => {
                (v4.ip().to_ipv6_mapped(), v4.port()).into()
            }
            other => other,
        }
    }

    pub fn local_addr(&self) -> Result<SocketAddr, c_int> {
        let local = self.udp.local_addr()?;
        let from = self.look(|state| state.peers.way(state.peer?).map(|at| state.pairs[at].local));
        match (specified(local.ip()), from) {
            // As with UDP, a connected socket reports the address that it sends from.
            (None, Some(ip)) => Ok(self.shown((ip, local.port()).into())),
            _ => Ok(local),
        }
    }

    pub fn peer_addr(&self) -> Result<SocketAddr, c_int> {
        self.look(|state| state.peer).map(|peer| self.shown(peer)).ok_or(libc::ENOTCONN)
    }

    /// Returns the current `poll` events of the socket.
    pub fn events(&self) -> libc::c_short {
        self.look(|state| state.events())
    }

    /// Receives the next datagram, cut to the size of the sink.
    pub fn receive(
        self: &Arc<Self>,
        call: &mut Call,
        sink: &mut Sink<'_>,
        flags: c_int,
    ) -> Result<Received, c_int> {
        if flags & libc::MSG_OOB != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let (waits, timeout) = self.look(|state| (state.options.waits(flags), state.options.receive_timeout));
        self.until(call, waits, timeout, |state| {
            let taken = state.take(sink, flags);
            if taken.is_none()
                && let Some(why) = state.take_error()
            {
                return Some(Err(why));
            }
            let mut received = taken.or_else(|| (!state.can_read).then(Received::default))?;
            received.from = received.from.map(|from| self.shown(from));
            Some(Ok(received))
        })
    }

    /// Sends a datagram to an address, or to the connected peer if none is given.
    pub fn send(
        self: &Arc<Self>,
        call: &mut Call,
        source: &mut Source<'_>,
        to: Option<SocketAddr>,
        flags: c_int,
    ) -> Result<usize, c_int> {
        if flags & libc::MSG_OOB != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        to.map_or(Ok(()), |to| self.check_family(to))?;
        let (waits, timeout) = self.look(|state| (state.options.waits(flags), state.options.send_timeout));
        let deadline = call.deadline(timeout);
        let sent = self.until(call, waits, timeout, |state| {
            let Some(to) = to.map(canonical).or(state.peer) else {
                return Some(Err(libc::EDESTADDRREQ));
            };
            state.send(self, source, to).transpose()
        })?;
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match sent {
            Sent::All(len) => Ok(len),
            Sent::UdpIsFull if !waits || left.is_some_and(|left| left.is_zero()) => Err(libc::EAGAIN),
            // The wait is short, because during it the thread is not among the watchers, so no other change
            // wakes it.
            Sent::UdpIsFull => {
                call.wait_for(self.fd(), libc::POLLOUT, Some(left.unwrap_or(FULL).min(FULL)));
                Err(NOT_YET)
            }
        }
    }
}

impl State {
    /// Binds the UDP socket.
    fn name(&mut self, socket: &Datagram, to: SocketAddr) -> Result<(), c_int> {
        socket.udp.bind(to, self.options.reuses_address, self.options.only_v6)?;
        self.local = Some(socket.udp.local_addr()?);
        Ok(())
    }

    /// Returns the index of the queue pair that sends to a peer, after creating the queue pair and the table
    /// entry if needed. `from` is the local address to send from, if it is known.
    fn find(&mut self, socket: &Datagram, to: SocketAddr, from: Option<IpAddr>) -> Result<usize, c_int> {
        if to.ip().is_multicast() || to.port() == 0 {
            return Err(libc::EINVAL);
        }
        if self.local.is_none() {
            let any = match socket.family {
                libc::AF_INET6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
                _ => Ipv4Addr::UNSPECIFIED.into(),
            };
            self.name(socket, (any, 0).into())?;
        }
        if let Some(at) = self.peers.way(to) {
            return Ok(at);
        }
        let bound = self.local.and_then(|local| specified(local.ip()));
        let way = |from| Way::find(socket.process, &socket.channel, from, to);
        // The address that a peer has sent to may be one that no device has.
        let way = from.and_then(|ip| way(Some(ip)).ok()).map_or_else(|| way(bound), Ok)?;
        let local = bound.unwrap_or(way.local);
        let at = match self.pairs.iter().position(|pair| pair.local == local && !pair.is_over()) {
            Some(at) => at,
            None => {
                let pair = Pair::new(&way.context, local, way.mtu, &self.options.sizes)?;
                // Threads that wait already do not poll the new queue pair.
                socket.watchers.wake();
                self.put(pair)
            }
        };
        let traffic_class = self.options.traffic_class.unwrap_or(0);
        let path = self.pairs[at].path(&urxe::transport::AddressVector { traffic_class, ..way.to })?;
        self.peers.add(to, at, path);
        Ok(at)
    }

    /// Stores a queue pair and returns its index. It replaces one whose device is gone, if no unread data are
    /// in the buffers of that one.
    fn put(&mut self, pair: Pair) -> usize {
        let is_read =
            |at| self.unread.iter().any(|(_, data)| matches!(data, Data::InPlace(of, _) if *of == at));
        match (0..self.pairs.len()).find(|at| self.pairs[*at].is_over() && !is_read(*at)) {
            Some(at) => {
                self.peers.forget(at);
                self.pairs[at] = pair;
                at
            }
            None => {
                self.pairs.push(pair);
                self.pairs.len() - 1
            }
        }
    }

    /// Takes the pending error (`SO_ERROR`).
    pub fn take_error(&mut self) -> Option<c_int> {
        self.error.take()
    }

    /// Sends a datagram; `None` if the send queue of the queue pair is full. The source is advanced only if
    /// all of it is sent.
    fn send(
        &mut self,
        socket: &Datagram,
        data: &mut Source<'_>,
        to: SocketAddr,
    ) -> Result<Option<Sent>, c_int> {
        if !self.can_write {
            return Err(libc::EPIPE);
        }
        let at = self.find(socket, to, None)?;
        let pair = &mut self.pairs[at];
        let port = self.local.map_or(0, |local| local.port());
        let (header, len) = (source((pair.local, port).into()), data.left());
        if len > pair.room(&header) {
            return Err(libc::EMSGSIZE);
        }
        match self.peers.direct(to, Instant::now()) {
            Some(direct) => Ok(pair.send(direct, &header, data)?.then_some(Sent::All(len))),
            None => {
                let header = self.header(at, Op::Data);
                let mut parts = vec![IoSlice::new(header.bytes())];
                let mut rest = data.clone();
                while rest.left() > 0 {
                    parts.push(IoSlice::new(rest.take(usize::MAX)));
                }
                match self.by_udp(socket, &parts, to, at) {
                    Ok(()) => {
                        *data = rest;
                        Ok(Some(Sent::All(len)))
                    }
                    Err(libc::EAGAIN) => Ok(Some(Sent::UdpIsFull)),
                    Err(e) => Err(e),
                }
            }
        }
    }

    /// Returns the header of a message by UDP that announces the queue pair with this index.
    fn header(&self, at: usize, op: Op) -> Header {
        Resolution { op, qpn: self.pairs[at].qpn() }.header(self.pairs[at].local)
    }

    /// Sends by UDP, from the address of the queue pair unless the socket is bound to a specific address.
    fn by_udp(
        &self,
        socket: &Datagram,
        parts: &[IoSlice<'_>],
        to: SocketAddr,
        at: usize,
    ) -> Result<(), c_int> {
        let is_bound = self.local.is_some_and(|local| specified(local.ip()).is_some());
        let from = (!is_bound).then(|| self.pairs[at].local);
        socket.udp.send(parts, socket.shown(to), from)
    }

    /// Processes what has arrived; reports whether anything has changed.
    fn turn(&mut self, socket: &Datagram) -> bool {
        let mut changed = false;
        if self.is_closed {
            return false;
        }
        // UDP comes before the queue pairs, because datagrams that came by UDP are older.
        let mut room = [0; BY_UDP];
        for _ in 0..BATCH {
            let Some(arrived) = socket.udp.receive(&mut room) else { break };
            let Some(arrived) = arrived else { continue };
            changed = true;
            self.heed(socket, &room[..arrived.len], &arrived);
        }
        let (peer, now) = (self.peer, Instant::now());
        for (at, pair) in self.pairs.iter_mut().enumerate() {
            let (peers, unread) = (&mut self.peers, &mut self.unread);
            changed |= pair.turn(|pair, Came { from, qpn, place }| {
                let from = peers.heard(from, qpn, now);
                match peer.is_none_or(|peer| is_same(peer, from)) {
                    true => unread.push_back((from, Data::InPlace(at, place))),
                    false => pair.give_back(&place),
                }
            });
            if pair.ends() {
                changed = true;
                self.error = Some(libc::ENETDOWN);
                // The peers are resolved again, through a device that still exists.
                self.peers.forget(at);
            }
        }
        changed
    }

    /// Processes a datagram received by UDP. Messages that are not of the protocol are dropped.
    fn heed(&mut self, socket: &Datagram, bytes: &[u8], arrived: &Arrived) {
        let from = canonical(arrived.from);
        let Ok((Resolution { op, qpn }, data)) = Resolution::parse(bytes) else { return };
        if op == Op::Control {
            return self.peers.resolved(from, qpn, Instant::now());
        }
        // Without a route back the datagram is received all the same, but not answered.
        if let Ok(at) = self.find(socket, from, arrived.to.and_then(specified)) {
            self.peers.resolved(from, qpn, Instant::now());
            let header = self.header(at, Op::Control);
            // A lost answer needs no retransmission: the peer's next datagram by UDP requests another.
            let _ = self.by_udp(socket, &[IoSlice::new(header.bytes())], from, at);
        }
        let fits = self.held + OVERHEAD + data.len() <= 2 * self.options.sizes.receive_half;
        if fits && self.peer.is_none_or(|peer| is_same(peer, from)) {
            self.held += OVERHEAD + data.len();
            self.unread.push_back((from, Data::ByUdp(data.to_vec())));
        }
    }

    /// Copies the next datagram, and removes it from the queue unless `MSG_PEEK` is set.
    fn take(&mut self, sink: &mut Sink<'_>, flags: c_int) -> Option<Received> {
        let (from, data) = self.unread.front()?;
        let (len, from) = (data.len(), *from);
        let mut at = 0;
        while at < len && sink.left() > 0 {
            let piece = sink.take(len - at);
            match data {
                Data::InPlace(pair, place) => self.pairs[*pair].read(place, at, piece),
                Data::ByUdp(bytes) => piece.copy_from_slice(&bytes[at..at + piece.len()]),
            }
            at += piece.len();
        }
        if flags & libc::MSG_PEEK == 0 {
            match self.unread.pop_front() {
                Some((_, Data::InPlace(pair, place))) => self.pairs[pair].give_back(&place),
                Some((_, Data::ByUdp(bytes))) => self.held -= OVERHEAD + bytes.len(),
                None => {}
            }
        }
        let bytes = if flags & libc::MSG_TRUNC != 0 { len } else { at };
        Some(Received { bytes, from: Some(from), is_cut: at < len })
    }

    fn events(&self) -> libc::c_short {
        use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM};
        let when = |is: bool, events: libc::c_short| if is { events } else { 0 };
        if self.is_closed {
            return POLLNVAL;
        }
        when(!self.unread.is_empty() || !self.can_read, POLLIN | POLLRDNORM)
            | when(self.pairs.iter().all(Pair::is_writable), POLLOUT | POLLWRNORM)
            | when(self.error.is_some(), POLLERR)
            | when(!self.can_read, POLLRDHUP)
            | when(!self.can_read && !self.can_write, POLLHUP)
    }
}
