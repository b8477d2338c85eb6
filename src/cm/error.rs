//! Errors of calls to the connection manager.

use super::{ConnId, State};
use crate::wire::mad::ServiceId;

/// Error of a call to the connection manager. A call that fails changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmError {
    /// The connection was never there, or is over and forgotten.
    #[error("{0} is not known: it was released, or its time-wait is over")]
    Unknown(ConnId),
    /// The state of the connection does not permit the call.
    #[error("{connection} is in {state}, where one cannot {action}")]
    State {
        /// The connection.
        connection: ConnId,
        /// State of the connection.
        state: State,
        /// Action that the call requests.
        action: &'static str,
    },
    /// Another listener serves the service.
    #[error("{0} is listened to already: take another port, or end that listener")]
    Taken(ServiceId),
    /// The number of connections has reached the configured maximum.
    #[error("{0} connections are there, which is the most: release some")]
    TooMany(usize),
    /// The private data do not fit the message.
    #[error("{len} bytes of private data, and the message holds {max}")]
    PrivateData {
        /// Number of bytes given.
        len: usize,
        /// Number of bytes that the message holds.
        max: usize,
    },
    /// The additional information exceeds 72 bytes.
    #[error("{0} bytes of additional information, and the message holds 72")]
    Info(usize),
    /// The source GID index of a path refers to no GID.
    #[error("GID index {0} is unset: the path has no source address")]
    Gid(u8),
    /// Datagram (UD) queue pairs have no connections.
    #[error("datagram queue pairs are not connected: ask for one with sidr_request")]
    Datagram,
}
