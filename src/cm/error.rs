//! Errors of calls to the connection manager.

use super::{ConnId, State};
use crate::wire::mad::ServiceId;

/// Error of a call to the connection manager. A call that fails changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The connection never existed, or has ended and was removed.
    #[error("{0} does not exist: it was released, or its time-wait has ended")]
    Unknown(ConnId),
    /// The state of the connection does not permit the call.
    #[error("cannot {action}: {connection} is in state '{state}'")]
    State {
        /// The connection.
        connection: ConnId,
        /// State of the connection.
        state: State,
        /// Action that the call requests.
        action: &'static str,
    },
    /// Another listener serves the service.
    #[error("service {0} already has a listener: use another port, or close that listener")]
    InUse(ServiceId),
    /// The number of connections has reached the configured maximum.
    #[error("the maximum of {0} connections is reached: release some")]
    TooMany(usize),
    /// The private data do not fit the message.
    #[error("{len} bytes of private data exceed the {max} bytes of the message")]
    PrivateData {
        /// Number of bytes given.
        len: usize,
        /// Maximum number of bytes of private data in the message.
        max: usize,
    },
    /// The additional information exceeds 72 bytes.
    #[error("{0} bytes of additional information exceed the 72 bytes of the message")]
    Info(usize),
    /// The source GID index of a path refers to no GID.
    #[error("GID index {0} is empty: use an index with a source address")]
    Gid(u8),
    /// Datagram (UD) queue pairs have no connections.
    #[error("UD queue pairs have no connections: use sidr_request")]
    Datagram,
}
