//! Setup of UDP sockets: options, buffer sizes, and the properties of the local address.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{MsgFlags, recv};
use pnet_datalink::NetworkInterface;
use rustix::io::Errno;
use rustix::net::{SocketFlags, bind};

use super::port_conflict::PortOwner;
use super::{Local, UdpLink, UdpLinkError, UdpOptions};
use crate::host::membership;
use crate::host::socket_calls::{
    get_option, interface_mtu, memory_info, set_option, set_receive_buffer, set_send_buffer,
};
use crate::host::system_udp::{self, socket_addr};
use crate::wire::{Flow, ROCE_PORT};

/// Initial hop limit of a socket, the same as in [`crate::wire::Flow::new`].
const HOP_LIMIT: u8 = 64;

/// `IPV6_MULTICAST_ALL` of linux/in6.h, which libc lacks.
const IPV6_MULTICAST_ALL: libc::c_int = 29;

/// IP header fields of the packets that a socket sends, unless control messages override them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IpFields {
    pub traffic_class: u8,
    pub hop_limit: u8,
}

impl IpFields {
    /// Header fields of a newly opened socket.
    pub const DEFAULT: IpFields = IpFields { traffic_class: 0, hop_limit: HOP_LIMIT };

    /// Returns the header fields that a flow requests. A hop limit of 0 is replaced by the default, because
    /// the kernel rejects it.
    pub fn of(flow: &Flow) -> IpFields {
        let hop_limit = if flow.hop_limit == 0 { HOP_LIMIT } else { flow.hop_limit };
        IpFields { traffic_class: flow.traffic_class, hop_limit }
    }

    /// Returns the header fields that packets to `dst` get: the socket's hop limit for multicast is separate,
    /// and keeps the default.
    pub fn to(self, dst: IpAddr) -> IpFields {
        if dst.is_multicast() { IpFields { hop_limit: HOP_LIMIT, ..self } } else { self }
    }

    /// Returns the level of the control messages for traffic class and hop limit, and their types. The socket
    /// options are the same, except that the IPv6 hop limit is [`libc::IPV6_UNICAST_HOPS`].
    pub fn names(is_ipv4: bool) -> (libc::c_int, libc::c_int, libc::c_int) {
        match is_ipv4 {
            true => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            false => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        }
    }
}

/// Sets the default header fields of the packets that a socket sends from now on.
pub(super) fn set_ip_fields(socket: &OwnedFd, is_ipv4: bool, ip_fields: IpFields) -> io::Result<()> {
    let (level, class, limit) = IpFields::names(is_ipv4);
    set(socket, level, class, ip_fields.traffic_class.into())?;
    set(socket, level, if is_ipv4 { limit } else { libc::IPV6_UNICAST_HOPS }, ip_fields.hop_limit.into())
}

/// An address of this machine.
pub(super) struct LocalAddress {
    /// The address, possibly link-local.
    pub ip: IpAddr,
    /// Name of the interface that has the address.
    pub interface: String,
    /// Index of the interface that has the address.
    pub index: u32,
}

/// A bound socket, with its properties.
pub(super) struct BoundSocket {
    pub socket: OwnedFd,
    pub local: Local,
    /// Smallest MTU of the interfaces that have the local addresses, in bytes.
    pub mtu: usize,
    /// Whether the kernel segments sent bursts (UDP GSO).
    pub segments: bool,
    /// Size of the receive buffer in bytes, against which the kernel charges received packets.
    pub rcvbuf: usize,
}

/// Opens a socket and binds it to `ip`. With `shared`, the socket joins the reuseport group of sockets that
/// this process has already bound.
pub(super) fn open(ip: IpAddr, options: &UdpOptions, shared: bool) -> Result<BoundSocket, UdpLinkError> {
    let fail = |what| UdpLinkError::system::<io::Error>(ip, what);
    let addresses = locals(ip, options.interface.as_deref());
    if options.interface.is_some() && addresses.is_empty() {
        return Err(UdpLinkError::NotLocal { ip });
    }
    let socket = new_socket(ip).map_err(fail("opening a socket"))?;
    configure(&socket, ip).map_err(fail("setting socket options"))?;
    let segments = options.segmentation && coalesces(&socket) && segments(&socket);
    let rcvbuf = set_receive_buffer(&socket, options.buffer.saturating_mul(RCVBUF_FACTOR))
        .map_err(fail("setting the receive buffer size"))?;
    set_send_buffer(&socket, options.buffer).map_err(fail("setting the send buffer size"))?;
    let local = addresses.iter().find(|l| l.ip == ip);
    if let Some(local) = local {
        membership::set_interface(&socket, ip, local.index)
            .map_err(fail("setting the multicast interface"))?;
    }
    if shared {
        share(&socket).map_err(fail("setting SO_REUSEPORT"))?;
    }
    if options.interface.is_some() && ip.is_ipv6() {
        // Allows binding an address for which duplicate address detection still runs.
        set(&socket, libc::IPPROTO_IPV6, libc::IPV6_FREEBIND, 1).map_err(fail("setting IPV6_FREEBIND"))?;
    }
    let address = socket_addr(ip, ROCE_PORT, local.map_or(0, |l| l.index));
    bind(&socket, &address).map_err(|error| match error {
        Errno::ADDRINUSE => UdpLinkError::InUse { ip, owner: PortOwner::find(ip, ROCE_PORT) },
        Errno::ADDRNOTAVAIL => UdpLinkError::NotLocal { ip },
        _ => fail("binding UDP port 4791")(error.into()),
    })?;
    let mtu = smallest_mtu(&socket, &addresses);
    Ok(BoundSocket { socket, local: Local { ip, addresses }, mtu, segments, rcvbuf })
}

