//! Handles to connections.

use std::fmt;

use crate::wire::mad::CommId;

/// Identifier of a connection, a connection request or a service ID resolution: the local communication ID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnId(pub CommId);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}
