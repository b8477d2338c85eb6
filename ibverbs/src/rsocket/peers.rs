//! The peers of a datagram socket: how each is reached.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use urxe::transport::AddressVector;
use urxe::verbs::cm::{CmEventKind, EventChannel, PortSpace};
use urxe::verbs::{Ah, Context, Qpn};

use super::stream::errno;
use crate::cm::process::Process;

/// Peers that a socket remembers.
const MOST: usize = 4096;
/// How long a peer that says nothing is taken for the one that it was: another may have its port by then, with another queue
/// pair. One datagram in so much time goes by UDP, and is answered.
const PATIENCE: Duration = Duration::from_secs(1);

/// An address as peers are known by: of IPv4 if it can be, with a scope only where it means something, and without a flow.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match (address.ip().to_canonical(), address) {
        (IpAddr::V6(ip), SocketAddr::V6(v6)) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, v6.port(), 0, v6.scope_id()).into()
        }
        (ip, _) => (ip, address.port()).into(),
    }
}

/// Whether both have the address and the port: what comes by queue pairs tells no scope.
pub fn is_same(a: SocketAddr, b: SocketAddr) -> bool {
    (a.ip(), a.port()) == (b.ip(), b.port())
}

/// The last in order of those that have the address and the port.
fn with_any_scope(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => SocketAddrV6::new(*v6.ip(), v6.port(), 0, u32::MAX).into(),
    }
}

/// From where, and how, an address is reached.
pub struct Way {
    pub context: Context,
    pub local: IpAddr,
    /// The address that it was asked for, or if that was the wildcard its own.
    pub peer: SocketAddr,
    pub to: AddressVector,
    /// Payload of a packet.
    pub mtu: usize,
}

impl Way {
    /// # Errors
    /// An error number.
    pub fn find(
        process: &Process,
        channel: &EventChannel,
        from: Option<IpAddr>,
        to: SocketAddr,
    ) -> Result<Way, c_int> {
        let id = process.manager.create_id(channel, PortSpace::Udp).map_err(errno)?;
        let find = || {
            id.resolve_addr(from.map(|ip| (ip, 0).into()), to, Duration::ZERO).map_err(errno)?;
            // It is answered at once, as nobody is asked.
            match channel.try_event() {
                Some(event) if event.kind == CmEventKind::AddrResolved => {}
                _ => return Err(libc::ENETUNREACH),
            }
            let none = libc::ENETUNREACH;
            let path = id.path().ok_or(none)?;
            let to = AddressVector {
                dgid: path.dgid,
                sgid_index: path.sgid_index,
                hop_limit: path.hop_limit,
                traffic_class: 0,
                flow_label: 0,
            };
            let local = id.local_addr().ok_or(none)?.ip().to_canonical();
            let (context, peer) = (id.context().ok_or(none)?, canonical(id.peer_addr().ok_or(none)?));
            Ok(Way { context, local, peer, to, mtu: path.mtu.bytes() })
        };
        let way = find();
        id.destroy();
        way
    }
}

struct Peer {
    /// Which of the socket's queue pairs sends to it, and how.
    at: usize,
    path: Ah,
    /// Its queue pair, if that is known.
    qpn: Option<Qpn>,
    /// When it last said so.
    heard: Instant,
    /// When it was last sent to by UDP.
    asked: Option<Instant>,
}

/// See the module.
#[derive(Default)]
pub struct Peers(BTreeMap<SocketAddr, Peer>);

impl Peers {
    /// The queue pair that sends to one, if it is known.
    pub fn way(&self, to: SocketAddr) -> Option<usize> {
        self.0.get(&to).map(|peer| peer.at)
    }

    /// A new one.
    pub fn add(&mut self, to: SocketAddr, at: usize, path: Ah) {
        if self.0.len() >= MOST
            && let Some(oldest) =
                self.0.iter().min_by_key(|(_, peer)| peer.heard).map(|(address, _)| *address)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(to, Peer { at, path, qpn: None, heard: Instant::now(), asked: None });
    }

    /// All that this queue pair sends to: it is no more.
    pub fn forget(&mut self, at: usize) {
        self.0.retain(|_, peer| peer.at != at);
    }

    /// It has said by UDP which queue pair it has.
    pub fn resolved(&mut self, from: SocketAddr, qpn: Qpn, now: Instant) {
        if let Some(peer) = self.0.get_mut(&from) {
            (peer.qpn, peer.heard) = (Some(qpn), now);
        }
    }

    /// A datagram came from this queue pair, which says that it is of this address; whom that is. Only UDP is believed if that
    /// is news.
    pub fn heard(&mut self, from: SocketAddr, qpn: Qpn, now: Instant) -> SocketAddr {
        let from = self.named(from, qpn);
        if let Some(peer) = self.0.get_mut(&from) {
            match peer.qpn == Some(qpn) {
                true => peer.heard = now,
                false => peer.qpn = None,
            }
        }
        from
    }

    /// The peer that a header means, which has no scope. librdmacm's has no port either if the socket was not bound when its
    /// queue pair was made: then it is the peer at this address that has said by UDP that it has the queue pair.
    fn named(&self, from: SocketAddr, qpn: Qpn) -> SocketAddr {
        let port = if from.port() == 0 { u16::MAX } else { from.port() };
        let last = with_any_scope(SocketAddr::new(from.ip(), port));
        let mut of_address = self.0.range(from..=last).map(|(address, peer)| (*address, peer.qpn));
        let known = of_address.clone().find(|(_, known)| *known == Some(qpn));
        // One with a port is who it says, by another queue pair.
        let known = known.or_else(|| of_address.next().filter(|_| from.port() != 0));
        known.map_or(from, |(address, _)| address)
    }

    /// Where to send to, or nothing if that is to go by UDP, which then is to be done.
    pub fn direct(&mut self, to: SocketAddr, now: Instant) -> Option<(&Ah, Qpn)> {
        let peer = self.0.get_mut(&to)?;
        let is_recent = |at: Instant| now.saturating_duration_since(at) < PATIENCE;
        match peer.qpn {
            Some(qpn) if is_recent(peer.heard) || peer.asked.is_some_and(is_recent) => {
                Some((&peer.path, qpn))
            }
            _ => {
                peer.asked = Some(now);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_known_by_address_and_port() {
        let v6 = |ip: &str, flow, scope| SocketAddrV6::new(ip.parse().unwrap(), 7, flow, scope).into();
        let told = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 7);
        assert_eq!(canonical(v6("fd77::1", 5, 3)), told("fd77::1"));
        assert_eq!(canonical(v6("::ffff:10.0.0.1", 5, 3)), told("10.0.0.1"));
        let local = canonical(v6("fe80::2", 5, 3));
        assert_eq!(local, v6("fe80::2", 0, 3));
        assert!(is_same(local, told("fe80::2")) && !is_same(local, told("fe80::3")));
        assert!((told("fe80::2")..=with_any_scope(told("fe80::2"))).contains(&local));
    }
}
