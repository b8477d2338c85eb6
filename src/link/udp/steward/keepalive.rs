//! The sockets of one address, and the descriptor that keeps them open.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, getsockname, socketpair, sockopt};

use super::super::{UdpLinkError, socket, steer};
use super::gsi_listener::GsiListener;
use super::{BindAddr, message};
use crate::nic::QpnPartition;
use crate::wire::ROCE_PORT;

/// Descriptor keepalive: keeps all sockets of an address open, by a queued message that carries them and is
/// never received.
pub(super) struct FdKeepalive(OwnedFd);

impl FdKeepalive {
    fn new(sockets: &[OwnedFd]) -> io::Result<FdKeepalive> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (to, from) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
        message::send(&to, &"sockets", &sockets)?;
        Ok(FdKeepalive(from))
    }

    pub fn from_fd(fd: OwnedFd) -> FdKeepalive {
        FdKeepalive(fd)
    }

    /// Returns descriptors of all the sockets, in the order in which they were bound.
    pub fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        let all = message::receive(&self.0, true)?.map(|(_, sockets)| sockets).unwrap_or_default();
        if all.len() == QpnPartition::COUNT {
            Ok(all)
        } else {
            Err(io::Error::other("not a keepalive descriptor"))
        }
    }

    /// Makes the kernel deliver packets as received, not coalesced: the kernel steers a coalesced datagram by
    /// its first packet.
    pub fn stop_coalescing(&self) -> io::Result<()> {
        self.sockets()?.iter().try_for_each(socket::stop_coalescing)
    }
}

impl AsFd for FdKeepalive {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An address that the broker serves.
pub(super) struct ServedAddress {
    pub bind_addr: BindAddr,
    pub sockets: Vec<OwnedFd>,
    pub keepalive: FdKeepalive,
    pub gsi_listener: GsiListener,
}

impl ServedAddress {
    /// Binds the sockets of an address.
    pub fn bind(bind_addr: BindAddr) -> Result<ServedAddress, UdpLinkError> {
        let ip = bind_addr.ip;
        let opened = steer::open_group(ip, &bind_addr.options(), QpnPartition::COUNT)?;
        let sockets: Vec<OwnedFd> = opened.into_iter().map(|opened| opened.socket).collect();
        let keepalive = FdKeepalive::new(&sockets);
        let keepalive = keepalive.map_err(|source| UdpLinkError::System {
            ip,
            what: "creating the keepalive descriptor",
            source,
        })?;
        let gsi_listener = GsiListener::open(&bind_addr, &sockets[0])?;
        Ok(ServedAddress { bind_addr, sockets, keepalive, gsi_listener })
    }

    /// Takes over an address from a process that has a partition.
    pub fn take_over(bind_addr: BindAddr, keepalive: FdKeepalive) -> io::Result<ServedAddress> {
        let sockets = keepalive.sockets()?;
        let is_valid = |socket: &OwnedFd| {
            let bound = getsockname(socket).ok().and_then(|at| SocketAddr::try_from(at).ok());
            let is_address = bound.is_some_and(|at| (at.ip(), at.port()) == (bind_addr.ip, ROCE_PORT));
            is_address && sockopt::socket_type(socket) == Ok(SocketType::DGRAM)
        };
        if !sockets.iter().all(is_valid) {
            return Err(io::Error::other(
                "the keepalive descriptor carries other sockets than those of the address",
            ));
        }
        let gsi_listener = GsiListener::open(&bind_addr, &sockets[0]).map_err(io::Error::other)?;
        Ok(ServedAddress { bind_addr, sockets, keepalive, gsi_listener })
    }
}
