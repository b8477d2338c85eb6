//! Errors of directing connection management requests for a service to this process.

use std::io;

use crate::wire::mad::ServiceId;

/// Reason why requests for a service cannot be directed to this process.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process on the address, or another socket of this process, has the service.
    #[error("service {service} is in use on {address}: choose another port, or end the program that has it")]
    Taken {
        /// ID of the service.
        service: ServiceId,
        /// The address.
        address: String,
    },
    /// The address does not belong to the link.
    #[error("{address} is no address of the device")]
    NotLocal {
        /// The requested address.
        address: std::net::IpAddr,
    },
    /// The process may no longer enter the directory of the sockets.
    #[error(
        "service {service}: the directory {directory} cannot be entered by user {user} ({source}): listen before the process \
         changes its user or its root directory, or share the address with any user (urxe run --any-user)"
    )]
    NoAccess {
        /// ID of the service.
        service: ServiceId,
        /// The directory, as the process that opened the device named it.
        directory: String,
        /// The current user ID of the process.
        user: u32,
        /// The underlying system error.
        source: io::Error,
    },
    /// A system call failed unexpectedly.
    #[error("cannot have requests for service {service} come here: {source}")]
    System {
        /// ID of the service.
        service: ServiceId,
        /// The underlying system error.
        source: io::Error,
    },
}
