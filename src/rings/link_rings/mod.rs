//! Rings in shared memory between the processes of this host: which destinations have one, and the connections over
//! which its memory is passed.
//!
//! Each link listens on a Unix socket named after its address and QPN partition. The first packet to an address and
//! partition decides for all that follow: if a process listens there, this process creates a ring and passes its
//! memory over a connection ([`RingOffer`]), otherwise the packets take the UDP socket. So no packet can overtake
//! another by changing between both. Packets to QP1, to multicast groups and to the own NIC always take the UDP socket, as do
//! those of UC and UD unless rings are required.
//!
//! With [`SharedMemory::Require`], packets to an address of this network namespace never take the socket, so a
//! destination without a ring is not remembered: each packet to it tries again, and is dropped if that fails.
//!
//! The reader confirms a ring with a byte, or refuses it by closing the connection. After a refusal, the packets in the
//! ring are lost, and later packets take the socket.
//!
//! A ring ends with its connection. The reader first reads all packets that an ended writer has left in the ring. The
//! writer closes its end at once if the reader has ended or has broken the protocol.
//!
//! A thread that is about to sleep requests notifications, which make the connection readable. Another thread of the
//! process may consume the notification before the first one sleeps, or read only some of the packets. That thread then
//! writes to an eventfd, which the first one waits for too ([`Rings::prepare_to_sleep`]).
//!
//! A writer never waits. When a ring is almost full, the NIC learns that the path is full and holds packets back, until the
//! writer finds room ([`Rings::next_peer_change`]).
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, accept_with, connect, listen, send, socket_with,
};

use super::limits;
use super::memory::{CAPACITY, RingError, RingReader, RingWriter};
use super::messages::{
    CONFIRMATION, NOTIFICATION, Taken, announce_changes, take_from_reader, take_from_writer,
};
use super::routes::{Destination, Route, Routes};
use super::shared_memory::SharedMemory;
use crate::burst::{BurstLimits, PeerPath, RxBurst, TxBurst};
use crate::host::unix_sockets::{SocketNames, fd_message, is_own_user, is_trusted, peer_user};
use crate::link::udp::{BindAddr, needs_scope};
use crate::sys::fork::CloseOnForkFd;
use crate::sys::quota::Share;
use crate::transport::{Instant, PeerChange, PeerWindow};
use crate::wire::{Qpn, ROCE_PORT};

/// Minimum time between two polls of the connections, which involve a system call. A process that connects wakes the
/// background thread at once, unless the program polls. With 50 µs, the system calls take 3 % of a ping-pong of 8 bytes.
const MIN_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Maximum number of bytes read from all rings at a time.
const BATCH: u64 = CAPACITY as u64 / 4;

/// Maximum wait for the name of the listening socket. The last process on the partition may be ending, which releases the
/// partition before the name; the kernel closes its descriptors in less than a millisecond on an idle machine.
const MAX_NAME_WAIT: Duration = Duration::from_secs(2);

/// Maximum length of the queue of pending connections, and number of connections accepted at a time.
const BACKLOG: i32 = 64;

/// Number of bytes that a ring keeps free for packets that the NIC has built before it knows that the ring is full: two
/// turns. With less room, the path is full.
const RESERVE: u64 = CAPACITY as u64 / 4;

/// Time between two looks at full rings, whose readers do not report that they have made room.
const ROOM_INTERVAL: Duration = Duration::from_micros(50);

/// Time without progress of its reader after which a full ring is stalled: as long as a reader may be without a processor on a
/// busy machine. Mostly unacknowledged packets (UC, UD) fill a ring. With 1000 × 64 KiB by `ib_send_bw -c UC` beside 4 busy
/// processes on 2 processors, 4 of 4 runs lost packets with 2 ms, none with 20 and 100 ms.
const STALL_TIMEOUT: Duration = Duration::from_millis(50);

/// Window of a peer whose packets take rings, in bytes. A ring holds twice as much: requests of one end, and the responses
/// to those of the other.
pub const RING_WINDOW: usize = CAPACITY / 2;

/// Number of events taken per poll.
const EVENTS: usize = 16;

/// Data of the events of the listening socket and of the eventfd; those of connections have the index of the
/// connection.
const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

/// Message with which a process passes the memory of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RingOffer {
    /// Source address of all packets in the ring.
    src: IpAddr,
    /// Destination address of all packets in the ring.
    dst: IpAddr,
}

/// Version of the protocol and of the memory's layout, with which the names of sockets begin.
const VERSION: &str = "urxe-ring-1";

