use std::error::Error;
use std::io;
use std::net::IpAddr;

use crate::cli::exchange::ExchangeError;
use crate::link::capture::CaptureError;
use crate::link::fabric::FabricError;
use crate::link::udp::UdpLinkError;
use crate::link::{BindError, FramesError, PacketError};
use crate::verbs::{
    ConnectError, CreateError, Gid, MemoryAccessError, Mtu, OpenError, PairError, PostError, PostListError,
    WaitError,
};

/// Why a command failed: one line, with what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The udp link could not be bound.
    #[error("{}{}", .0, cause(.0))]
    Udp(UdpLinkError),
    /// The packet link could not be opened.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The frames link could not be opened.
    #[error(transparent)]
    Frames(#[from] FramesError),
    /// The capture file could not be written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A fabric cannot be as asked.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// No NIC on the link.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An object of the NIC was refused.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A queue pair was not connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Two NICs were not paired.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// A work request was not taken.
    #[error(transparent)]
    Post(#[from] PostError),
    /// One of several was not taken.
    #[error(transparent)]
    PostList(#[from] PostListError),
    /// No completion, or a bad one.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// Outside a region.
    #[error(transparent)]
    Memory(#[from] MemoryAccessError),
    /// The handshake with the peer failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A GID index that is not in the table.
    #[error("there is no GID {index} on {link}: it has {}", gid_list(.gids))]
    NoSuchGid {
        /// As asked.
        index: u8,
        /// The link.
        link: String,
        /// What it has.
        gids: Vec<Gid>,
    },
    /// A path MTU that the link cannot carry.
    #[error("path MTU {asked} is too large for {link}, which carries up to {active}: give --mtu {active}")]
    MtuTooLarge {
        /// As asked, in bytes.
        asked: usize,
        /// The link.
        link: String,
        /// Its largest, in bytes.
        active: usize,
    },
    /// The peer's address is of another IP version than any of ours.
    #[error("the peer is at {peer}, but {link} has {have} only: choose a link of the same IP version")]
    Family {
        /// The peer.
        peer: IpAddr,
        /// The link.
        link: String,
        /// "IPv4" or "IPv6".
        have: &'static str,
    },
    /// An option that does not go with the link.
    #[error("{0}")]
    Usage(String),
    /// `urxe run` of nothing that there is.
    #[error("there is no program '{0}' that can be run: give its path, or install it")]
    NoProgram(String),
    /// Standard output is gone, or full.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's word.
        source: io::Error,
    },
    /// The command ran, and what it checked is not so.
    #[error("{0}")]
    Failed(String),
}

impl CliError {
    /// A path MTU above the link's.
    pub(super) fn mtu(asked: Mtu, link: &str, active: Mtu) -> CliError {
        CliError::MtuTooLarge { asked: asked.bytes(), link: link.into(), active: active.bytes() }
    }
}

impl From<BindError> for CliError {
    fn from(e: BindError) -> CliError {
        match e {
            BindError::Udp(e) => CliError::Udp(e),
            BindError::Packet(e) => CliError::Packet(e),
            BindError::Frames(e) => CliError::Frames(e),
            BindError::Fabric | BindError::Shards { .. } => CliError::Usage(e.to_string()),
        }
    }
}

impl From<UdpLinkError> for CliError {
    fn from(e: UdpLinkError) -> CliError {
        CliError::Udp(e)
    }
}

/// The system's word behind an error that does not say it itself.
fn cause(e: &dyn Error) -> String {
    e.source().map_or(String::new(), |s| format!(": {s}"))
}

fn gid_list(gids: &[Gid]) -> String {
    let list: Vec<String> = gids.iter().enumerate().map(|(i, g)| format!("{i} ({})", g.ip())).collect();
    list.join(", ")
}
