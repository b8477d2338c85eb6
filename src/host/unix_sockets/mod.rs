//! Unix sockets between the processes of this host: their names, the descriptors that they carry, and the
//! users at their ends.
#![forbid(unsafe_code)]

pub(crate) mod fd_message;
pub(crate) mod socket_dir;
mod socket_names;
pub(crate) mod socket_table;

use std::os::fd::OwnedFd;

use nix::sys::socket::sockopt::PeerCredentials;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

pub(crate) use socket_names::SocketNames;

/// Reports whether messages from a process of the given user are trusted. Root and this process's own user
/// always are, because they can do anything that this process can.
pub(crate) fn is_trusted(user: u32, any_user: bool) -> bool {
    any_user || user == 0 || is_own_user(user)
}

pub(crate) fn is_own_user(user: u32) -> bool {
    user == nix::unistd::geteuid().as_raw()
}

/// Returns the user of the process at the other end of a Unix connection. The process may be in another PID
/// namespace, such as another container of a pod: its process ID is then 0, which rustix does not accept.
pub(crate) fn peer_user(connection: &OwnedFd) -> nix::Result<u32> {
    nix::sys::socket::getsockopt(connection, PeerCredentials).map(|peer| peer.uid())
}

/// Opens a non-blocking Unix datagram socket.
pub(crate) fn datagram_socket() -> rustix::io::Result<OwnedFd> {
    socket(SocketType::DGRAM)
}

/// Opens a non-blocking Unix seqpacket socket, whose connections preserve message boundaries.
pub(crate) fn seqpacket_socket() -> rustix::io::Result<OwnedFd> {
    socket(SocketType::SEQPACKET)
}

/// Opens a non-blocking Unix stream socket.
#[cfg(feature = "live")]
pub(crate) fn stream_socket() -> rustix::io::Result<OwnedFd> {
    socket(SocketType::STREAM)
}

fn socket(kind: SocketType) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}