impl fmt::Display for RingOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION} {} {}", self.src, self.dst)
    }
}

impl FromStr for RingOffer {
    type Err = ();

    fn from_str(line: &str) -> Result<RingOffer, ()> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [VERSION, src, dst] => {
                let [src, dst] = [src, dst].map(|address| address.parse().map_err(|_| ()));
                Ok(RingOffer { src: src?, dst: dst? })
            }
            _ => Err(()),
        }
    }
}

/// State and purpose of a connection.
enum Role {
    /// A process has connected, and has not yet passed its ring.
    Pending,
    Reader {
        ring: RingReader,
        has_ended: bool,
        _memory: Share,
    },
    Writer(Writer),
}

/// Writing end of a ring.
struct Writer {
    ring: RingWriter,
    to: Destination,
    is_unpublished: bool,
    /// Whether the reader has confirmed the ring.
    is_confirmed: bool,
    room: Room,
}

/// Room in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    /// For another turn.
    Enough,
    /// Not for another turn. The reader has been at `position` at least since the time `since`. The NIC holds back packets.
    Full { since: Instant, position: u64 },
    /// Not for another turn, and the reader has made no progress for [`STALL_TIMEOUT`]. The NIC does not hold back packets,
    /// and those that do not fit are lost.
    Stalled,
}

struct Connection {
    socket: CloseOnForkFd,
    role: Role,
    _counted: Share,
}

/// The rings of a link.
pub struct Rings {
    bind_addr: BindAddr,
    names: SocketNames,
    /// Whether packets to addresses of this network namespace are dropped if they have no ring.
    is_required: bool,
    /// The listening socket and its name; `None` if other processes write to another link of this NIC.
    listener: Option<(CloseOnForkFd, String)>,
    epoll: Epoll,
    wake: EventFd,
    /// Whether a thread sleeps, or is about to, until it is notified.
    is_armed: bool,
    /// Descriptor to close in order to refuse a connection when there are none left.
    spare: Option<EventFd>,
    /// `None` for closed connections.
    connections: Vec<Option<Connection>>,
    /// Destination of the packets to the link itself.
    own: Destination,
    routes: Routes,
    /// Number of connections that this process reads from.
    readers: usize,
    /// Whether packets have taken a ring.
    has_written: bool,
    /// Indices of the connections with unpublished bursts.
    unpublished: Vec<usize>,
    /// Number of full rings.
    full: usize,
    /// Time at which the full rings were last looked at.
    last_look: Instant,
    /// Changes of the room on paths that the NIC has not taken.
    room_changes: VecDeque<PeerChange>,
    /// Time of the last poll of the connections.
    last_poll: Instant,
    /// Whether packets without ICRCs are permitted.
    elides_icrcs: bool,
    /// Buffer for bursts to which the ICRCs are added.
    scratch: Vec<u8>,
}

impl Rings {
    /// Creates the rings of a link with a partition, and starts to listen for those of other processes if `listens` is
    /// set. Returns `None` without shared memory, and for an address that [cannot have rings](can_have_rings); if rings are
    /// required, such an address has none, and its packets for this network namespace are dropped.
    pub fn new(
        bind_addr: BindAddr,
        partition: u32,
        names: SocketNames,
        listens: bool,
        shared_memory: SharedMemory,
    ) -> io::Result<Option<Rings>> {
        let ip = bind_addr.ip();
        let is_required = match shared_memory {
            SharedMemory::Off => return Ok(None),
            SharedMemory::Auto if !can_have_rings(ip) => return Ok(None),
            SharedMemory::Auto => false,
            SharedMemory::Require => true,
        };
        let own = (ip, partition as u8);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let eventfd = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let (wake, spare) = (eventfd()?, Some(eventfd()?));
        epoll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        let listener = match listens && can_have_rings(ip) {
            true => {
                let (socket, name) = (socket()?, socket_name(own));
                bind_when_free(&names, &socket, &name)?;
                listen(&socket, BACKLOG)?;
                epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
                Some((CloseOnForkFd::new(socket), name))
            }
            false => None,
        };
        Ok(Some(Rings {
            bind_addr,
            names,
            is_required,
            listener,
            epoll,
            wake,
            is_armed: false,
            spare,
            full: 0,
            last_look: Instant(0),
            room_changes: VecDeque::new(),
            connections: Vec::new(),
            own,
            routes: Routes::default(),
            readers: 0,
            has_written: false,
            unpublished: Vec::new(),
            last_poll: Instant(0),
            elides_icrcs: false,
            scratch: Vec::new(),
        }))
    }