/// Adopts a socket that another process has bound to `ip`: resets its header fields to the defaults, and
/// reads its properties.
pub(super) fn adopt(ip: IpAddr, socket: OwnedFd, options: &UdpOptions) -> Result<BoundSocket, UdpLinkError> {
    let fail = |what| UdpLinkError::system::<io::Error>(ip, what);
    set_ip_fields(&socket, ip.is_ipv4(), IpFields::DEFAULT).map_err(fail("setting socket options"))?;
    let read = |level, name| get_option::<libc::c_int>(&socket, level, name);
    // Coalescing is not changed: the processes that share the address decide about it.
    let segments = options.segmentation && read(libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
    let rcvbuf = read(libc::SOL_SOCKET, libc::SO_RCVBUF);
    let rcvbuf = rcvbuf.map_err(fail("reading the receive buffer size"))? as usize;
    let addresses = locals(ip, options.interface.as_deref());
    let mtu = smallest_mtu(&socket, &addresses);
    Ok(BoundSocket { socket, local: Local { ip, addresses }, mtu, segments, rcvbuf })
}

fn smallest_mtu(socket: &OwnedFd, addresses: &[LocalAddress]) -> usize {
    addresses.iter().filter_map(|l| interface_mtu(socket, &l.interface).ok()).min().unwrap_or(1500)
}

/// Enables the kernel's coalescing of received datagrams (UDP GRO), and reports whether that succeeded.
fn coalesces(socket: &OwnedFd) -> bool {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
}

/// Reports whether the kernel can segment sent bursts (UDP GSO).
fn segments(socket: &OwnedFd) -> bool {
    get_option::<libc::c_int>(socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
}

/// Buffer sizes and offloads that the kernel grants to a UDP link, as [`super::UdpLink::probe`] returns them.
/// The kernel reports twice the size that it grants, and sizes here are in that unit.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct UdpProbe {
    /// Granted receive buffer in bytes.
    pub receive_buffer: usize,
    /// Granted send buffer in bytes.
    pub send_buffer: usize,
    /// Requested receive buffer in bytes.
    pub requested_receive_buffer: usize,
    /// Requested send buffer in bytes.
    pub requested_send_buffer: usize,
    /// Maximum number of bytes in flight to a peer with the same receive buffer.
    pub window: usize,
    /// Whether the kernel segments sent bursts (UDP GSO).
    pub segmentation: bool,
    /// Whether the kernel coalesces received datagrams (UDP GRO).
    pub coalescing: bool,
}

impl UdpLink {
    /// Returns the buffer sizes and offloads that the kernel grants to a link with the given options, without
    /// binding an address.
    ///
    /// # Errors
    /// The error of the failed system call.
    pub fn probe(options: &UdpOptions) -> io::Result<UdpProbe> {
        let socket = new_socket(Ipv4Addr::LOCALHOST.into())?;
        let (coalescing, segmentation) = (coalesces(&socket), segments(&socket));
        let requested = options.buffer.saturating_mul(RCVBUF_FACTOR);
        let receive_buffer = set_receive_buffer(&socket, requested)?;
        Ok(UdpProbe {
            receive_buffer,
            send_buffer: set_send_buffer(&socket, options.buffer)?,
            requested_receive_buffer: requested.saturating_mul(2),
            requested_send_buffer: options.buffer.saturating_mul(2),
            window: super::window(receive_buffer, options),
            segmentation,
            coalescing,
        })
    }
}

/// Discards the queued datagrams, which were meant for another process. The number is limited, so that the
/// function returns even if a peer keeps sending.
pub(crate) fn drain(socket: &OwnedFd) {
    /// Limit, larger than the number of datagrams that fit into any receive buffer.
    const MAX_DATAGRAMS: usize = 1 << 20;
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
    for _ in 0..MAX_DATAGRAMS {
        if recv(socket.as_raw_fd(), &mut [], flags).is_err() {
            return;
        }
    }
}

/// Makes the kernel deliver datagrams individually instead of coalescing them (GRO).
pub(crate) fn stop_coalescing(socket: &OwnedFd) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 0)
}

