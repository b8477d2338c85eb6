//! The decision whether packets take a ring, and the offer of a ring.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use rustix::net::connect;

use super::connection::{Role, Room, Writer};
use super::offer::{offer, socket_name};
use super::{Rings, can_have_rings};
use crate::burst::{BurstLimits, TxBurst};
use crate::host::unix_sockets::{fd_message, is_own_user, peer_user, seqpacket_socket};
use crate::link::udp::{BindAddr, needs_scope};
use crate::rings::limits;
use crate::rings::memory::{CAPACITY, RingWriter};
use crate::rings::routes::{Destination, Route};
use crate::wire::{Qpn, ROCE_PORT};

impl Rings {
    /// Returns the route of a burst.
    pub fn route_of(&mut self, burst: &TxBurst<'_>) -> Route {
        let to = (burst.flow.dst, burst.dest_group());
        if burst.is_for_gsi() || to.0.is_multicast() || burst.flow.src != self.bind_addr.ip() {
            return Route::Socket { is_final: true };
        }
        // The receive buffer of the socket holds more than a ring, and no retransmission replaces what is
        // dropped.
        if burst.is_unacknowledged() && !self.is_required {
            return Route::Socket { is_final: true };
        }
        self.routes.get(to).unwrap_or_else(|| self.find_route(to))
    }

    fn find_route(&mut self, to: Destination) -> Route {
        if to == self.own {
            self.routes.set(to, Route::Socket { is_final: true });
            return Route::Socket { is_final: true };
        }
        if self.routes.is_full() {
            // Not one that is remembered may be forgotten: its next packets could overtake those in the
            // socket.
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

    /// Makes the socket the route to a destination whose ring is closed, for good; if rings are required, the
    /// next packet tries again.
    pub(super) fn give_up(&mut self, to: Destination) {
        self.routes.set(to, self.route_without_ring(to, true));
    }

    /// Forgets the decision for the destination of a new connection if no process listened there: the next
    /// packet decides again. No earlier packets can be overtaken, because their process has ended.
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
        let socket = seqpacket_socket()?;
        connect(&socket, &self.names.address(&socket_name(to))?)?;
        // Root would be trusted, but does not trust other users itself.
        if !is_own_user(peer_user(&socket)?) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let counted = limits::connection().ok_or_else(|| io::Error::other("too many rings"))?;
        let (ring, memory) = RingWriter::create(CAPACITY, self.elides_icrcs)?;
        fd_message::send(&socket, &offer(self.bind_addr.ip(), to.0), &[memory.as_fd()])?;
        let writer = Writer { ring, to, is_confirmed: false, room: Room::Enough };
        self.add(socket, Role::Writer(writer), counted)
    }
}

/// Reports whether this network namespace has an address, which belongs to the interface of `own` if it is
/// link-local. Returns true if that cannot be determined for lack of descriptors or memory.
pub(super) fn is_of_this_host(ip: IpAddr, own: &BindAddr) -> bool {
    if ip.is_loopback() {
        return true;
    }
    let mut to = SocketAddr::new(ip, ROCE_PORT);
    if let (SocketAddr::V6(to), true) = (&mut to, needs_scope(ip)) {
        let interface = pnet_datalink::interfaces().into_iter().find(|i| own.is_on(&i.name));
        to.set_scope_id(interface.map_or(0, |i| i.index));
    }
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let Ok(socket) = UdpSocket::bind((any, 0)) else { return true };
    // The kernel sends from an address of this host to that address from the address itself.
    socket.connect(to).and_then(|()| socket.local_addr()).is_ok_and(|from| from.ip() == ip)
}
