//! Messages over the connection of a ring, after the offer of the ring itself.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::memory::{Change, RingReader, RingWriter};
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

// First words of the messages about memory in which the writer leaves payloads. The number of the memory
// follows.

/// Offer of memory by the writer, with its descriptor.
const OFFER: &str = "offer";
/// Answer of a reader that has mapped the memory.
const ACCEPT: &str = "accept";
/// Answer of a reader that has not mapped the memory.
const REFUSE: &str = "refuse";
/// Message of the writer that the memory is no longer in use.
const WITHDRAW: &str = "withdraw";

/// Splits a message into its first word and the number of the memory.
fn parse(bytes: &[u8]) -> Option<(&str, u32)> {
    let (word, id) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
    Some((word, id.parse().ok()?))
}

/// Sends the reader the changes of the memory that is shared with it. An error means that the reader has
/// broken the protocol; the next write detects it.
pub(super) fn announce_changes(ring: &mut RingWriter, socket: &CloseOnForkFd) {
    while let Ok(Some(change)) = ring.next_change() {
        let sent = match &change {
            Change::Offer(memory) => {
                fd_message::send(socket, &format_args!("{OFFER} {}", memory.id()), &[memory.as_fd()])
            }
            Change::Withdraw(id) => fd_message::send(socket, &format_args!("{WITHDRAW} {id}"), &[]),
        };
        if let Err(error) = sent {
            // ETOOMANYREFS: other processes of this user have not yet received descriptors that were sent to
            // them.
            let is_transient = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ETOOMANYREFS));
            return ring.memory.on_unsent(&change, is_transient);
        }
    }
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
        let (len, fds, _) = match fd_message::receive_bytes(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, ..)) => return Taken::Ended,
            Ok(message) => message,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Taken::Open,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Taken::Broken,
            Err(_) => return Taken::Ended,
        };
        if &bytes[..len] == NOTIFICATION {
            continue;
        }
        let taken = match (parse(&bytes[..len]), &fds[..]) {
            // No descriptor if this process has none left.
            (Some((OFFER, id)), []) => answer(socket, REFUSE, id),
            (Some((OFFER, id)), [memory]) => match ring.memory.share(id, memory) {
                Some(Ok(())) => answer(socket, ACCEPT, id),
                Some(Err(error)) => {
                    trace_event!(DEBUG, "urxe::link", "memory not mapped", reason = %error);
                    answer(socket, REFUSE, id)
                }
                None => false,
            },
            (Some((WITHDRAW, id)), []) => ring.memory.withdraw(id),
            _ => false,
        };
        if !taken {
            return Taken::Broken;
        }
    }
    Taken::Open
}

/// Sends an answer. Returns false if the writer does not read its answers; one that has ended needs none.
fn answer(socket: &CloseOnForkFd, word: &str, id: u32) -> bool {
    let answer = format!("{word} {id}");
    let sent = send(socket, answer.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
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
    let is_valid = match parse(&bytes[..len]) {
        Some((word @ (ACCEPT | REFUSE), id)) => ring.memory.on_answer(id, word == ACCEPT),
        _ => &bytes[..len] == CONFIRMATION && !std::mem::replace(is_confirmed, true),
    };
    if is_valid { Taken::Open } else { Taken::Broken }
}
