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
    /// A system call failed that should not.
    #[error("cannot have requests for service {service} come here: {source}")]
    System {
        /// The service's ID.
        service: ServiceId,
        /// The system's error.
        source: io::Error,
    },
}
