//! What host and target say in the private data of the connection manager's messages.

use super::QUEUE_DEPTH;
use super::capsule::u16_at;

const LEN: usize = 32;

/// What the host asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectRequest {
    /// The queue: 0 is the admin queue.
    pub queue: u16,
    /// Receives that the host has for responses.
    pub receives: u16,
    /// Commands that it sends before it waits.
    pub commands: u16,
}

/// Why a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u16)]
pub enum Refusal {
    /// Too short.
    #[error("its private data is too short")]
    Length = 1,
    /// Of another format.
    #[error("its private data is of another format")]
    Format = 2,
    /// Queues without commands, or with too many.
    #[error("it wants more commands in a queue than there can be, or none")]
    Commands = 4,
    /// The host has no room for responses.
    #[error("it has no receives for responses")]
    Receives = 5,
    /// As many are connected as can be.
    #[error("too many are connected")]
    Resources = 6,
}

impl ConnectRequest {
    /// Reads it; behind it there may be zeros.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn parse(bytes: &[u8]) -> Result<ConnectRequest, Refusal> {
        if bytes.len() < LEN {
            return Err(Refusal::Length);
        }
        if u16_at(bytes, 0) != 0 {
            return Err(Refusal::Format);
        }
        let (queue, receives, last) = (u16_at(bytes, 2), u16_at(bytes, 4), u16_at(bytes, 6));
        // The number of the last command, so one less than there are.
        if last == 0 || last >= QUEUE_DEPTH {
            return Err(Refusal::Commands);
        }
        if receives == 0 {
            return Err(Refusal::Receives);
        }
        Ok(ConnectRequest { queue, receives, commands: last + 1 })
    }

    /// What is said with the acceptance.
    pub fn accepted(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[2..4].copy_from_slice(&self.commands.to_le_bytes());
        bytes
    }
}

impl Refusal {
    /// What is said with it.
    pub fn bytes(self) -> [u8; 4] {
        let mut bytes = [0; 4];
        bytes[2..].copy_from_slice(&(self as u16).to_le_bytes());
        bytes
    }
}
