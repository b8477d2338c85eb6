//! Errors returned by connection manager calls.

use super::{ConnId, State};
use crate::wire::mad::ServiceId;

/// Error returned by a connection manager call. A call that fails changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The connection never existed, or was removed after it ended.
    #[error("{0} does not exist: it was released, or its time-wait has ended")]
    Unknown(ConnId),
    /// The connection's state does not permit the call.
    #[error("cannot {action}: {connection} is in state '{state}'")]
    State {
        /// The connection.
        connection: ConnId,
        /// State of the connection.
        state: State,
        /// Action that the call requested, as it appears in the error message.
        action: &'static str,
    },
    /// The service already has a listener.
    #[error("service {0} already has a listener: use another port, or close that listener")]
    InUse(ServiceId),
    /// The number of connections has reached the configured maximum.
    #[error("the maximum of {0} connections is reached: release some")]
    TooMany(usize),
    /// The private data exceed the message's private data field.
    #[error("{len} bytes of private data exceed the {max} bytes of the message")]
    PrivateData {
        /// Number of bytes given.
        len: usize,
        /// Size of the private data field in bytes.
        max: usize,
    },
    /// The additional information exceeds 72 bytes.
    #[error("{0} bytes of additional information exceed the 72 bytes of the message")]
    Info(usize),
    /// A path's source GID index refers to an empty entry of the GID table.
    #[error("GID index {0} is empty: use an index with a source address")]
    Gid(u8),
    /// The request is for a datagram (UD) queue pair, which cannot have connections.
    #[error("UD queue pairs have no connections: use sidr_request")]
    Datagram,
}
