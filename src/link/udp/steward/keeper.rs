//! The sockets of one address, and the descriptor that keeps them open.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, getsockname, socketpair, sockopt};

use super::super::{UdpLinkError, socket, steer};
use super::reception::Reception;
use super::{Place, message};
use crate::nic::Seat;
use crate::wire::ROCE_PORT;

/// Descriptor keepalive: keeps all sockets of an address open, by a queued message that carries them and is
/// never received.
pub(super) struct Keeper(OwnedFd);

impl Keeper {
    fn new(sockets: &[OwnedFd]) -> io::Result<Keeper> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (to, from) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
        message::send(&to, &"sockets", &sockets)?;
        Ok(Keeper(from))
    }

    pub fn from_fd(fd: OwnedFd) -> Keeper {
        Keeper(fd)
    }

    /// Returns descriptors of all the sockets, in the order in which they were bound.
    pub fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        let all = message::receive(&self.0, true)?.map(|(_, sockets)| sockets).unwrap_or_default();
        if all.len() == Seat::COUNT {
            Ok(all)
        } else {
            Err(io::Error::other("what was handed over is no keeper"))
        }
    }

    /// Makes the kernel deliver packets as received, not coalesced: a coalesced datagram goes where its first
    /// packet belongs.
    pub fn stop_coalescing(&self) -> io::Result<()> {
        self.sockets()?.iter().try_for_each(socket::stop_coalescing)
    }
}

impl AsFd for Keeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An address that the broker serves.
pub(super) struct Held {
    pub place: Place,
    pub sockets: Vec<OwnedFd>,
    pub keeper: Keeper,
    pub reception: Reception,
}

impl Held {
    /// Binds the sockets of an address.
    pub fn bind(place: Place) -> Result<Held, UdpLinkError> {
        let ip = place.ip;
        let opened = steer::open_group(ip, &place.options(), Seat::COUNT)?;
        let sockets: Vec<OwnedFd> = opened.into_iter().map(|opened| opened.socket).collect();
        let keeper = Keeper::new(&sockets);
        let keeper =
            keeper.map_err(|source| UdpLinkError::System { ip, what: "keeping the sockets", source })?;
        let reception = Reception::open(&place, &sockets[0])?;
        Ok(Held { place, sockets, keeper, reception })
    }

    /// Takes over an address from a process that has a partition.
    pub fn take_over(place: Place, keeper: Keeper) -> io::Result<Held> {
        let sockets = keeper.sockets()?;
        let is_one = |socket: &OwnedFd| {
            let bound = getsockname(socket).ok().and_then(|at| SocketAddr::try_from(at).ok());
            let is_there = bound.is_some_and(|at| (at.ip(), at.port()) == (place.ip, ROCE_PORT));
            is_there && sockopt::socket_type(socket) == Ok(SocketType::DGRAM)
        };
        if !sockets.iter().all(is_one) {
            return Err(io::Error::other("no sockets of its port"));
        }
        let reception = Reception::open(&place, &sockets[0]).map_err(io::Error::other)?;
        Ok(Held { place, sockets, keeper, reception })
    }
}