    /// Reports whether packets have taken a ring.
    pub fn has_written(&self) -> bool {
        self.has_written
    }

    /// Returns the next change of a path: of its room, or of the peer's window. The window is that of rings if all packets to the
    /// address and all from it take rings: the responses to READs come from the peer. Only one shard of a NIC has readers, so the
    /// windows of the others are at most that of the link.
    pub fn next_peer_change(&mut self) -> Option<PeerChange> {
        if let Some(change) = self.room_changes.pop_front() {
            return Some(change);
        }
        let address = self.routes.next_changed()?;
        let is_from_peer =
            |one: &&Connection| matches!(&one.role, Role::Reader { ring, .. } if ring.src() == address);
        let readers = self.connections.iter().flatten().filter(is_from_peer).count();
        let window = match self.routes.count(address) {
            (0, _) => PeerWindow::OfLink,
            (writers, 0) if readers >= writers => PeerWindow::Bytes(RING_WINDOW),
            _ => PeerWindow::AtMost(RING_WINDOW),
        };
        Some(PeerChange::Window(address, window))
    }

    /// Permits packets without ICRCs in both directions.
    pub fn elide_icrcs(&mut self) {
        self.elides_icrcs = true;
    }

    /// Returns the route of a burst.
    pub fn route_of(&mut self, burst: &TxBurst<'_>) -> Route {
        let to = (burst.flow.dst, burst.dest_group());
        if burst.is_for_gsi() || to.0.is_multicast() || burst.flow.src != self.bind_addr.ip() {
            return Route::Socket { is_final: true };
        }
        // The receive buffer of the socket holds more than a ring, and no retransmission replaces what is dropped.
        if burst.is_unacknowledged() && !self.is_required {
            return Route::Socket { is_final: true };
        }
        self.routes.get(to).unwrap_or_else(|| self.find_route(to))
    }

    /// Writes a burst to the ring of the connection with the index `ring`. Returns false if there is no room, or if the ring has
    /// been closed. The reader sees the burst after [`publish`](Self::publish).
    pub fn write(&mut self, now: Instant, ring: usize, burst: &TxBurst<'_>) -> bool {
        self.has_written = true;
        let Some(writer) = writer_of(&mut self.connections, ring) else { return false };
        if !std::mem::replace(&mut writer.is_unpublished, true) {
            self.unpublished.push(ring);
        }
        let mut write = || Ok((writer.ring.write(burst)?, writer.ring.has_room(RESERVE)?));
        let (is_written, has_room) = match write() {
            Ok(written) => written,
            Err(error) => {
                self.fail(ring, &error);
                return false;
            }
        };
        match (writer.room, has_room) {
            (Room::Enough, false) => {
                writer.room = Room::Full { since: now, position: 0 };
                self.full += 1;
                self.room_changes.push_back(PeerChange::Full(burst.path()));
            }
            (Room::Stalled, true) => writer.room = Room::Enough,
            _ => {}
        }
        is_written
    }

    /// Closes a ring whose reader has broken the protocol. Later packets take the socket, if they may.
    fn fail(&mut self, ring: usize, error: &RingError) {
        let Some(to) = writer_of(&mut self.connections, ring).map(|writer| writer.to) else { return };
        trace_event!(WARN, "urxe::link", "ring closed", to = %to.0, reason = %error);
        self.close(ring);
        self.give_up(to);
    }

    /// Looks whether full rings have room again.
    fn look_for_room(&mut self, now: Instant) {
        self.last_look = now;
        for index in 0..self.connections.len() {
            let Some(writer) = writer_of(&mut self.connections, index) else { continue };
            let Room::Full { since, position } = writer.room else { continue };
            let mut look = || Ok((writer.ring.reader_position()?, writer.ring.has_room(RESERVE)?));
            writer.room = match look() {
                Ok((_, true)) => Room::Enough,
                Ok((reached, false)) if reached != position => Room::Full { since: now, position: reached },
                Ok((_, false)) if now.since(since) < STALL_TIMEOUT => continue,
                Ok((_, false)) => Room::Stalled,
                Err(error) => {
                    self.fail(index, &error);
                    continue;
                }
            };
            if !matches!(writer.room, Room::Full { .. }) {
                self.full -= 1;
                self.room_changes.push_back(PeerChange::Room(path_to(self.bind_addr.ip(), writer.to)));
            }
        }
    }

