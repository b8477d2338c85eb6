//! Datagram sockets: what calls on them do.
//!
//! A UDP socket has the address and port, and UD queue pairs are beside it, one at each address that it sends from. What is the
//! first for a peer goes by UDP, with the number of the queue pair; the peer's answer has the number of its own, and from then
//! on datagrams go from one to the other. There is no thread: who calls looks at what came.

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

/// How long closing waits for what was sent to leave.
const LINGER: Duration = Duration::from_secs(5);
/// Datagrams by UDP that are looked at together.
const BATCH: usize = 64;
/// What a datagram that came by UDP takes besides its data.
const OVERHEAD: usize = 64;
/// How long is waited for room in the UDP socket before others' changes are looked at.
const FULL: Duration = Duration::from_millis(10);
/// The longest message by UDP that anybody sends, and its header.
const BY_UDP: usize = LONGEST + MOST;

/// A socket.
pub struct Datagram {
    process: &'static Process,
    /// `AF_INET` or `AF_INET6`.
    family: c_int,
    /// Its descriptor's number is the socket's.
    udp: Udp,
    /// Of the ids that find ways.
    channel: EventChannel,
    pub watchers: Watchers,
    state: Mutex<State>,
}

/// What changes of it.
pub struct State {
    pub options: Options,
    /// Where it is bound to, as UDP has it.
    local: Option<SocketAddr>,
    /// Address of the peer that it is connected to. This address, as all in here, is of IPv4 if it can be.
    peer: Option<SocketAddr>,
    can_read: bool,
    can_write: bool,
    is_closed: bool,
    /// Why it hears no more where it did, until that is told.
    error: Option<c_int>,
    pairs: Vec<Pair>,
    peers: Peers,
    unread: VecDeque<(SocketAddr, Data)>,
    /// Bytes of memory of those that came by UDP.
    held: usize,
}

/// What became of a datagram that was to be sent.
enum Sent {
    /// It has so many bytes.
    All(usize),
    /// It was to go by UDP, which has no room now.
    UdpIsFull,
}

/// The data of a datagram that nobody has read.
enum Data {
    /// In a receive of the queue pair of this index.
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

/// That, if there is one: a wildcard is none.
fn specified(ip: IpAddr) -> Option<IpAddr> {
    Some(ip.to_canonical()).filter(|ip| !ip.is_unspecified())
}

impl Datagram {
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

    /// The descriptor that its number is of.
    pub fn fd(&self) -> c_int {
        raw(&self.udp)
    }

    pub fn family(&self) -> c_int {
        self.family
    }

    /// As of [`Stream::is_inherited`](super::stream::Stream::is_inherited).
    pub fn is_inherited(&self) -> bool {
        self.process.is_inherited()
    }

    /// Looks at what came, then does something with it.
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

    /// As [`look`](Self::look), of what others may wait for.
    fn change<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let result = self.look(f);
        self.watchers.wake();
        result
    }

    /// Asks to hear of the next change, by these descriptors.
    pub fn arm(&self, mut by: impl FnMut(BorrowedFd<'_>)) {
        let mut state = self.state.lock();
        by(self.udp.as_fd());
        for pair in state.pairs.iter_mut().filter(|pair| !pair.is_over()) {
            pair.arm();
            by(pair.completions.as_fd());
        }
    }

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
            // An address that no device has is none of RDMA's.
            if let Some(ip) = specified(to.ip()) {
                let id = self.process.manager.create_id(&self.channel, PortSpace::Udp).map_err(errno)?;
                let bound = id.bind_addr((ip, 0).into());
                id.destroy();
                bound.map_err(errno)?;
            }
            state.name(self, to)
        })
    }

    /// Sends to, and receives from, this peer only; or all again.
    pub fn connect(&self, to: Option<SocketAddr>) -> Result<(), c_int> {
        let Some(to) = to else {
            self.change(|state| state.peer = None);
            return Ok(());
        };
        self.check_family(to)?;
        self.change(|state| {
            let mut to = canonical(to);
            if to.ip().is_unspecified() {
                // As of UDP, the program's own address: that is where answers are from.
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

    /// How long closing may wait for what was sent to leave.
    pub fn conclude(&self) -> Duration {
        self.look(|state| state.options.linger.unwrap_or(LINGER).min(LINGER))
    }

    /// As of [`Stream::close`](super::stream::Stream::close).
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

    /// An address as sockets of its family have it.
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
            // As of UDP: a connected one is where it sends from.
            (None, Some(ip)) => Ok(self.shown((ip, local.port()).into())),
            _ => Ok(local),
        }
    }

    pub fn peer_addr(&self) -> Result<SocketAddr, c_int> {
        self.look(|state| state.peer).map(|peer| self.shown(peer)).ok_or(libc::ENOTCONN)
    }

    /// What `poll` says of it.
    pub fn events(&self) -> libc::c_short {
        self.look(|state| state.events())
    }

    /// The next datagram, of which the sink has what it has room for.
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

    /// Sends a datagram, to the connected peer if to nobody else.
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
            // For a moment only; nobody else wakes whom that keeps.
            Sent::UdpIsFull => {
                call.wait_for(self.fd(), libc::POLLOUT, Some(left.unwrap_or(FULL).min(FULL)));
                Err(NOT_YET)
            }
        }
    }
}

