//! Keepalive descriptor: keeps all sockets for an address open, in every process that has a partition.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::host::unix_sockets::fd_message;
use crate::link::udp;
use crate::nic::QpnPartition;

/// Unix socket with a queued message that carries all sockets for an address. The message is only peeked at,
/// never removed.
pub struct FdKeepalive(pub OwnedFd);

impl FdKeepalive {
    pub fn new(sockets: &[OwnedFd]) -> io::Result<FdKeepalive> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (to, from) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
        fd_message::send(&to, &"sockets", &sockets)?;
        Ok(FdKeepalive(from))
    }

    /// Returns descriptors of all the sockets, in the order in which they were bound.
    pub fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        let all = fd_message::receive(&self.0, true)?.map(|(_, sockets)| sockets).unwrap_or_default();
        let is_whole = all.len() == QpnPartition::COUNT;
        is_whole.then_some(all).ok_or_else(|| io::Error::other("not a keepalive descriptor"))
    }

    /// Disables receive coalescing (GRO) on all sockets, because the kernel steers a coalesced datagram by
    /// its first packet.
    pub fn stop_coalescing(&self) -> io::Result<()> {
        self.sockets()?.iter().try_for_each(udp::stop_coalescing)
    }
}