    /// Returns the time of the next look at full rings.
    pub fn next_deadline(&self) -> Option<Instant> {
        (self.full > 0).then(|| self.last_look + ROOM_INTERVAL)
    }

    /// Shows the readers what was written in this turn.
    pub fn publish(&mut self) {
        for index in self.unpublished.drain(..) {
            // The connection may have been closed meanwhile.
            if let Some(Some(Connection { socket, role: Role::Writer(writer), .. })) =
                self.connections.get_mut(index)
                && std::mem::take(&mut writer.is_unpublished)
            {
                publish(&mut writer.ring, socket);
            }
        }
    }

    fn find_route(&mut self, to: Destination) -> Route {
        if to == self.own {
            self.routes.set(to, Route::Socket { is_final: true });
            return Route::Socket { is_final: true };
        }
        if self.routes.is_full() {
            // Not one that is remembered may be forgotten: its next packets could overtake those in the socket.
            return self.route_without_ring(to, true);
        }
        let route = match self.offer(to) {
            Ok(index) => Route::Ring(index),
            Err(error) => {
                trace_event!(DEBUG, "urxe::link", "no ring", to = %to.0, partition = to.1, reason = %error);
                let nobody_listens =
                    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
                if nobody_listens && self.routes.has_ended(to) {
                    return self.route_without_ring(to, false);
                }
                self.route_without_ring(to, !nobody_listens)
            }
        };
        self.routes.set(to, route);
        route
    }

    fn route_without_ring(&self, to: Destination, is_final: bool) -> Route {
        match self.is_required && is_of_this_host(to.0, &self.bind_addr) {
            true => Route::Nowhere,
            false => Route::Socket { is_final },
        }
    }

    /// Makes the socket the route to a destination whose ring is closed, for good; if rings are required, the next packet
    /// tries again.
    fn give_up(&mut self, to: Destination) {
        self.routes.set(to, self.route_without_ring(to, true));
    }

    /// Forgets the decision for the destination of a new connection if no process listened there: the next packet decides
    /// again. No earlier packets can be overtaken, because their process has ended.
    pub fn on_connected(&mut self, peer: IpAddr, qpn: Qpn) {
        let to = (peer, BurstLimits::dest_group(qpn));
        if self.routes.get(to) == Some(Route::Socket { is_final: false }) {
            self.routes.forget(to);
        }
    }