impl State {
    /// Gives it an address and a port.
    fn name(&mut self, socket: &Datagram, to: SocketAddr) -> Result<(), c_int> {
        socket.udp.bind(to, self.options.reuses_address, self.options.only_v6)?;
        self.local = Some(socket.udp.local_addr()?);
        Ok(())
    }

    /// Has the way to a peer among its peers; from an address, if that is known.
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
        // A peer may have written to an address that no device has.
        let way = from.and_then(|ip| way(Some(ip)).ok()).map_or_else(|| way(bound), Ok)?;
        let local = bound.unwrap_or(way.local);
        let at = match self.pairs.iter().position(|pair| pair.local == local && !pair.is_over()) {
            Some(at) => at,
            None => {
                let pair = Pair::new(&way.context, local, way.mtu, &self.options.sizes)?;
                // Who waits already does not hear of it.
                socket.watchers.wake();
                self.put(pair)
            }
        };
        let traffic_class = self.options.traffic_class.unwrap_or(0);
        let path = self.pairs[at].path(&urxe::transport::AddressVector { traffic_class, ..way.to })?;
        self.peers.add(to, at, path);
        Ok(at)
    }

    /// Has a queue pair among the others, in the place of one that is over if nobody has data to read there; where that is.
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

    /// Why it failed, which is told once.
    pub fn take_error(&mut self) -> Option<c_int> {
        self.error.take()
    }

    /// Sends it; `None` if it has to wait for the queue pair. The source is as it was unless all is sent.
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

    fn header(&self, at: usize, op: Op) -> Header {
        Resolution { op, qpn: self.pairs[at].qpn() }.header(self.pairs[at].local)
    }

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

    /// Takes what came; whether anything has changed.
    fn turn(&mut self, socket: &Datagram) -> bool {
        let mut changed = false;
        if self.is_closed {
            return false;
        }
        // Before queue pairs: what came by UDP is older.
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
                // They are looked for anew, by a device that there is.
                self.peers.forget(at);
            }
        }
        changed
    }

    /// Takes a datagram that came by UDP. What is none of the protocol is dropped.
    fn heed(&mut self, socket: &Datagram, bytes: &[u8], arrived: &Arrived) {
        let from = canonical(arrived.from);
        let Ok((Resolution { op, qpn }, data)) = Resolution::parse(bytes) else { return };
        if op == Op::Control {
            return self.peers.resolved(from, qpn, Instant::now());
        }
        // Where there is no way back it is received all the same.
        if let Ok(at) = self.find(socket, from, arrived.to.and_then(specified)) {
            self.peers.resolved(from, qpn, Instant::now());
            let header = self.header(at, Op::Control);
            // One that is lost is asked for again.
            let _ = self.by_udp(socket, &[IoSlice::new(header.bytes())], from, at);
        }
        let fits = self.held + OVERHEAD + data.len() <= 2 * self.options.sizes.receive_half;
        if fits && self.peer.is_none_or(|peer| is_same(peer, from)) {
            self.held += OVERHEAD + data.len();
            self.unread.push_back((from, Data::ByUdp(data.to_vec())));
        }
    }

    /// Copies the next datagram; takes it unless it is to be looked at only.
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
