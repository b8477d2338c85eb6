//! Peers of a datagram socket, and the route to each.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use urxe::transport::AddressVector;
use urxe::verbs::cm::{CmEventKind, PortSpace};
use urxe::verbs::{Ah, Context, Qpn};

use crate::common::{Common, errno};

/// Maximum number of peers per socket.
const MAX_PEERS: usize = 4096;
/// Time after which a silent peer's queue pair number must be confirmed, because another process may have
/// taken the port, with another queue pair. In each interval, one datagram is sent over UDP, to which the
/// peer responds.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the canonical form of an address, which identifies a peer: IPv4 instead of IPv4-mapped IPv6, a
/// scope ID only for a link-local address, and no flow label.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match (address.ip().to_canonical(), address) {
        (IpAddr::V6(ip), SocketAddr::V6(v6)) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, v6.port(), 0, v6.scope_id()).into()
        }
        (ip, _) => (ip, address.port()).into(),
    }
}

/// Reports whether two socket addresses have the same IP address and port. The scope ID is ignored, because
/// the header of a datagram sent between queue pairs has none.
pub(crate) fn is_same(a: SocketAddr, b: SocketAddr) -> bool {
    (a.ip(), a.port()) == (b.ip(), b.port())
}

/// Returns the greatest socket address, in sort order, with the IP address and port of `address` and any
/// scope ID.
fn with_any_scope(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => SocketAddrV6::new(*v6.ip(), v6.port(), 0, u32::MAX).into(),
    }
}

/// Route to a peer: the local device and address, and the address vector.
pub(crate) struct Route {
    pub context: Context,
    pub local: IpAddr,
    /// Address of the peer. A wildcard address is replaced by the local address.
    pub peer: SocketAddr,
    pub to: AddressVector,
    /// Path MTU: maximum payload of a packet, in bytes.
    pub mtu: usize,
}

impl Route {
    /// Resolves the route to `to`, from the local address `from` if given.
    ///
    /// # Errors
    /// An error number.
    pub(crate) fn resolve(common: &Common, from: Option<IpAddr>, to: SocketAddr) -> Result<Route, c_int> {
        let id = common.create_id(PortSpace::Udp)?;
        let resolve = || {
            id.resolve_addr(from.map(|ip| (ip, 0).into()), to, Duration::ZERO).map_err(errno)?;
            // The event is pending at once, because no resolution over the network is needed.
            match common.channel.try_event() {
                Some(event) if event.kind == CmEventKind::AddrResolved => {}
                _ => return Err(libc::ENETUNREACH),
            }
            let unreachable = libc::ENETUNREACH;
            let path = id.path().ok_or(unreachable)?;
            let to = AddressVector::to(path.dgid)
                .sgid_index(path.sgid_index)
                .hop_limit(path.hop_limit)
                .traffic_class(0)
                .flow_label(0);
            let local = id.local_addr().ok_or(unreachable)?.ip().to_canonical();
            let (context, peer) =
                (id.context().ok_or(unreachable)?, canonical(id.peer_addr().ok_or(unreachable)?));
            Ok(Route { context, local, peer, to, mtu: path.mtu.bytes() })
        };
        let route = resolve();
        id.destroy();
        route
    }
}

struct Peer {
    /// Index of the socket's queue pair that sends to the peer.
    qp_index: usize,
    /// Address handle of the peer.
    ah: Ah,
    /// The peer's queue pair number, if known.
    qpn: Option<Qpn>,
    /// Time at which the peer last confirmed its queue pair.
    last_recv: Instant,
    /// Time of the last datagram sent to the peer over UDP.
    last_udp_send: Option<Instant>,
}

/// Known peers, by canonical address.
#[derive(Default)]
pub(crate) struct Peers(BTreeMap<SocketAddr, Peer>);

impl Peers {
    /// Returns the index of the queue pair that sends to a peer, if the peer is known.
    pub(crate) fn qp_index(&self, to: SocketAddr) -> Option<usize> {
        self.0.get(&to).map(|peer| peer.qp_index)
    }

