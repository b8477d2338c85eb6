use std::io;

use crate::wire::mad::ServiceId;

/// Why requests for a service do not come to this process.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process on the address has the service, or another socket of this one.
    #[error("service {service} is in use on {address}: choose another port, or end the program that has it")]
    Taken {
        /// The service's ID.
        service: ServiceId,
        /// Where.
        address: String,
    },
    /// The link has no such address.
    #[error("{address} is no address of the device")]
    NotLocal {
        /// As asked for.
        address: std::net::IpAddr,
    },
    /// The process may not enter the directory of the sockets any more.
    #[error(
        "service {service}: the directory {directory} cannot be entered by user {user} ({source}): listen before the process \
         changes its user or its root directory, or share the address with any user (urxe run --any-user)"
    )]
    NoAccess {
        /// The service's ID.
        service: ServiceId,
        /// The directory, as the process that opened the device named it.
        directory: String,
        /// The user that the process is of now.
        user: u32,
        /// The system's error.
        source: io::Error,
    },
    /// A system call failed that should not.
    #[error("cannot have requests for service {service} come here: {source}")]
    System {
        /// The service's ID.
        service: ServiceId,
        /// The system's error.
        source: io::Error,
    },
}
