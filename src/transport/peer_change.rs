//! Changes of the paths to peers that a link reports: windows, and room for packets.

use std::net::IpAddr;

use super::PeerWindow;

/// Path of packets to a process at a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerPath {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Leading bits of the destination QPN ([`BurstLimits::DEST_GROUP_BITS`](super::BurstLimits::DEST_GROUP_BITS)).
    pub group: u8,
}

/// Change of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerChange {
    /// The peer with this address has another window.
    Window(IpAddr, PeerWindow),
    /// The path has no room for another turn: packets to it must wait.
    Full(PeerPath),
    /// A full path has room again, or has failed and drops packets.
    Room(PeerPath),
}
