//! Private data in the connection manager messages between host and target.

use super::QUEUE_DEPTH;
use super::capsule::u16_at;

const LEN: usize = 32;

/// Private data of the host's connection request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectRequest {
    /// Queue number; 0 is the admin queue.
    pub queue: u16,
    /// Number of receives that the host posts for responses (HRQSIZE).
    pub receives: u16,
    /// Maximum number of commands that the host keeps outstanding on the queue (HSQSIZE).
    pub commands: u16,
}

/// Reason why the target rejects a connection request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u16)]
pub enum RejectReason {
    /// The private data is too short.
    #[error("the private data is shorter than {} bytes", LEN)]
    Length = 1,
    /// The record format of the private data is not supported.
    #[error("the private data has an unsupported record format")]
    Format = 2,
    /// The requested queue size is out of range.
    #[error("the queue size must be 2 to {} commands", QUEUE_DEPTH)]
    Commands = 4,
    /// The host posts no receives for responses.
    #[error("the host queue has no receives for responses")]
    Receives = 5,
    /// Too many queues are connected.
    #[error("too many queues are connected")]
    Resources = 6,
}

impl ConnectRequest {
    /// Parses the private data; zeros may follow it.
    ///
    /// # Errors
    /// [`RejectReason`].
    pub fn parse(bytes: &[u8]) -> Result<ConnectRequest, RejectReason> {
        if bytes.len() < LEN {
            return Err(RejectReason::Length);
        }
        if u16_at(bytes, 0) != 0 {
            return Err(RejectReason::Format);
        }
        let (queue, receives, last) = (u16_at(bytes, 2), u16_at(bytes, 4), u16_at(bytes, 6));
        // The field holds the number of commands less one.
        if last == 0 || last >= QUEUE_DEPTH {
            return Err(RejectReason::Commands);
        }
        if receives == 0 {
            return Err(RejectReason::Receives);
        }
        Ok(ConnectRequest { queue, receives, commands: last + 1 })
    }

    /// Encodes the private data for the message that accepts the connection.
    pub fn accepted(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[2..4].copy_from_slice(&self.commands.to_le_bytes());
        bytes
    }
}

impl RejectReason {
    /// Encodes the private data for the message that rejects the connection.
    pub fn bytes(self) -> [u8; 4] {
        let mut bytes = [0; 4];
        bytes[2..].copy_from_slice(&(self as u16).to_le_bytes());
        bytes
    }
}
