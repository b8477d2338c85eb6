//! Connections of rings, by the role of this process.

use std::net::IpAddr;

use crate::burst::PeerPath;
use crate::rings::memory::{RingReader, RingWriter};
use crate::rings::routes::Destination;
use crate::sys::fork::CloseOnForkFd;
use crate::sys::quota::Share;
use crate::transport::Instant;

/// State and purpose of a connection.
pub(super) enum Role {
    /// A process has connected, and has not yet passed its ring.
    Pending,
    Reader {
        ring: RingReader,
        has_ended: bool,
        _memory: Share,
    },
    Writer(Writer),
}

/// Writing end of a ring.
pub(super) struct Writer {
    pub ring: RingWriter,
    pub to: Destination,
    /// Whether the reader has confirmed the ring.
    pub is_confirmed: bool,
    pub room: Room,
}

/// Room in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// For another turn.
    Enough,
    /// Not for another turn. The reader has been at `position` at least since the time `since`. The NIC holds
    /// back packets.
    Full { since: Instant, position: u64 },
    /// Not for another turn, and the reader has made no progress for
    /// [`STALL_TIMEOUT`](super::write::STALL_TIMEOUT). The NIC does not hold back packets, and those that do
    /// not fit are lost.
    Stalled,
}

pub(super) struct Connection {
    pub socket: CloseOnForkFd,
    pub role: Role,
    pub _counted: Share,
}

/// Returns the writer of a connection.
pub(super) fn writer_of(connections: &mut [Option<Connection>], index: usize) -> Option<&mut Writer> {
    match connections.get_mut(index)? {
        Some(Connection { role: Role::Writer(writer), .. }) => Some(writer),
        _ => None,
    }
}

pub(super) fn path_to(src: IpAddr, (dst, group): Destination) -> PeerPath {
    PeerPath { src, dst, group }
}
