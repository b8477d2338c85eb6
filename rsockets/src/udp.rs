//! UDP socket of a datagram rsocket, through which peers resolve each other's queue pairs.

use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{self, ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, sockopt};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// A UDP socket. Addresses passed to it must have the socket's address family.
pub(crate) struct UdpSocket {
    fd: OwnedFd,
    is_v6: bool,
}

/// A received datagram: its length, its source, and the local address to which it was sent.
pub(crate) struct UdpDatagram {
    pub len: usize,
    pub from: SocketAddr,
    pub to: Option<IpAddr>,
}

fn errno(e: Errno) -> c_int {
    e as c_int
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| SocketAddrV4::from(*v4).into());
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into()))
}

impl UdpSocket {
    /// Creates an unbound socket.
    ///
    /// # Errors
    /// An error number.
    pub(crate) fn new(is_v6: bool) -> Result<UdpSocket, c_int> {
        let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        // By rustix, which makes the system call itself: a preloaded library may map `socket` to `rsocket`.
        let fd = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let fd = fd.map_err(|e| e.raw_os_error())?;
        // Needed to respond from the address that a datagram was sent to.
        match is_v6 {
            true => socket::setsockopt(&fd, sockopt::Ipv6RecvPacketInfo, &true),
            false => socket::setsockopt(&fd, sockopt::Ipv4PacketInfo, &true),
        }
        .map_err(errno)?;
        Ok(UdpSocket { fd, is_v6 })
    }

    /// Binds the socket to an address.
    ///
    /// # Errors
    /// An error number.
    pub(crate) fn bind(&self, to: SocketAddr, reuses_address: bool, only_v6: bool) -> Result<(), c_int> {
        socket::setsockopt(&self.fd, sockopt::ReuseAddr, &reuses_address).map_err(errno)?;
        if self.is_v6 {
            socket::setsockopt(&self.fd, sockopt::Ipv6V6Only, &only_v6).map_err(errno)?;
        }
        socket::bind(self.fd.as_raw_fd(), &SockaddrStorage::from(to)).map_err(errno)
    }

    /// Returns the local address, with port 0 if the socket is not bound.
    ///
    /// # Errors
    /// An error number.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr, c_int> {
        let storage: SockaddrStorage = socket::getsockname(self.fd.as_raw_fd()).map_err(errno)?;
        address(&storage).ok_or(libc::EAFNOSUPPORT)
    }

    /// Sends a datagram gathered from several parts, from the given local address or, without one, from an
    /// address that the kernel selects.
    ///
    /// # Errors
    /// An error number; `EAGAIN` if the send buffer is full.
    pub(crate) fn send(
        &self,
        parts: &[IoSlice<'_>],
        to: SocketAddr,
        from: Option<IpAddr>,
    ) -> Result<(), c_int> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let (fd, to) = (self.fd.as_raw_fd(), SockaddrStorage::from(to));
        let v4 = |ip: Ipv4Addr| libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
        let v6 = |ip: Ipv6Addr| libc::in6_addr { s6_addr: ip.octets() };
        let sent = match (from, self.is_v6) {
            (None, _) => socket::sendmsg(fd, parts, &[], flags, Some(&to)),
            (Some(IpAddr::V4(ip)), false) => {
                let none = v4(Ipv4Addr::UNSPECIFIED);
                let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: v4(ip), ipi_addr: none };
                socket::sendmsg(fd, parts, &[ControlMessage::Ipv4PacketInfo(&info)], flags, Some(&to))
            }
            (Some(IpAddr::V6(_)), false) => return Err(libc::EAFNOSUPPORT),
            (Some(ip), true) => {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                let info = libc::in6_pktinfo { ipi6_addr: v6(ip), ipi6_ifindex: 0 };
                socket::sendmsg(fd, parts, &[ControlMessage::Ipv6PacketInfo(&info)], flags, Some(&to))
            }
        };
        sent.map(|_| ()).map_err(errno)
    }

    /// Receives the next datagram. The outer `Option` is `None` if no datagram is pending; the inner one is
    /// `None` if the datagram was longer than `buffer` and was dropped.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Option<Option<UdpDatagram>> {
        let mut control = nix::cmsg_space!(libc::in6_pktinfo, libc::in_pktinfo);
        let mut parts = [IoSliceMut::new(buffer)];
        let fd = self.fd.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT;
        loop {
            match socket::recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), flags) {
                Ok(message) if message.flags.contains(MsgFlags::MSG_TRUNC) => return Some(None),
                Ok(message) => {
                    let to = message.cmsgs().ok().and_then(|mut all| {
                        all.find_map(|control| match control {
                            ControlMessageOwned::Ipv4PacketInfo(info) => {
                                Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into())
                            }
                            ControlMessageOwned::Ipv6PacketInfo(info) => {
                                Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into())
                            }
                            _ => None,
                        })
                    });
                    let from = message.address.as_ref().and_then(address);
                    return Some(from.map(|from| UdpDatagram { len: message.bytes, from, to }));
                }
                Err(Errno::EINTR) => {}
                Err(_) => return None,
            }
        }
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
