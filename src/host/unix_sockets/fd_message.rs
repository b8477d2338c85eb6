//! Messages over a Unix SOCK_SEQPACKET connection. Each consists of a line of text and up to 253 file
//! descriptors (SCM_RIGHTS).

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Maximum number of descriptors in one message: the kernel's SCM_MAX_FD.
pub const MAX_FDS: usize = 253;

/// Maximum length of a line, in bytes.
const MAX_LEN: usize = 8192;

/// Sends a line of text with descriptors.
pub fn send(to: impl AsFd, line: &impl fmt::Display, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other(format!("a message cannot carry {} descriptors", fds.len())));
    }
    let text = line.to_string();
    if text.len() > MAX_LEN {
        return Err(io::Error::other(format!("a message cannot have {} bytes", text.len())));
    }
    sendmsg(to, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a line with descriptors, or `None` at the end of the connection. With `peek`, does not block, and
/// leaves the message queued: it can be received again, with new descriptors for the same files.
pub fn receive(from: impl AsFd, peek: bool) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
    let mut text = [0; MAX_LEN];
    // A peek never blocks; otherwise the mode of the descriptor decides.
    let peek = if peek { RecvFlags::PEEK | RecvFlags::DONTWAIT } else { RecvFlags::empty() };
    let (len, fds, lacks_fds) = receive_bytes(from, &mut text, peek)?;
    if lacks_fds {
        // This process lacks descriptors: no message carries more than there is room for.
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    let line = String::from_utf8_lossy(&text[..len]).into_owned();
    Ok((len > 0).then_some((line, fds)))
}

/// Receives a message of at most `bytes.len()` bytes. Returns its length, which is 0 at the end of the
/// connection, the descriptors, and whether some are missing because this process has no more free ones.
pub fn receive_bytes(
    from: impl AsFd,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(usize, Vec<OwnedFd>, bool)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let max = bytes.len();
    let flags = RecvFlags::CMSG_CLOEXEC | flags;
    let received = retry_on_intr(|| recvmsg(&from, &mut [IoSliceMut::new(bytes)], &mut control, flags))?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        let reason = format!("the message has more than {max} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    Ok((received.bytes, fds, received.flags.contains(ReturnFlags::CTRUNC)))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, send as send_bytes, socketpair};

    use super::*;

    #[test]
    fn oversized_line_is_reported_as_invalid_and_not_as_a_lack_of_descriptors() {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        send_bytes(&a, &[b'x'; MAX_LEN + 1], SendFlags::NOSIGNAL).unwrap();
        send_bytes(&a, &[b'x'; MAX_LEN], SendFlags::NOSIGNAL).unwrap();
        let error = receive(&b, false).unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (io::ErrorKind::InvalidData, None), "{error}");
        assert!(error.to_string().contains("more than 8192 bytes"), "{error}");
        assert_eq!(
            receive(&b, false).unwrap().map(|(line, fds)| (line.len(), fds.len())),
            Some((MAX_LEN, 0))
        );
        let error = send(&a, &"x".repeat(MAX_LEN + 1), &[]).unwrap_err();
        assert!(error.to_string().contains("cannot have 8193 bytes"), "{error}");
    }
}