/// Returns the local addresses for which a socket bound to `ip` receives packets, on `interface` or on all
/// interfaces.
fn locals(ip: IpAddr, interface: Option<&str>) -> Vec<LocalAddress> {
    let any = ip.is_unspecified();
    let mut found = Vec::new();
    let is_used = |i: &NetworkInterface| i.is_up() && interface.is_none_or(|name| i.name == name);
    for i in pnet_datalink::interfaces().into_iter().filter(is_used) {
        // All of 127/8 is local, although an interface lists only one address of it.
        let own = i.ips.iter().filter(|net| match any {
            true => net.is_ipv4() == ip.is_ipv4(),
            false => net.ip() == ip || ip.is_loopback() && net.ip().is_loopback() && net.contains(ip),
        });
        found.extend(own.map(|net| LocalAddress {
            ip: if any { net.ip() } else { ip },
            interface: i.name.clone(),
            index: i.index,
        }));
    }
    if !any {
        found.truncate(1);
    }
    found
}

/// Allows further sockets of the same user to bind the same address and port (SO_REUSEPORT).
pub(super) fn share(socket: &OwnedFd) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
}

/// Opens a socket that is bound to a multicast group and has joined it on one interface. Other sockets on
/// this machine may join the same group; each receives all packets sent to it.
pub(super) fn open_group(group: IpAddr, ifindex: u32, options: &UdpOptions) -> io::Result<OwnedFd> {
    let socket = new_socket(group)?;
    configure(&socket, group)?;
    if options.segmentation {
        // Without GRO, packets arrive singly.
        let _ = set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    set_receive_buffer(&socket, options.buffer)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    // An IPv6 socket would otherwise receive the group's packets from every interface on which any process
    // has joined it.
    set(&socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, ifindex as libc::c_int)?;
    bind(&socket, &socket_addr(group, ROCE_PORT, ifindex))?;
    membership::join(&socket, group, ifindex)?;
    Ok(socket)
}

fn new_socket(ip: IpAddr) -> io::Result<OwnedFd> {
    system_udp::unbound(ip, SocketFlags::NONBLOCK)
}

/// Disables fragmentation, which also makes the kernel number IPv4 identifications 0, 1, 2... in each burst,
/// and enables the control messages that report header fields of received packets.
fn configure(socket: &OwnedFd, ip: IpAddr) -> io::Result<()> {
    let wildcard = ip.is_unspecified();
    if ip.is_ipv4() {
        let set = |name, value| set(socket, libc::IPPROTO_IP, name, value);
        set(libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set(libc::IP_TTL, HOP_LIMIT.into())?;
        set(libc::IP_MULTICAST_TTL, HOP_LIMIT.into())?;
        // Only groups that this socket has joined: a wildcard socket would otherwise receive every group that
        // any process has joined.
        set(libc::IP_MULTICAST_ALL, 0)?;
        set(libc::IP_RECVTOS, 1)?;
        set(libc::IP_RECVTTL, 1)?;
        set(libc::IP_PKTINFO, wildcard.into())
    } else {
        let set6 = |name, value| set(socket, libc::IPPROTO_IPV6, name, value);
        set6(libc::IPV6_V6ONLY, 1)?;
        set6(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        set6(libc::IPV6_DONTFRAG, 1)?;
        set6(libc::IPV6_UNICAST_HOPS, HOP_LIMIT.into())?;
        set6(libc::IPV6_MULTICAST_HOPS, HOP_LIMIT.into())?;
        set6(IPV6_MULTICAST_ALL, 0)?;
        set6(libc::IPV6_RECVTCLASS, 1)?;
        set6(libc::IPV6_RECVHOPLIMIT, 1)?;
        set6(libc::IPV6_RECVPKTINFO, wildcard.into())?;
        // Most RoCEv2 senders omit the UDP checksum, which IPv6 does not allow by default.
        set(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)
    }
}

/// Requested receive buffer size, as a multiple of [`UdpOptions::buffer`]. UC and UD have no
/// acknowledgements, so the buffer must hold everything that a sender on this machine sends while the
/// receiver waits for a CPU. Only unread data occupies memory.
const RCVBUF_FACTOR: usize = 4;

/// Returns the number of datagrams that the kernel dropped because the receive buffer was full.
pub(super) fn dropped_datagrams(socket: &OwnedFd) -> u64 {
    /// Index of SK_MEMINFO_DROPS, the last of the nine values of SO_MEMINFO.
    const DROPS: usize = 8;
    memory_info(socket)[DROPS].into()
}

fn set(socket: &OwnedFd, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    set_option(socket, level, name, &value)
}
