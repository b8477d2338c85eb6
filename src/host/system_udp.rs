//! UDP sockets that a preloaded library cannot replace. A library that overrides `socket` to turn a program's
//! sockets into RDMA connections would also catch the NIC's own sockets. The sockets created here bypass it:
//! they come from the system call itself, and since the library does not know their descriptors, it passes
//! other calls on them to the kernel.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// Creates an unbound UDP socket of the same IP version as `like`.
pub(crate) fn unbound(like: IpAddr, flags: SocketFlags) -> io::Result<OwnedFd> {
    let family = if like.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, SocketType::DGRAM, flags | SocketFlags::CLOEXEC, None)?)
}

/// Creates a UDP socket bound to `to`.
pub(crate) fn bound(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = unbound(to.ip(), SocketFlags::empty())?;
    bind(&socket, &to)?;
    Ok(socket.into())
}

/// Returns the address of a socket, on the interface with the given index if the address is ambiguous without
/// one.
pub(crate) fn socket_addr(ip: IpAddr, port: u16, ifindex: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if needs_scope(ip) => SocketAddrV6::new(v6, port, 0, ifindex).into(),
        _ => (ip, port).into(),
    }
}

/// Reports whether an address is ambiguous without an interface: IPv6 link-local unicast, or IPv6 multicast
/// with interface-local or link-local scope.
pub(crate) fn needs_scope(ip: IpAddr) -> bool {
    let IpAddr::V6(ip) = ip else { return false };
    ip.is_unicast_link_local() || ip.is_multicast() && ip.octets()[1] & 0xf <= 2
}
