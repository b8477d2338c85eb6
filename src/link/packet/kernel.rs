//! Next-hop resolution using the kernel's routes and neighbour table, queried through netlink.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::socket::{SockFlag, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use rustix::net::SocketFlags;

use crate::host::host_stack::{FrameOutcome, IpStack};
use crate::host::membership::{self, JoinError};
use crate::host::netlink::{self, Request, RouteSocket};
use crate::host::socket_calls;
use crate::host::system_udp::{self, socket_addr};
use crate::host::unresolved_queue::UnresolvedQueue;
use crate::transport::Instant;
use crate::wire::frame::{Content, Frame};
use crate::wire::{Mac, ROCE_PORT};

/// Lifetime of a cached MAC that was obtained from the kernel.
const CACHE_LIFETIME: Duration = Duration::from_secs(5);
/// Interval between queries for a neighbour that the kernel is resolving.
const QUERY_INTERVAL: Duration = Duration::from_millis(5);
/// Time after which packets to an unresolved next hop are dropped: the kernel sends three requests, one
/// second apart.
const RESOLUTION_TIMEOUT: Duration = Duration::from_secs(3);
/// Destination port (discard, RFC 863) of the datagrams that make the kernel resolve a neighbour.
const DISCARD_PORT: u16 = 9;
/// Maximum number of cached destinations; the cache is cleared when it is full.
const MAX_CACHED: usize = 4096;

/// Length of both rtmsg and ndmsg, in bytes.
const BODY_LEN: usize = 12;
/// Neighbour states (NUD_*) in which the MAC is usable.
const USABLE: u16 = libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE
    | libc::NUD_NOARP
    | libc::NUD_PERMANENT;

#[derive(Debug)]
pub(super) struct KernelNeighbours {
    netlink: RouteSocket,
    ifindex: u32,
    /// Whether this is a loopback interface, on which all MACs are zero.
    loopback: bool,
    addresses: Vec<IpAddr>,
    /// Sockets that hold the kernel's multicast memberships, one per group: while a socket is open, the
    /// kernel reports the membership and configures the hardware to accept the group's packets.
    groups: HashMap<IpAddr, OwnedFd>,
    trigger: [Option<UdpSocket>; 2],
    /// Sockets bound to the RoCE port, to keep the kernel from sending ICMP port unreachable errors. A
    /// filter drops all packets that they receive.
    _guards: Vec<UdpSocket>,
    cache: HashMap<IpAddr, Cached>,
    unresolved: UnresolvedQueue,
}

#[derive(Clone, Copy, Debug)]
struct Cached {
    mac: Option<Mac>,
    until: Instant,
    /// Time at which the resolution started; meaningful only while `mac` is `None`.
    since: Instant,
}

impl KernelNeighbours {
    pub fn new(name: &str, ifindex: u32, loopback: bool, addresses: &[IpAddr]) -> io::Result<Self> {
        let netlink = RouteSocket::open(0, SockFlag::empty())?;
        // The kernel replies within the call; the timeout only prevents blocking forever in an unexpected
        // case.
        setsockopt(&netlink, sockopt::ReceiveTimeout, &TimeVal::milliseconds(100))?;
        let any = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
        let trigger = any.map(|ip| {
            let socket = system_udp::bound((ip, 0).into()).ok()?;
            socket.set_nonblocking(true).ok()?;
            setsockopt(&socket, sockopt::BindToDevice, &name.into()).ok()?;
            Some(socket)
        });
        // If another socket has the port already, that one prevents the ICMP errors.
        let guard = |ip: &IpAddr| {
            let socket = system_udp::bound(socket_addr(*ip, ROCE_PORT, ifindex)).ok()?;
            socket_calls::drop_all(&socket).ok()?;
            // With GRO enabled, a super-packet is dropped whole instead of being segmented first.
            let _ = socket_calls::set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, &1);
            Some(socket)
        };
        let guards = addresses.iter().filter_map(guard).collect();
        Ok(KernelNeighbours {
            netlink,
            ifindex,
            loopback,
            addresses: addresses.to_vec(),
            groups: HashMap::new(),
            trigger,
            _guards: guards,
            cache: HashMap::new(),
            unresolved: UnresolvedQueue::default(),
        })
    }

    /// Makes the kernel resolve the next hop to `dst`, or confirm a stale neighbour entry.
    fn trigger(&self, dst: IpAddr) {
        if let Some(socket) = &self.trigger[usize::from(dst.is_ipv6())] {
            let _ = socket.send_to(&[], socket_addr(dst, DISCARD_PORT, self.ifindex));
        }
    }

    /// Returns the next hop to `dst` through the link's interface; `None` if there is no route.
    fn next_hop(&self, dst: IpAddr) -> Option<IpAddr> {
        let mut body = [0; BODY_LEN];
        body[0] = netlink::family(dst);
        body[1] = if dst.is_ipv4() { 32 } else { 128 };
        let mut request = Request::new(libc::RTM_GETROUTE, &body);
        request.address(libc::RTA_DST, dst);
        request.attribute(libc::RTA_OIF, &self.ifindex.to_ne_bytes());
        let mut buffer = [0; 4096];
        let reply = self.query(request, &mut buffer)?;
        match netlink::attributes(&reply[BODY_LEN..]).find(|(kind, _)| *kind == libc::RTA_GATEWAY) {
            Some((_, gateway)) => netlink::address(gateway),
            None => Some(dst),
        }
    }

    /// Queries the neighbour entry of `hop`. Returns its MAC if it is usable, and whether it is usable and
    /// not stale.
    fn neighbour(&self, hop: IpAddr) -> (Option<Mac>, bool) {
        let mut body = [0; BODY_LEN];
        body[0] = netlink::family(hop);
        body[4..8].copy_from_slice(&self.ifindex.to_ne_bytes());
        let mut request = Request::new(libc::RTM_GETNEIGH, &body);
        request.address(libc::NDA_DST, hop);
        let mut buffer = [0; 4096];
        let Some(reply) = self.query(request, &mut buffer) else { return (None, false) };
        let state = u16::from_ne_bytes([reply[8], reply[9]]);
        let mac = netlink::attributes(&reply[BODY_LEN..]).find(|(kind, _)| *kind == libc::NDA_LLADDR);
        let mac = mac.and_then(|(_, mac)| mac.first_chunk()).map(|m| Mac(*m));
        (mac.filter(|_| state & USABLE != 0), state & USABLE & !libc::NUD_STALE != 0)
    }

    /// Sends a request and returns the body of the response, which has at least [`BODY_LEN`] bytes; `None` on
    /// error.
    fn query<'b>(&self, request: Request, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        self.netlink.send(request).ok()?;
        let (kind, body) = netlink::messages(self.netlink.receive(buffer).ok()?).next()?;
        (kind != libc::NLMSG_ERROR as u16 && body.len() >= BODY_LEN).then_some(body)
    }
}

