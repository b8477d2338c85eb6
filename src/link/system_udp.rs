//! UDP sockets that are the system's whatever a preloaded library makes of `socket`: one that makes a program's sockets those
//! of RDMA would make the NIC's own so, too. These are made by the system call itself; of their descriptors such a library
//! knows nothing, so all other calls reach the system.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// One that is not bound, for addresses of this one's version.
pub(crate) fn unbound(like: IpAddr, flags: SocketFlags) -> io::Result<OwnedFd> {
    let family = if like.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, SocketType::DGRAM, flags | SocketFlags::CLOEXEC, None)?)
}

/// One that is bound.
pub(crate) fn bound(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = unbound(to.ip(), SocketFlags::empty())?;
    bind(&socket, &to)?;
    Ok(socket.into())
}