    /// Creates a ring and passes it to the process at a destination. Returns the index of the connection.
    fn offer(&mut self, to: Destination) -> io::Result<usize> {
        if !can_have_rings(self.bind_addr.ip()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let socket = socket()?;
        connect(&socket, &self.names.address(&socket_name(to))?)?;
        // Root would be trusted, but does not trust other users itself.
        if !is_own_user(peer_user(&socket)?) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let counted = limits::connection().ok_or_else(|| io::Error::other("too many rings"))?;
        let (ring, memory) = RingWriter::create(CAPACITY, self.elides_icrcs)?;
        let offer = RingOffer { src: self.bind_addr.ip(), dst: to.0 };
        fd_message::send(&socket, &offer, &[memory.as_fd()])?;
        let writer = Writer { ring, to, is_unpublished: false, is_confirmed: false, room: Room::Enough };
        self.add(socket, Role::Writer(writer), counted)
    }

    fn add(&mut self, socket: OwnedFd, role: Role, counted: Share) -> io::Result<usize> {
        let index = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, index as u64))?;
        let connection = Some(Connection { socket: CloseOnForkFd::new(socket), role, _counted: counted });
        match self.connections.get_mut(index) {
            Some(free) => *free = connection,
            None => self.connections.push(connection),
        }
        Ok(index)
    }

    fn close(&mut self, index: usize) {
        let Some(Connection { socket, role, .. }) = self.connections.get_mut(index).and_then(Option::take)
        else {
            return;
        };
        // A program started meanwhile may have a copy of the socket, which would keep it in the epoll set.
        let _ = self.epoll.delete(&socket);
        if let Role::Writer(Writer { room: Room::Full { .. }, to, .. }) = role {
            self.full -= 1;
            self.room_changes.push_back(PeerChange::Room(path_to(self.bind_addr.ip(), to)));
        }
        match role {
            Role::Writer(Writer { to, is_confirmed: true, .. }) => self.routes.end(to),
            Role::Writer(Writer { to, .. }) => self.give_up(to),
            Role::Reader { ring, .. } => {
                self.readers -= 1;
                self.routes.note_reader_change(ring.src());
            }
            Role::Pending => {}
        }
    }

    /// Reports whether other processes write to this link.
    pub fn has_readers(&self) -> bool {
        self.readers > 0
    }

    /// Passes received bursts to `sink`, and returns the number of packets.
    pub fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> usize {
        if self.full > 0 {
            self.look_for_room(now);
        }
        let mut events = 0;
        if now.since(self.last_poll) >= MIN_POLL_INTERVAL {
            self.last_poll = now;
            events = self.poll_connections();
        }
        let packets = if self.readers == 0 { 0 } else { self.read_rings(sink) };
        if self.is_armed && (events > 0 || packets > 0) {
            // This call may have consumed the notification for the sleeping thread, and later packets come without one.
            self.is_armed = false;
            let _ = self.wake.write(1);
        }
        packets
    }

    fn read_rings(&mut self, sink: &mut dyn FnMut(RxBurst<'_>)) -> usize {
        let (mut packets, limit) = (0, BATCH / self.readers as u64);
        for index in 0..self.connections.len() {
            let Some(Connection { role: Role::Reader { ring, has_ended, .. }, .. }) =
                &mut self.connections[index]
            else {
                continue;
            };
            let scratch = &mut self.scratch;
            let received = match self.elides_icrcs {
                true => ring.receive(limit, sink),
                // Withdrawn payloads are lost.
                false => ring.receive(limit, &mut |burst| {
                    burst.with_icrcs(scratch).into_iter().for_each(&mut *sink);
                }),
            };
            match received {
                Ok(received) => {
                    packets += received;
                    if !*has_ended || ring.has_bursts() {
                        continue;
                    }
                }
                Err(error) => trace_event!(WARN, "urxe::link", "ring closed", reason = %error),
            }
            self.close(index);
        }
        packets
    }

    /// Requests that writers wake this thread. Returns true if there is something to read already.
    pub fn prepare_to_sleep(&mut self) -> bool {
        if !std::mem::replace(&mut self.is_armed, true) {
            let _ = self.wake.read();
        }
        let mut is_waiting = self.poll_connections() > 0;
        for connection in self.connections.iter().flatten() {
            if let Role::Reader { ring, has_ended, .. } = &connection.role {
                is_waiting |= ring.prepare_to_sleep() || *has_ended;
            }
        }
        is_waiting
    }

    /// Serves the connections: accepts new ones, takes rings and notifications, and notices their ends. Returns the number
    /// of connections served.
    fn poll_connections(&mut self) -> usize {
        let mut ready = [EpollEvent::empty(); EVENTS];
        let count = self.epoll.wait(&mut ready, EpollTimeout::ZERO).unwrap_or(0);
        for connection in self.connections.iter_mut().flatten() {
            if let Connection { socket, role: Role::Writer(writer), .. } = connection {
                let _ = announce_changes(&mut writer.ring, socket);
            }
        }
        let events = ready[..count].iter().map(EpollEvent::data).filter(|data| *data != WAKE);
        let mut served = 0;
        for event in events {
            served += 1;
            match event {
                LISTENER => self.accept(),
                index => self.serve(index as usize),
            }
        }
        served
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        if self.spare.is_none() {
            self.spare = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).ok();
        }
        for _ in 0..BACKLOG {
            let Some((listener, _)) = &self.listener else { return };
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => {
                    // Refuses the connection, so that the other process uses the socket.
                    drop(accept_with(listener, flags));
                    self.spare = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).ok();
                    continue;
                }
                Err(_) => return,
            };
            if peer_user(&socket).is_ok_and(|user| is_trusted(user, false))
                && let Some(counted) = limits::connection()
                && let Ok(index) = self.add(socket, Role::Pending, counted)
            {
                // The writer sends its offer right after it has connected.
                self.serve(index);
            }
        }
    }

    fn serve(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else { return };
        let socket = &connection.socket;
        let is_open = match &mut connection.role {
            Role::Pending => match fd_message::receive(socket, false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
                Ok(Some((line, fds))) => match take_offer(&line, &fds, self.bind_addr.ip()) {
                    Some((ring, memory)) => {
                        // Fails if the writer has ended; its packets are still read.
                        let _ = send(socket, CONFIRMATION, SendFlags::NOSIGNAL);
                        self.readers += 1;
                        self.routes.note_reader_change(ring.src());
                        connection.role = Role::Reader { ring, has_ended: false, _memory: memory };
                        true
                    }
                    None => false,
                },
                _ => false,
            },
            Role::Reader { ring, has_ended, .. } => {
                match take_from_writer(ring, socket) {
                    Taken::Open => {}
                    Taken::Ended => *has_ended = true,
                    Taken::Broken => {
                        trace_event!(WARN, "urxe::link", "ring closed", reason = "unexpected message");
                        return self.close(index);
                    }
                }
                if *has_ended {
                    // A closed connection stays readable; the rest of the ring is still read.
                    let _ = self.epoll.delete(socket);
                }
                true
            }
            Role::Writer(Writer { ring, is_confirmed, .. }) => {
                take_from_reader(ring, is_confirmed, socket) == Taken::Open
            }
        };
        if !is_open {
            self.close(index);
        }
    }
}

