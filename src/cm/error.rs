use super::{ConnId, State};
use crate::wire::mad::ServiceId;

/// Why the connection manager did not do what a program asked. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmError {
    /// It is over and forgotten, or was never there.
    #[error("{0} is not known: it was released, or its time-wait is over")]
    Unknown(ConnId),
    /// Not now.
    #[error("{connection} is in {state}, where one cannot {action}")]
    State {
        /// Which.
        connection: ConnId,
        /// Its state.
        state: State,
        /// What was asked.
        action: &'static str,
    },
    /// Somebody listens to that already.
    #[error("{0} is listened to already: take another port, or end that listener")]
    Taken(ServiceId),
    /// The bound of the configuration.
    #[error("{0} connections are there, which is the most: release some")]
    TooMany(usize),
    /// A message has room for only so much.
    #[error("{len} bytes of private data, and the message holds {max}")]
    PrivateData {
        /// As given.
        len: usize,
        /// What fits.
        max: usize,
    },
    /// Not 72 bytes.
    #[error("{0} bytes of additional information, and the message holds 72")]
    Info(usize),
    /// The source GID of a path.
    #[error("GID index {0} is unset: the path has no source address")]
    Gid(u8),
    /// UD has no connections.
    #[error("datagram queue pairs are not connected: ask for one with sidr_request")]
    Datagram,
}
