//! Links whose addresses other processes may share: QPN partitions and service claims.

use std::io;
use std::net::IpAddr;

use crate::nic::QpnPartition;
use crate::transport::LastAcks;
use crate::wire::mad::ServiceId;

/// Link whose addresses other processes may share ([`Link::shared_address`](super::Link::shared_address)).
pub trait SharedAddress {
    /// Returns the QPN partition for which this link receives packets. It does not contain all QPNs if other
    /// processes may share the addresses.
    fn partition(&self) -> QpnPartition;

    /// Directs connection requests for a service to this link: requests sent to `address`, or to any of the
    /// link's addresses if `address` is `None`. Needed only if other processes share the addresses; otherwise
    /// the link receives all requests anyway.
    ///
    /// # Errors
    /// [`ClaimError`]; nothing has then changed.
    fn claim(&mut self, service: ServiceId, address: Option<IpAddr>) -> Result<(), ClaimError>;

    /// Withdraws a [`claim`](Self::claim) on the same service and address.
    fn release(&mut self, service: ServiceId, address: Option<IpAddr>);

    /// Returns the record of the last acknowledgements, which the broker sends when this process has ended;
    /// `None` without a broker.
    fn last_acks(&self) -> Option<LastAcks> {
        None
    }
}

/// Reason why requests for a service cannot be directed to this process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The service is already claimed, by another process on the address or by another socket of this
    /// process.
    #[error(
        "service {service} is in use on {address}: use another port, or stop the program that listens on it"
    )]
    InUse {
        /// ID of the service.
        service: ServiceId,
        /// The address.
        address: String,
    },
    /// The address does not belong to the link.
    #[error("{address} is not an address of the device")]
    NotLocal {
        /// The requested address.
        address: IpAddr,
    },
    /// The process is no longer permitted to enter the directory in which service sockets are created.
    #[error(
        "service {service}: the directory {directory} cannot be entered by user {user} ({source}): listen \
         before the process changes its user or root directory, or share the address with any user \
         (urxe run --any-user)"
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
    #[error("cannot register service {service} for this process: {source}")]
    System {
        /// ID of the service.
        service: ServiceId,
        /// The underlying system error.
        source: io::Error,
    },
}
