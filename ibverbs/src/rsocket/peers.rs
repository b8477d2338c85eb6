//! The peers of a datagram socket: how each is reached.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
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

/// An address of IPv4 if it can be.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => (ip, address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

/// From where, and how, an address is reached.
pub struct Way {
    pub context: Context,
    pub local: IpAddr,
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
            Ok(Way { context: id.context().ok_or(none)?, local, to, mtu: path.mtu.bytes() })
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

    /// It has said by UDP which queue pair it has.
    pub fn resolved(&mut self, from: SocketAddr, qpn: Qpn, now: Instant) {
        if let Some(peer) = self.0.get_mut(&from) {
            (peer.qpn, peer.heard) = (Some(qpn), now);
        }
    }

    /// A datagram came from this queue pair, which says that it is of this address; whom that is. Only UDP is believed if that
    /// is news.
    pub fn heard(&mut self, from: SocketAddr, qpn: Qpn, now: Instant) -> SocketAddr {
        let from = if from.port() == 0 { self.nameless(from, qpn) } else { from };
        if let Some(peer) = self.0.get_mut(&from) {
            match peer.qpn == Some(qpn) {
                true => peer.heard = now,
                false => peer.qpn = None,
            }
        }
        from
    }

    /// librdmacm's header has no port if the socket was not bound when its queue pair was made: then it is the peer at this
    /// address that has said by UDP that it has the queue pair.
    fn nameless(&self, from: SocketAddr, qpn: Qpn) -> SocketAddr {
        let of_address = self.0.range(from..=SocketAddr::new(from.ip(), u16::MAX));
        let mut named = of_address.filter(|(_, peer)| peer.qpn == Some(qpn));
        named.next().map_or(from, |(named, _)| *named)
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