    /// Adds a peer. If the table is full, removes the peer that has been silent longest.
    pub(crate) fn add(&mut self, to: SocketAddr, qp_index: usize, ah: Ah) {
        if self.0.len() >= MAX_PEERS
            && let Some(oldest) =
                self.0.iter().min_by_key(|(_, peer)| peer.last_recv).map(|(address, _)| *address)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(to, Peer { qp_index, ah, qpn: None, last_recv: Instant::now(), last_udp_send: None });
    }

    /// Removes all peers that the given queue pair sends to, because the queue pair has failed.
    pub(crate) fn remove_of_qp(&mut self, qp_index: usize) {
        self.0.retain(|_, peer| peer.qp_index != qp_index);
    }

    /// Records the queue pair that a peer has announced over UDP.
    pub(crate) fn set_qpn(&mut self, from: SocketAddr, qpn: Qpn, now: Instant) {
        if let Some(peer) = self.0.get_mut(&from) {
            (peer.qpn, peer.last_recv) = (Some(qpn), now);
        }
    }

    /// Records a datagram that a queue pair has sent and whose header names `from` as the sender. Returns the
    /// table key of the peer. A queue pair number that differs from the known one is not trusted: the known
    /// number is discarded, and the peer must announce its queue pair over UDP again.
    pub(crate) fn on_recv(&mut self, from: SocketAddr, qpn: Qpn, now: Instant) -> SocketAddr {
        let from = self.find_peer(from, qpn);
        if let Some(peer) = self.0.get_mut(&from) {
            match peer.qpn == Some(qpn) {
                true => peer.last_recv = now,
                false => peer.qpn = None,
            }
        }
        from
    }

    /// Returns the table key of the peer named in a header. Headers contain no scope ID. librdmacm also
    /// leaves out the port if the socket was not yet bound when its queue pair was created; the sender is
    /// then the peer with that IP address that announced the queue pair over UDP.
    fn find_peer(&self, from: SocketAddr, qpn: Qpn) -> SocketAddr {
        let port = if from.port() == 0 { u16::MAX } else { from.port() };
        let last = with_any_scope(SocketAddr::new(from.ip(), port));
        let mut of_address = self.0.range(from..=last).map(|(address, peer)| (*address, peer.qpn));
        let known = of_address.clone().find(|(_, known)| *known == Some(qpn));
        // A header with a port is believed, even if it came from another queue pair.
        let known = known.or_else(|| of_address.next().filter(|_| from.port() != 0));
        known.map_or(from, |(address, _)| address)
    }

    /// Returns the address handle and queue pair number for sending to a peer directly. Returns `None` if the
    /// peer is unknown, or if the next datagram must go over UDP; in the latter case, the datagram is
    /// recorded as sent.
    pub(crate) fn direct(&mut self, to: SocketAddr, now: Instant) -> Option<(&Ah, Qpn)> {
        let peer = self.0.get_mut(&to)?;
        let is_recent = |time: Instant| now.saturating_duration_since(time) < CONFIRM_INTERVAL;
        match peer.qpn {
            Some(qpn) if is_recent(peer.last_recv) || peer.last_udp_send.is_some_and(is_recent) => {
                Some((&peer.ah, qpn))
            }
            _ => {
                peer.last_udp_send = Some(now);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_is_identified_by_address_port_and_scope_of_link_local_addresses() {
        let v6 = |ip: &str, flow, scope| SocketAddrV6::new(ip.parse().unwrap(), 7, flow, scope).into();
        let with_port = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 7);
        assert_eq!(canonical(v6("fd77::1", 5, 3)), with_port("fd77::1"));
        assert_eq!(canonical(v6("::ffff:10.0.0.1", 5, 3)), with_port("10.0.0.1"));
        let local = canonical(v6("fe80::2", 5, 3));
        assert_eq!(local, v6("fe80::2", 0, 3));
        assert!(is_same(local, with_port("fe80::2")) && !is_same(local, with_port("fe80::3")));
        assert!((with_port("fe80::2")..=with_any_scope(with_port("fe80::2"))).contains(&local));
    }
}
