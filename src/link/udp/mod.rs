//! RoCEv2 through a plain UDP socket: no root, no capability, no interface of its own.
//!
//! The kernel makes the IP and UDP headers, so the ICRC, which covers them, is a matter of knowing what it
//! will write: an unconnected socket that never fragments sends identification 0 with don't-fragment set,
//! and 0, 1, 2… in the segments of one call. What arrives hides its identification; the ICRC gives it away
//! ([`crate::wire::icrc::identify`]).

mod cmsg;
mod groups;
mod interface;
mod owner;
mod recv;
mod send;
mod shared;
mod socket;
mod steer;
pub mod steward;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use owner::PortOwner;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::watch::Watch;
use super::{ClaimError, JoinError, Link, LinkCounters, LinkInfo, RxBurst};
use crate::nic::{Seat, ShardId};
use crate::transport::{BurstLimits, Instant, TxQueue};
use crate::wire::mad::ServiceId;
use crate::wire::{Flow, ROCE_PORT};
use groups::Groups;
use recv::Receiver;
use send::Sender;
use socket::Opened;
pub use steward::Sharing;
use steward::{Claims, Tenancy};

/// How to set up a [`UdpLink`].
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Bytes of receive and of send buffer to ask for. An unprivileged process gets at most
    /// `net.core.rmem_max` and `wmem_max`.
    pub buffer: usize,
    /// Whether to have the kernel segment and coalesce, if it can: ten times as fast.
    pub segmentation: bool,
    /// The interface whose address it is, where several may have the same one, as link-local ones of IPv6. Then the
    /// address may also be one that the kernel does not use yet, while it looks for others that have it (DAD): what is
    /// sent until then is lost.
    pub interface: Option<String>,
}

impl Default for UdpOptions {
    fn default() -> UdpOptions {
        UdpOptions { buffer: 8 << 20, segmentation: true, interface: None }
    }
}

