//! Messages over the connection of a ring, after the offer of the ring itself.
#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::memory::{Change, RingError, RingReader, RingWriter};
use crate::host::unix_sockets::fd_message;
use crate::sys::fork::CloseOnForkFd;

/// Maximum number of messages read from a connection at a time.
const MAX_MESSAGES: usize = 64;

/// Maximum length of a message.
const MAX_LEN: usize = 32;

/// Message from the writer that wakes the reader.
pub(super) const NOTIFICATION: &[u8] = b"\0";

/// Message with which a reader confirms a ring.
pub(super) const CONFIRMATION: &[u8] = b"y";

/// Message about memory in which the writer leaves payloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    /// From the writer, with the descriptor of the memory.
    Offer(u32),
    /// From the reader: it has mapped the memory.
    Accept(u32),
    /// From the reader: it has not.
    Refuse(u32),
    /// From the writer: the memory is no longer in use.
    Withdraw(u32),
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Offer(id) => write!(f, "offer {id}"),
            Message::Accept(id) => write!(f, "accept {id}"),
            Message::Refuse(id) => write!(f, "refuse {id}"),
            Message::Withdraw(id) => write!(f, "withdraw {id}"),
        }
    }
}

impl Message {
    fn parse(bytes: &[u8]) -> Option<Message> {
        let (kind, id) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
        let id = id.parse().ok()?;
        match kind {
            "offer" => Some(Message::Offer(id)),
            "accept" => Some(Message::Accept(id)),
            "refuse" => Some(Message::Refuse(id)),
            "withdraw" => Some(Message::Withdraw(id)),
            _ => None,
        }
    }
}

/// Tells the reader of changes of the memory that is shared with it.
///
/// # Errors
/// [`RingError`] if the reader has broken the protocol.
pub(super) fn announce_changes(ring: &mut RingWriter, socket: &CloseOnForkFd) -> Result<(), RingError> {
    while let Some(change) = ring.next_change()? {
        let sent = match &change {
            Change::Offer(memory) => {
                fd_message::send(socket, &Message::Offer(memory.id()), &[memory.as_fd()])
            }
            Change::Withdraw(id) => fd_message::send(socket, &Message::Withdraw(*id), &[]),
        };
        if let Err(error) = sent {
            // ETOOMANYREFS: other processes of this user have not yet received descriptors that were sent to them.
            let is_transient = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ETOOMANYREFS));
            ring.on_unsent(&change, is_transient);
            break;
        }
    }
    Ok(())
}

/// State of a connection after messages were taken from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    Open,
    /// The other process has ended.
    Ended,
    /// The other process has broken the protocol.
    Broken,
}

/// Takes the writer's messages.
pub(super) fn take_from_writer(ring: &mut RingReader, socket: &CloseOnForkFd) -> Taken {
    let mut bytes = [0; MAX_LEN];
    for _ in 0..MAX_MESSAGES {
        let (len, fds) = match fd_message::receive_bytes(socket, &mut bytes) {
            Ok((0, _)) => return Taken::Ended,
            Ok(message) => message,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Taken::Open,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Taken::Broken,
            Err(_) => return Taken::Ended,
        };
        if &bytes[..len] == NOTIFICATION {
            continue;
        }
        let taken = match (Message::parse(&bytes[..len]), &fds[..]) {
            // No descriptor if this process has none left.
            (Some(Message::Offer(id)), []) => answer(socket, Message::Refuse(id)),
            (Some(Message::Offer(id)), [memory]) => match ring.share(id, memory) {
                Ok(Ok(())) => answer(socket, Message::Accept(id)),
                Ok(Err(error)) => {
                    trace_event!(DEBUG, "urxe::link", "memory not mapped", reason = %error);
                    answer(socket, Message::Refuse(id))
                }
                Err(_) => return Taken::Broken,
            },
            (Some(Message::Withdraw(id)), []) => ring.withdraw(id).is_ok(),
            _ => false,
        };
        if !taken {
            return Taken::Broken;
        }
    }
    Taken::Open
}

/// Sends an answer. Returns false if the writer does not read its answers; one that has ended needs none.
fn answer(socket: &CloseOnForkFd, answer: Message) -> bool {
    let sent = send(socket, answer.to_string().as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    !matches!(sent, Err(Errno::AGAIN))
}

/// Takes a message of the reader. `is_confirmed` tells whether it has confirmed the ring.
pub(super) fn take_from_reader(
    ring: &mut RingWriter,
    is_confirmed: &mut bool,
    socket: &CloseOnForkFd,
) -> Taken {
    let mut bytes = [0; MAX_LEN];
    let len = match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
        Ok((0, _)) => return Taken::Ended,
        Ok((len, _)) => len.min(MAX_LEN),
        Err(Errno::AGAIN | Errno::INTR) => return Taken::Open,
        Err(_) => return Taken::Ended,
    };
    let is_valid = match Message::parse(&bytes[..len]) {
        Some(Message::Accept(id)) => ring.on_answer(id, true),
        Some(Message::Refuse(id)) => ring.on_answer(id, false),
        _ => &bytes[..len] == CONFIRMATION && !std::mem::replace(is_confirmed, true),
    };
    if is_valid { Taken::Open } else { Taken::Broken }
}
