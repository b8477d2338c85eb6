//! Errors of the `urxe` commands.

use std::error::Error;
use std::io;
use std::net::IpAddr;

use crate::oob_handshake::HandshakeError;
use urxe::broker::SharingError;
use urxe::link::BindError;
use urxe::verbs::{Gid, Mtu};

/// Error of a command. The message is one line and includes a hint on how to fix the problem.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum CliError {
    /// A call of the library failed.
    #[error("{}{}", .0, cause(.0))]
    Call(urxe::Error),
    /// The handshake with the peer failed.
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
    Output(io::Error),
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

impl<E: Into<urxe::Error>> From<E> for CliError {
    fn from(error: E) -> CliError {
        match error.into() {
            urxe::Error::Io(e) => CliError::Output(e),
            e => CliError::Call(e),
        }
    }
}

/// Formats the source of an error of a udp link, whose message does not include it.
fn cause(e: &urxe::Error) -> String {
    use urxe::Error::{Link, Sharing, Udp};
    let (Udp(e) | Link(BindError::Udp(e)) | Sharing(SharingError::Link(BindError::Udp(e)))) = e else {
        return String::new();
    };
    e.source().map_or(String::new(), |source| format!(": {source}"))
}

fn gid_list(gids: &[Gid]) -> String {
    let list: Vec<String> = gids.iter().enumerate().map(|(i, g)| format!("{i} ({})", g.ip())).collect();
    list.join(", ")
}