/// Why there is no [`UdpLink`].
#[derive(Debug, thiserror::Error)]
pub enum UdpLinkError {
    /// Someone else has the port.
    #[error("UDP port 4791 of {ip} is taken by {owner}; stop that, or use another address of this machine")]
    Taken {
        /// The address asked for.
        ip: IpAddr,
        /// The process or module that holds the port.
        owner: PortOwner,
    },
    /// The address is not one of this machine.
    #[error("{ip} is no address of this machine (network namespace); `ip address` lists those it has")]
    NotLocal {
        /// The address asked for.
        ip: IpAddr,
    },
    /// The steward that shares the address gives this process no part of it.
    #[error("{why}")]
    Refused {
        /// The address asked for.
        ip: IpAddr,
        /// The error as a number.
        errno: i32,
        /// And in words.
        why: String,
    },
    /// There is no such interface, or it is of no use.
    #[error("no interface '{name}' is up and has an IP address; `ip address` lists those there are")]
    NoInterface {
        /// The name asked for.
        name: String,
    },
    /// A system call failed that should not.
    #[error("no UDP link on {ip}: {what} failed")]
    System {
        /// The address asked for.
        ip: IpAddr,
        /// What was being done.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// What a socket is bound to.
struct Local {
    ip: IpAddr,
    wildcard: bool,
    /// Addresses of this machine that it takes packets for, and the index of the interface of each.
    interfaces: Vec<(IpAddr, u32)>,
}

impl Local {
    /// The interface to which a destination belongs that means nothing without one: that of the source.
    fn scope_of(&self, flow: &Flow) -> u32 {
        if socket::needs_scope(flow.dst) { self.interface_of(flow.src) } else { 0 }
    }

    /// The interface that has an address; 0 if none has.
    fn interface_of(&self, ip: IpAddr) -> u32 {
        self.interfaces.iter().find(|(own, _)| *own == ip).map_or(0, |(_, index)| *index)
    }

    /// The interfaces, each once.
    fn interface_indices(&self) -> impl Iterator<Item = u32> {
        let mut indices: Vec<u32> = self.interfaces.iter().map(|(_, index)| *index).collect();
        indices.sort_unstable();
        indices.dedup();
        indices.into_iter()
    }
}

/// A [`Link`] over UDP port 4791 of one address, or of all (of one family) by a wildcard.
pub struct UdpLink {
    socket: OwnedFd,
    info: LinkInfo,
    local: Local,
    sender: Sender,
    receiver: Receiver,
    groups: Groups,
    /// Watches the sockets of the groups, so that what others poll on never changes. Not the link's own: a watcher
    /// costs the kernel a wake-up for every datagram, even when nobody sleeps.
    epoll: Epoll,
    options: UdpOptions,
    /// Where the address is shared.
    tenancy: Option<Arc<Tenancy>>,
    /// Services of QP1, where the address is shared.
    claims: Option<Claims>,
    /// None where the system does not tell of its interfaces.
    watch: Option<Watch>,
}

impl UdpLink {
    /// Binds UDP port 4791 of `ip`, which may be a wildcard.
    ///
    /// # Errors
    /// If the port is taken (one process an address), the address is not local, or the system is out of
    /// something.
    pub fn bind(ip: IpAddr, options: &UdpOptions) -> Result<UdpLink, UdpLinkError> {
        UdpLink::new(ip, options, socket::open(ip, options, false)?)
    }

    /// Binds it with `count` sockets, for the shards of one NIC
    /// ([`Context::open_shards`](crate::verbs::Context::open_shards)): each has the packets of the queue pairs whose
    /// numbers end in its place. `count` is rounded up to a power of two, of 64 at most.
    ///
    /// # Errors
    /// See [`bind`](Self::bind).
    pub fn bind_shards(ip: IpAddr, options: &UdpOptions, count: usize) -> Result<Vec<UdpLink>, UdpLinkError> {
        let opened = steer::open(ip, options, count.next_power_of_two().min(ShardId::MAX_COUNT))?;
        let mut links: Vec<UdpLink> =
            opened.into_iter().map(|opened| UdpLink::new(ip, options, opened)).collect::<Result<_, _>>()?;
        // The first one's port is that of all.
        links.iter_mut().skip(1).for_each(|link| link.watch = None);
        Ok(links)
    }

    fn new(ip: IpAddr, options: &UdpOptions, opened: Opened) -> Result<UdpLink, UdpLinkError> {
        let mut addresses: Vec<IpAddr> = opened.locals.iter().map(|l| l.ip).collect();
        if ip.is_unspecified() {
            // The first GID is what programs use that do not choose: not a loopback one.
            addresses.sort_by_key(IpAddr::is_loopback);
        } else if addresses.is_empty() {
            addresses.push(ip);
        }
        let system = |e: Errno| UdpLinkError::System { ip, what: "making an epoll", source: e.into() };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(system)?;
        let watch = Watch::open(opened.locals.iter().map(|l| l.index)).ok();
        // Some addresses are of no interface (AnyIP): nothing brings those down.
        let watch = watch.filter(|_| !opened.locals.is_empty());
        Ok(UdpLink {
            info: LinkInfo {
                name: format!("udp {ip}"),
                addresses,
                mac: [0; 6],
                vlan: None,
                mtu: opened.mtu,
                src_port: Some(ROCE_PORT),
                burst: if opened.segments { BurstLimits::SEGMENTED } else { BurstLimits::SINGLE },
                window: window(opened.rcvbuf.min(2 * options.buffer)),
            },
            local: Local {
                ip,
                wildcard: ip.is_unspecified(),
                interfaces: opened.locals.iter().map(|l| (l.ip, l.index)).collect(),
            },
            sender: Sender::new(opened.segments),
            receiver: Receiver::new(),
            groups: Groups::default(),
            epoll,
            options: options.clone(),
            tenancy: None,
            claims: None,
            watch,
            socket: opened.socket,
        })
    }

    /// From now on it has services of QP1.
    fn add_claims(&mut self, claims: Claims) -> io::Result<()> {
        self.epoll.add(&claims, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        self.claims = Some(claims);
        Ok(())
    }

    /// Binds UDP port 4791 of every IPv4 address of this machine.
    ///
    /// # Errors
    /// See [`bind`](Self::bind).
    pub fn bind_any_v4(options: &UdpOptions) -> Result<UdpLink, UdpLinkError> {
        UdpLink::bind(Ipv4Addr::UNSPECIFIED.into(), options)
    }

    /// Binds UDP port 4791 of every IPv6 address of this machine.
    ///
    /// # Errors
    /// See [`bind`](Self::bind).
    pub fn bind_any_v6(options: &UdpOptions) -> Result<UdpLink, UdpLinkError> {
        UdpLink::bind(Ipv6Addr::UNSPECIFIED.into(), options)
    }
}

/// What a packet takes of [`LinkInfo::window`] at the least: a shorter one costs the kernel hardly less.
pub const MIN_CHARGE: usize = 1024;

/// What may be in flight to a receive buffer that the kernel says is `rcvbuf` bytes.
///
/// The kernel charges a packet with the memory it takes, not its length. Measured on Linux 6.18, loopback,
/// as length over charge:
///
/// | payload            | 4096 | 2048 | 1024 | 512  | 256  | 64   | 8    |
/// | ------------------ | ---- | ---- | ---- | ---- | ---- | ---- | ---- |
/// | singly             | 0.48 | 0.46 | 0.45 | 0.41 | 0.21 | 0.10 | 0.03 |
/// | in bursts of 15    | 0.97 | 0.96 | 0.95 | 0.90 | 0.83 | 0.59 | 0.30 |
///
/// (In a burst, 830 bytes are shared by all; a single packet has them and a power of two to itself.) Up to a
/// quarter of the buffer stays charged with what has been read already. So with 0.45 of three quarters a
/// whole window of full packets fits even if none is coalesced; shorter ones need [`MIN_CHARGE`].
///
/// A buffer beyond twice [`UdpOptions::buffer`] (the kernel doubles what it is asked for) is for what nobody acknowledges.
fn window(rcvbuf: usize) -> usize {
    rcvbuf / 3
}

/// Whether packets that were joined on the way are not all of one seat: the kernel went by the first.
fn has_strangers(burst: &RxBurst<'_>, seat: Seat) -> bool {
    burst.data.len() > burst.segment && burst.packets().any(|(_, packet)| !seat.has(steer::seat_byte(packet)))
}

/// Whether an error says that there is no way to the peer, or nobody there.
fn is_unreachable(code: i32) -> bool {
    matches!(
        code,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENETDOWN
            | libc::ENONET
            | libc::EADDRNOTAVAIL
    )
}

impl Link for UdpLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    fn transmit(&mut self, _now: Instant, queue: &TxQueue) -> io::Result<()> {
        self.sender.transmit(&self.socket, &self.local, queue)
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        if self.watch.as_ref().is_some_and(Watch::is_gone) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        let own = match &self.tenancy {
            None => self.receiver.receive(&self.socket, &self.local, sink)?,
            Some(tenancy) => self.receiver.receive(&self.socket, &self.local, &mut |burst| {
                if has_strangers(&burst, tenancy.seat()) {
                    tenancy.stop_coalescing();
                }
                sink(burst);
            })?,
        };
        let asked = self.claims.as_mut().map_or(0, |claims| claims.receive(now, sink));
        Ok(own + asked + self.groups.receive(sink)?)
    }

    fn seat(&self) -> Seat {
        self.tenancy.as_ref().map_or(Seat::WHOLE, |tenancy| tenancy.seat())
    }

    fn claim(&mut self, service: ServiceId, address: Option<IpAddr>) -> Result<(), ClaimError> {
        self.claims.as_mut().map_or(Ok(()), |claims| claims.claim(service, address))
    }

    fn release(&mut self, service: ServiceId, _address: Option<IpAddr>) {
        if let Some(claims) = &mut self.claims {
            claims.release(service);
        }
    }

    fn join(&mut self, _: Instant, group: IpAddr) -> Result<(), JoinError> {
        self.groups.join(group, (&self.socket, &self.local), &self.options, &self.epoll)
    }

    fn leave(&mut self, group: IpAddr) {
        self.groups.leave(group, (&self.socket, &self.local));
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn group_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.0.as_fd())
    }

    fn is_up(&mut self) -> bool {
        self.watch.as_mut().is_none_or(Watch::is_up)
    }

    fn state_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    fn counters(&self) -> LinkCounters {
        let mut all = self.sender.counters;
        for received in [self.receiver.counters, self.groups.counters()] {
            all.tx_unreachable += received.tx_unreachable;
            all.rx_malformed += received.rx_malformed;
            all.rx_overflow += received.rx_overflow;
        }
        all.rx_overflow += socket::overflowed(&self.socket);
        all.rx_foreign += self.claims.as_ref().map_or(0, Claims::foreign);
        all
    }
}
