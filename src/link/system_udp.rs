//! UDP sockets that a preloaded library cannot replace. A library that overrides `socket` to turn a program's
//! sockets into RDMA ones would also catch the NIC's own. These sockets are created by the system call
//! itself; the library does not know their descriptors, so all other calls on them reach the system.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind};

use crate::sys::socket::socket;

/// Creates an unbound UDP socket of the IP version of `like`.
pub(crate) fn unbound(like: IpAddr, flags: SockFlag) -> io::Result<OwnedFd> {
    let family = if like.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    socket(family, SockType::Datagram, flags)
}

/// Creates a UDP socket bound to `to`.
pub(crate) fn bound(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = unbound(to.ip(), SockFlag::empty())?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(socket.into())
}
