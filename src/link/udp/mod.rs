//! RoCEv2 over a plain UDP socket, which needs no root privileges, no capabilities and no dedicated
//! interface.
//!
//! The kernel builds the IP and UDP headers, which the ICRC covers, so the sender has to predict them: an
//! unconnected socket that never fragments sends identification 0 with don't-fragment set, and 0, 1, 2... in
//! the segments of one call. A received datagram does not show its identification;
//! [`crate::wire::icrc::identify`] derives it from the ICRC.

mod bind_addr;
mod cmsg;
mod groups;
mod interface;
mod port_conflict;
mod recv;
mod send;
mod socket;
pub(crate) mod steer;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub use port_conflict::PortOwner;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::{JoinError, Link, LinkCounters, LinkInfo, Multicast, PortState};
use crate::burst::{BurstLimits, RxBurst, TxQueue};
use crate::host::link_state::LinkStateMonitor;
pub(crate) use crate::host::system_udp::needs_scope;
use crate::nic::ShardId;
use crate::sys::setters::setters;
use crate::transport::Instant;
use crate::wire::{Flow, ROCE_PORT};
pub(crate) use bind_addr::BindAddr;
use groups::Groups;
pub(crate) use interface::{combine, find as find_interface};
use recv::Receiver;
use send::Sender;
pub use socket::UdpProbe;
use socket::{BoundSocket, LocalAddress};
pub(crate) use socket::{drain, stop_coalescing};

/// Options of a [`UdpLink`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UdpOptions {
    /// Size in bytes to request for the send buffer; four times as much is requested for the receive buffer.
    /// An unprivileged process gets at most `net.core.wmem_max` and `rmem_max`.
    pub buffer: usize,
    /// Whether to use the kernel's segmentation and coalescing (UDP GSO and GRO) where available, which is
    /// ten times as fast.
    pub segmentation: bool,
    /// Name of the interface that has the address. Needed if several interfaces may have the same address,
    /// as with IPv6 link-local addresses. It also allows the address to be tentative, while duplicate
    /// address detection (DAD) is running; packets sent before DAD completes are lost.
    pub interface: Option<String>,
}

setters!(UdpOptions { buffer: usize, segmentation: bool } optional { interface: String });

impl Default for UdpOptions {
    fn default() -> UdpOptions {
        UdpOptions { buffer: 8 << 20, segmentation: true, interface: None }
    }
}

