//! UDP sockets that a preloaded library cannot replace. A library that overrides `socket` to turn a program's
//! sockets into RDMA connections would also catch the NIC's own sockets. The sockets created here bypass it:
//! they come from the system call itself, and since the library does not know their descriptors, it passes
//! other calls on them to the kernel.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
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
