//! Client side of the broker, in each process that shares an address.
//!
//! | module | contents |
//! | --- | --- |
//! | [`shared_link`] | [`SharedUdpLink`], the link of a process |
//! | [`lease`] | lease on QPN partitions, and the thread that reattaches to a new broker |
//! | [`connection`] | search for the broker, requests |
//! | [`spawn`] | start of a broker, and of other commands |
//! | [`service_registry`] | registered services, and the MADs that the broker forwards for them |

mod connection;
mod lease;
mod service_registry;
mod shared_link;
mod spawn;

use std::io;
use std::net::IpAddr;

use crate::link::BindError;
use crate::link::udp::UdpLinkError;
pub use shared_link::SharedUdpLink;
pub use spawn::start_detached;

/// Reason for which an address could not be shared.
#[derive(Debug, thiserror::Error)]
pub enum SharingError {
    /// The broker refused to grant this process a QPN partition.
    #[error("{reason}")]
    Refused {
        /// The requested address.
        ip: IpAddr,
        /// Reason as an errno value.
        errno: i32,
        /// Reason as text.
        reason: String,
    },
    /// The link could not be created.
    #[error(transparent)]
    Link(#[from] BindError),
    /// Rings in shared memory are required, and the link cannot have any.
    #[error(
        "{link} cannot have the required rings in shared memory: {reason}; shared memory `auto` does not require them"
    )]
    NoRings {
        /// The link.
        link: String,
        /// Reason as an errno value.
        errno: i32,
        /// Reason as text.
        reason: String,
    },
    /// An unexpected system call failure.
    #[error("cannot share {ip} with other processes: {what} failed: {source}")]
    System {
        /// The requested address.
        ip: IpAddr,
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

impl From<UdpLinkError> for SharingError {
    fn from(e: UdpLinkError) -> SharingError {
        SharingError::Link(BindError::Udp(e))
    }
}