/// Reason why a [`UdpLink`] could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpLinkError {
    /// The port is in use by another process or by the kernel.
    #[error("UDP port 4791 of {ip} is in use by {owner}: {}", owner.remedy())]
    InUse {
        /// The requested address.
        ip: IpAddr,
        /// The process or kernel module that uses the port.
        owner: PortOwner,
    },
    /// The address is not assigned to this machine.
    #[error("{ip} is not an address of this machine (network namespace): `ip address` lists its addresses")]
    NotLocal {
        /// The requested address.
        ip: IpAddr,
    },
    /// The interface does not exist, is down or has no IP address.
    #[error(
        "interface '{name}' does not exist, is down or has no IP address: `ip address` lists the interfaces"
    )]
    NoInterface {
        /// The requested name.
        name: String,
    },
    /// An unexpected system call failure.
    #[error("cannot create a UDP link on {ip}: {what} failed: {source}")]
    System {
        /// The requested address.
        ip: IpAddr,
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

impl UdpLinkError {
    /// Returns a function that makes the error of a failed system call.
    pub(crate) fn system<E: Into<io::Error>>(
        ip: IpAddr,
        what: &'static str,
    ) -> impl FnOnce(E) -> UdpLinkError {
        move |source| UdpLinkError::System { ip, what, source: source.into() }
    }
}

/// Bind address of a socket, unspecified for a wildcard socket, and the local addresses that it covers.
struct Local {
    ip: IpAddr,
    /// Local addresses for which the socket receives packets.
    addresses: Vec<LocalAddress>,
}

impl Local {
    /// Returns the scope ID for a flow's destination: the source address's interface if the destination needs
    /// a scope, otherwise 0.
    fn scope_of(&self, flow: &Flow) -> u32 {
        if needs_scope(flow.dst) { self.interface_of(flow.src) } else { 0 }
    }

    /// Returns the index of the interface that has the address `ip`, or 0 if there is none.
    fn interface_of(&self, ip: IpAddr) -> u32 {
        self.addresses.iter().find(|own| own.ip == ip).map_or(0, |own| own.index)
    }

    /// Iterates over the distinct interface indices.
    fn interface_indices(&self) -> impl Iterator<Item = u32> {
        let mut indices: Vec<u32> = self.addresses.iter().map(|own| own.index).collect();
        indices.sort_unstable();
        indices.dedup();
        indices.into_iter()
    }
}

/// A [`Link`] over UDP port 4791, on one local address or on all addresses of one IP version (wildcard).
pub struct UdpLink {
    socket: OwnedFd,
    info: LinkInfo,
    local: Local,
    sender: Sender,
    receiver: Receiver,
    groups: Groups,
    /// Epoll set of the group sockets: a caller polls this one descriptor, whatever groups are joined. The
    /// link's own socket is not in it: that would cost the kernel a wake-up per datagram, even when no
    /// thread sleeps.
    epoll: Epoll,
    options: UdpOptions,
    /// Link state monitor (rtnetlink). It has no interfaces if none has the address, or if the link of
    /// another shard or address monitors the interface.
    link_state: LinkStateMonitor,
}

impl UdpLink {
    /// Binds UDP port 4791 on `ip`, which may be the wildcard address.
    ///
    /// # Errors
    /// If the port is in use (an address belongs to one process), the address is not local, or the system is
    /// out of resources.
    pub fn bind(ip: IpAddr, options: &UdpOptions) -> Result<UdpLink, UdpLinkError> {
        UdpLink::new(options, socket::open(ip, options, false)?)
    }

    /// Binds UDP port 4791 on `ip` with `count` sockets, one per shard of a NIC
    /// ([`Context::open_shards`](crate::verbs::Context::open_shards)). Each socket receives the packets for
    /// the queue pairs whose numbers have the shard's index in their lowest bits. `count` is rounded up to a
    /// power of two and limited to 64.
    ///
    /// # Errors
    /// See [`bind`](Self::bind).
    pub fn bind_shards(ip: IpAddr, options: &UdpOptions, count: usize) -> Result<Vec<UdpLink>, UdpLinkError> {
        let opened = steer::open(ip, options, count.next_power_of_two().min(ShardId::MAX_COUNT))?;
        let mut links: Vec<UdpLink> =
            opened.into_iter().map(|opened| UdpLink::new(options, opened)).collect::<Result<_, _>>()?;
        // The first link monitors the state of the port for all shards.
        links.iter_mut().skip(1).for_each(UdpLink::ignore_link_state);
        Ok(links)
    }

    fn new(options: &UdpOptions, opened: BoundSocket) -> Result<UdpLink, UdpLinkError> {
        let BoundSocket { socket, local, mtu, segments, rcvbuf } = opened;
        let ip = local.ip;
        let mut addresses: Vec<IpAddr> = local.addresses.iter().map(|own| own.ip).collect();
        if ip.is_unspecified() {
            // Programs that do not choose a GID use the first one, which therefore should not be a loopback
            // address.
            addresses.sort_by_key(IpAddr::is_loopback);
        } else if addresses.is_empty() {
            addresses.push(ip);
        }
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(UdpLinkError::system(ip, "creating an epoll instance"))?;
        // Some local addresses belong to no interface (AnyIP), so there is no link state to monitor.
        let link_state = LinkStateMonitor::open(local.addresses.iter().map(|own| own.index));
        Ok(UdpLink {
            info: LinkInfo {
                mtu,
                src_port: Some(ROCE_PORT),
                burst: if segments { BurstLimits::SEGMENTED } else { BurstLimits::SINGLE },
                window: window(rcvbuf, options),
                ..LinkInfo::new(format!("udp {ip}"), addresses)
            },
            local,
            sender: Sender::new(segments),
            receiver: Receiver::new(),
            groups: Groups::default(),
            epoll,
            options: options.clone(),
            link_state,
            socket,
        })
    }

    /// Creates a link over a socket that another process has bound to `ip` and passed to this one.
    pub(crate) fn from_socket(
        ip: IpAddr,
        socket: OwnedFd,
        options: &UdpOptions,
    ) -> Result<UdpLink, UdpLinkError> {
        UdpLink::new(options, socket::adopt(ip, socket, options)?)
    }

    /// Stops monitoring the link state; the link then always counts as up.
    pub(crate) fn ignore_link_state(&mut self) {
        self.link_state = LinkStateMonitor::default();
    }

    /// Returns the descriptor of the socket, on which all but multicast packets arrive.
    pub(crate) fn socket_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Makes the descriptor for multicast packets also readable whenever `fd` is readable.
    pub(crate) fn add_to_group_fd(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }

    /// Receives from another socket bound to the link's address, as [`receive`](Link::receive) does from the
    /// link's own socket.
    pub(crate) fn receive_from(
        &mut self,
        socket: &OwnedFd,
        sink: &mut dyn FnMut(RxBurst<'_>),
    ) -> io::Result<usize> {
        self.receiver.receive(socket, &self.local, sink)
    }
}

/// Minimum number of bytes of [`LinkInfo::window`] to charge for a packet: the kernel charges hardly less for
/// a shorter one.
pub const MIN_CHARGE: usize = 1024;

/// Returns the window, in bytes, for a receive buffer whose size the kernel reports as `rcvbuf`.
///
/// The kernel charges a packet for the memory it occupies, not for its length. Measured on Linux 6.18,
/// loopback, as length over charge:
///
/// | payload            | 4096 | 2048 | 1024 | 512  | 256  | 64   | 8    |
/// | ------------------ | ---- | ---- | ---- | ---- | ---- | ---- | ---- |
/// | singly             | 0.48 | 0.46 | 0.45 | 0.41 | 0.21 | 0.10 | 0.03 |
/// | in bursts of 15    | 0.97 | 0.96 | 0.95 | 0.90 | 0.83 | 0.59 | 0.30 |
///
/// (The packets of a burst share 830 bytes of overhead; a single packet has this overhead to itself and is
/// rounded up to a power of two.) Up to a quarter of the buffer stays charged for data that has already been
/// read. With a ratio of 0.45 and three quarters of the buffer, a whole window of full packets fits even if
/// none is coalesced; shorter packets need [`MIN_CHARGE`].
///
/// A buffer beyond twice [`UdpOptions::buffer`] (the kernel doubles the requested size) does not enlarge the
/// window: the excess is for unacknowledged traffic (UC and UD).
fn window(rcvbuf: usize, options: &UdpOptions) -> usize {
    rcvbuf.min(2 * options.buffer) / 3
}

/// Reports whether an error code means that there is no route to the peer, or that nothing listens on its
/// port.
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

    fn receive(&mut self, _now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        self.link_state.check_exists()?;
        let own = self.receiver.receive(&self.socket, &self.local, sink)?;
        Ok(own + self.groups.receive(sink)?)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.as_fd(), self.epoll.0.as_fd()]
    }

    own_capabilities!(multicast: Multicast, port_state: PortState);
}

impl Multicast for UdpLink {
    fn join(&mut self, _: Instant, group: IpAddr) -> Result<(), JoinError> {
        self.groups.join(group, (&self.socket, &self.local), &self.options, &self.epoll)
    }

    fn leave(&mut self, group: IpAddr) {
        self.groups.leave(group, (&self.socket, &self.local));
    }
}

impl PortState for UdpLink {
    fn is_up(&mut self) -> bool {
        self.link_state.is_up()
    }

    fn state_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.link_state.fd()
    }

    fn counters(&mut self) -> LinkCounters {
        let mut all = self.sender.counters;
        all += self.receiver.counters;
        all += self.groups.counters();
        all.rx_overflow += socket::dropped_datagrams(&self.socket);
        all
    }
}