impl IpStack for KernelNeighbours {
    fn resolve(&mut self, now: Instant, dst: IpAddr) -> Option<Mac> {
        if self.loopback {
            return Some(Mac::default());
        }
        if let Some(group) = Mac::of_group(dst) {
            return Some(group);
        }
        let before = self.cache.get(&dst).copied();
        if let Some(cached) = before.filter(|c| now < c.until) {
            return cached.mac;
        }
        let (mac, is_confirmed) = match self.next_hop(dst) {
            Some(hop) => self.neighbour(hop),
            None => (None, true),
        };
        if self.cache.len() >= MAX_CACHED {
            self.cache.clear();
        }
        // One datagram makes the kernel continue for as long as packets wait.
        let pending = before.filter(|c| c.mac.is_none() && now.since(c.since) <= RESOLUTION_TIMEOUT);
        if !is_confirmed && pending.is_none() {
            self.trigger(dst);
        }
        let since = pending.map_or(now, |c| c.since);
        let until = now + if mac.is_some() { CACHE_LIFETIME } else { QUERY_INTERVAL };
        self.cache.insert(dst, Cached { mac, until, since });
        mac
    }

    fn queue_unresolved(&mut self, dst: IpAddr, write: &mut dyn FnMut(&mut Vec<u8>)) -> bool {
        self.unresolved.push(Some(dst), write)
    }

    fn unresolved(&mut self) -> &mut UnresolvedQueue {
        &mut self.unresolved
    }

    /// Classifies a frame: the kernel handles every protocol other than RoCE.
    fn handle(&mut self, _: Instant, _: &[u8], frame: Frame) -> FrameOutcome {
        let is_local = |ip: IpAddr| self.addresses.contains(&ip) || self.is_member(ip);
        match frame.content {
            Content::Roce(roce) if is_local(roce.flow.dst) => FrameOutcome::Packet(roce),
            Content::RoceV1 { intact } => FrameOutcome::RoceV1 { intact },
            _ => FrameOutcome::Foreign,
        }
    }

    fn join(&mut self, _: Instant, group: IpAddr) -> Result<(), JoinError> {
        membership::check(group, self.addresses.iter().copied())?;
        if self.is_member(group) {
            return Ok(());
        }
        // One socket per group, because the number of memberships per socket is limited. A socket without a
        // port receives nothing.
        let socket = || {
            let socket = system_udp::unbound(group, SocketFlags::empty())?;
            membership::join(&socket, group, self.ifindex)?;
            Ok(socket)
        };
        let socket = socket().map_err(|source| JoinError::System { group, source })?;
        self.groups.insert(group, socket);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr, _is_last: bool) {
        self.groups.remove(&group);
    }

    fn is_member(&self, group: IpAddr) -> bool {
        self.groups.contains_key(&group)
    }

    /// Queries the next hops of queued frames again. Moves frames whose next hop is now resolved to the
    /// outbox, and drops frames whose next hop was not resolved in time.
    fn handle_timeout(&mut self, now: Instant) {
        loop {
            let due = |ip: &IpAddr| self.cache.get(ip).is_none_or(|c| c.until <= now || c.mac.is_some());
            let Some(dst) = self.unresolved.hops().find(due) else { return };
            let is_expired = |c: &Cached| c.mac.is_none() && now.since(c.since) >= RESOLUTION_TIMEOUT;
            if self.cache.get(&dst).is_some_and(is_expired) {
                self.cache.remove(&dst);
                self.unresolved.finish(dst, None);
            } else if let Some(mac) = self.resolve(now, dst) {
                self.unresolved.finish(dst, Some(mac));
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let until = |ip| self.cache.get(&ip).map_or(Instant::default(), |c| c.until);
        self.unresolved.hops().map(until).min()
    }
}
