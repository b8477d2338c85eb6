//! Rings in shared memory between the processes of this host: which destinations have one, and the
//! connections over which its memory is passed.
//!
//! Each link listens on a Unix socket named after its address and QPN partition. The first packet to an
//! address and partition decides for all that follow: if a process listens there, this process creates a ring
//! and passes its memory over a connection ([`offer::offer`]), otherwise the packets take the UDP socket. So
//! no packet can overtake another by changing between both. Packets to QP1, to multicast groups and to the
//! own NIC always take the UDP socket, as do those of UC and UD unless rings are required.
//!
//! With [`SharedMemory::Require`], packets to an address of this network namespace never take the socket, so
//! a destination without a ring is not remembered: each packet to it tries again, and is dropped if that
//! fails.
//!
//! The reader confirms a ring with a byte, or refuses it by closing the connection. After a refusal, the
//! packets in the ring are lost, and later packets take the socket.
//!
//! A ring ends with its connection. The reader first reads all packets that an ended writer has left in the
//! ring. The writer closes its end at once if the reader has ended or has broken the protocol.
//!
//! A thread that is about to sleep requests notifications, which make the connection readable. Another thread
//! of the process may consume the notification before the first one sleeps, or read only some of the packets.
//! That thread then writes to an eventfd, which the first one waits for too ([`Rings::prepare_to_sleep`]).
//!
//! A writer never waits. When a ring is almost full, the NIC learns that the path is full and holds packets
//! back, until the writer finds room ([`Rings::next_peer_change`]).
#![forbid(unsafe_code)]

mod connection;
mod find_route;
mod offer;
mod receive;
mod serve;
#[cfg(test)]
mod tests;
mod write;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rustix::net::listen;

use super::routes::{Destination, Routes};
use super::shared_memory::SharedMemory;
use crate::host::unix_sockets::{SocketNames, seqpacket_socket};
use crate::link::udp::{BindAddr, needs_scope};
use crate::sys::fork::CloseOnForkFd;
use crate::transport::{Instant, PeerChange};
use connection::Connection;
use offer::socket_name;

/// Maximum wait for the name of the listening socket. The last process on the partition may be ending, which
/// releases the partition before the name; the kernel closes its descriptors in less than a millisecond on an
/// idle machine.
const MAX_NAME_WAIT: Duration = Duration::from_secs(2);

/// Maximum length of the queue of pending connections, and number of connections accepted at a time.
const BACKLOG: i32 = 64;

/// Data of the events of the listening socket and of the eventfd; those of connections have the index of the
/// connection.
const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

/// The rings of a link.
pub struct Rings {
    bind_addr: BindAddr,
    names: SocketNames,
    /// Whether packets to addresses of this network namespace are dropped if they have no ring.
    is_required: bool,
    /// The listening socket, named after `own`; `None` if other processes write to another link of this NIC.
    listener: Option<CloseOnForkFd>,
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
    pub readers: usize,
    /// Whether packets have taken a ring.
    pub has_written: bool,
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
    /// Whether packets without ICRCs are permitted, in both directions.
    pub elides_icrcs: bool,
    /// Buffer for bursts to which the ICRCs are added.
    scratch: Vec<u8>,
}

impl Rings {
    /// Creates the rings of a link with a partition, and starts to listen for those of other processes if
    /// `listens` is set. Returns `None` without shared memory, and for an address that [cannot have
    /// rings](can_have_rings); if rings are required, such an address has none, and its packets for this
    /// network namespace are dropped.
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
                let socket = seqpacket_socket()?;
                bind_when_free(&names, &socket, &socket_name(own))?;
                listen(&socket, BACKLOG)?;
                epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
                Some(CloseOnForkFd::new(socket))
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
        if self.listener.as_ref().is_some_and(CloseOnForkFd::is_of_this_process) {
            self.names.unbind(&socket_name(self.own));
        }
    }
}

/// Reports whether an address may have rings: a packet to it identifies its process by address and partition,
/// as it does not for a wildcard or IPv6 link-local address.
pub fn can_have_rings(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !needs_scope(ip)
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
