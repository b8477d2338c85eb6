//! Changes of the paths to peers that a link reports: windows, and room for packets.

use std::net::IpAddr;

use super::PeerWindow;
use crate::burst::PeerPath;

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