/// The descriptor is readable when a connection needs to be served.
impl AsFd for Rings {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // A forked child's copy does not own the name.
        if let Some((_, name)) = self.listener.as_ref().filter(|(listener, _)| listener.is_of_this_process())
        {
            self.names.unbind(name);
        }
    }
}

/// Reports whether an address may have rings: a packet to it identifies its process by address and partition, as it does not
/// for a wildcard or IPv6 link-local address.
pub fn can_have_rings(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !needs_scope(ip)
}

/// Reports whether this network namespace has an address, which belongs to the interface of `own` if it is link-local.
/// Returns true if that cannot be determined for lack of descriptors or memory.
fn is_of_this_host(ip: IpAddr, own: &BindAddr) -> bool {
    let interface = || pnet_datalink::interfaces().into_iter().find(|i| own.is_on(&i.name));
    let to = match ip {
        _ if ip.is_loopback() => return true,
        IpAddr::V4(_) => SocketAddr::new(ip, ROCE_PORT),
        IpAddr::V6(ip) => {
            let scope = if needs_scope(ip.into()) { interface().map_or(0, |i| i.index) } else { 0 };
            SocketAddrV6::new(ip, ROCE_PORT, 0, scope).into()
        }
    };
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let Ok(socket) = UdpSocket::bind((any, 0)) else { return true };
    // The kernel sends from an address of this host to that address from the address itself.
    socket.connect(to).and_then(|()| socket.local_addr()).is_ok_and(|from| from.ip() == ip)
}

/// Binds a socket to a name, once the last process on the partition has released it.
fn bind_when_free(names: &SocketNames, socket: &OwnedFd, name: &str) -> io::Result<()> {
    let begin = std::time::Instant::now();
    loop {
        match names.bind(socket, name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begin.elapsed() < MAX_NAME_WAIT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            bound => return bound,
        }
    }
}

fn socket_name((ip, partition): Destination) -> String {
    format!("{VERSION}/{ip}/{partition}")
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn path_to(src: IpAddr, (dst, group): Destination) -> PeerPath {
    PeerPath { src, dst, group }
}

/// Returns the writer of a connection.
fn writer_of(connections: &mut [Option<Connection>], index: usize) -> Option<&mut Writer> {
    match connections.get_mut(index)? {
        Some(Connection { role: Role::Writer(writer), .. }) => Some(writer),
        _ => None,
    }
}

/// Publishes what was written to a ring, and notifies a reader that sleeps. If a notification cannot be sent although the
/// reader has not ended and earlier ones are not unread, the next call tries again.
fn publish(ring: &mut RingWriter, socket: &CloseOnForkFd) {
    if ring.publish()
        && let Err(error) = send(socket, NOTIFICATION, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        && !matches!(error, Errno::AGAIN | Errno::PIPE | Errno::CONNRESET)
    {
        ring.cancel_notification();
    }
    // An error is found again by the next write.
    let _ = announce_changes(ring, socket);
}

/// Returns the ring that a process has passed to the link with the given address, and its memory.
fn take_offer(line: &str, fds: &[OwnedFd], own: IpAddr) -> Option<(RingReader, Share)> {
    let (Ok(RingOffer { src, dst }), [memory]) = (line.parse(), fds) else { return None };
    if dst != own || src.is_ipv4() != dst.is_ipv4() {
        return None;
    }
    let ring = RingReader::open(memory, CAPACITY, src, dst)
        .inspect_err(|error| trace_event!(WARN, "urxe::link", "ring refused", reason = %error))
        .ok()?;
    let memory = limits::read_memory(ring.memory())?;
    Some((ring, memory))
}

#[cfg(test)]
mod tests;
