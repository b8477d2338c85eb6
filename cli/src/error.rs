//! Errors of the `urxe` commands.

use std::error::Error;
use std::io;
use std::net::IpAddr;

use crate::oob_handshake::HandshakeError;
use urxe::broker::SharingError;
use urxe::fabric::FabricError;
use urxe::link::udp::UdpLinkError;
use urxe::link::{BindError, FramesError, PacketError};
use urxe::middleware::capture::CaptureError;
use urxe::verbs::{
    ConnectError, CreateError, Gid, MemoryAccessError, Mtu, OpenError, PairError, PostError, PostListError,
    WaitError,
};

/// Error of a command. The message is one line and includes a hint on how to fix the problem.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The udp link could not be bound.
    #[error("{}{}", .0, cause(.0))]
    Udp(UdpLinkError),
    /// The link's addresses could not be shared with other processes.
    #[error(transparent)]
    Sharing(SharingError),
    /// The packet link could not be opened.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The frames link could not be opened.
    #[error(transparent)]
    Frames(#[from] FramesError),
    /// The capture file could not be written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The fabric could not be created as configured.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// No NIC could be opened on the link.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A verbs object could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A queue pair could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The two NICs and their connected queue pairs could not be created.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// A work request was rejected.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A work request in a list was rejected.
    #[error(transparent)]
    PostList(#[from] PostListError),
    /// A completion did not arrive in time or has an error status.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// A memory access lay outside the region.
    #[error(transparent)]
    Memory(#[from] MemoryAccessError),
    /// The handshake with the peer failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The GID index is not in the link's GID table.
    #[error("GID index {index} does not exist on {link}: the GID table contains {}", gid_list(.gids))]
    NoSuchGid {
        /// Requested GID index.
        index: u8,
        /// Name of the link.
        link: String,
        /// GIDs of the link.
        gids: Vec<Gid>,
    },
    /// The requested path MTU exceeds the link's path MTU.
    #[error("path MTU {requested} exceeds that of {link}, {active}: use --mtu {active} or less")]
    MtuTooLarge {
        /// Requested path MTU in bytes.
        requested: usize,
        /// Name of the link.
        link: String,
        /// Maximum path MTU of the link in bytes.
        active: usize,
    },
    /// The link has no address of the peer's IP version.
    #[error(
        "the peer's address is {peer}, but {link} has {available} addresses only: choose a link of the same \
         IP version"
    )]
    Family {
        /// Address of the peer.
        peer: IpAddr,
        /// Name of the link.
        link: String,
        /// IP version of the link's addresses: "IPv4" or "IPv6".
        available: &'static str,
    },
    /// An option is invalid or does not apply to the link.
    #[error("{0}")]
    Usage(String),
    /// The program to run does not exist or is not executable.
    #[error("no executable program '{0}' found: specify its path or install it")]
    NoProgram(String),
    /// Standard output could not be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// Failed operation.
        what: String,
        /// Error that the system call returned.
        source: io::Error,
    },
    /// The command ran, but it failed or found a wrong result.
    #[error("{0}")]
    Failed(String),
}

impl CliError {
    /// Returns the error for a path MTU that exceeds the link's.
    pub(super) fn mtu(requested: Mtu, link: &str, active: Mtu) -> CliError {
        CliError::MtuTooLarge { requested: requested.bytes(), link: link.into(), active: active.bytes() }
    }
}

impl From<BindError> for CliError {
    fn from(e: BindError) -> CliError {
        match e {
            BindError::Udp(e) => CliError::Udp(e),
            BindError::Packet(e) => CliError::Packet(e),
            BindError::Frames(e) => CliError::Frames(e),
            _ => CliError::Usage(e.to_string()),
        }
    }
}

impl From<SharingError> for CliError {
    fn from(e: SharingError) -> CliError {
        match e {
            SharingError::Link(e) => e.into(),
            e => CliError::Sharing(e),
        }
    }
}

impl From<UdpLinkError> for CliError {
    fn from(e: UdpLinkError) -> CliError {
        CliError::Udp(e)
    }
}

/// Formats the source of an error whose message does not include it.
fn cause(e: &dyn Error) -> String {
    e.source().map_or(String::new(), |s| format!(": {s}"))
}

fn gid_list(gids: &[Gid]) -> String {
    let list: Vec<String> = gids.iter().enumerate().map(|(i, g)| format!("{i} ({})", g.ip())).collect();
    list.join(", ")
}
