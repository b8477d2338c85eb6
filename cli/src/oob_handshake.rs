//! The TCP handshake of rdma-core's ping-pong programs (`ibv_rc_pingpong`, `ibv_srq_pingpong` and others),
//! over any [`Read`] + [`Write`].
//!
//! | from | bytes | content |
//! | --- | --- | --- |
//! | client | 52 per address | addresses of its queue pairs: `LLLL:QQQQQQ:PPPPPP:G{32}` and a NUL |
//! | server | 52 per address | its own, in the same format |
//! | client | 5 | `done` and a NUL |
//!
//! LID (0 on RoCE), QPN and PSN are zero-padded lower-case hexadecimal numbers; the GID is its 16 bytes in
//! hexadecimal. Each side sends one address, or [`SRQ_ADDRESSES`] in `ibv_srq_pingpong`: its queue pairs'
//! addresses, then zeros. Message size, iterations, path MTU and the number of queue pairs are not exchanged.
//! Without `-g`, the programs send an all-zero GID, which cannot work on RoCE.
//!
//! The server brings its queue pairs to RTS between receiving the client's addresses and sending its own
//! ([`recv_addresses`], then [`reply`]), the client after the handshake.
//!
//! The programs read every address with a single `read` and fail if it is short, so each is passed to the
//! stream in one `write_all`. The stream's own timeouts apply.

use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;

use urxe::verbs::{Endpoint, Gid, Psn, Qpn};

/// Default TCP port of the ping-pong programs.
pub const PORT: u16 = 18515;
/// Number of addresses that each side sends in `ibv_srq_pingpong`, whatever its number of queue pairs.
pub const SRQ_ADDRESSES: usize = 256;

/// Length in bytes of an address on the wire, including the terminating NUL.
const ADDRESS_LEN: usize = 52;
const ADDRESS: &str = "ping-pong address";
/// The client's last message.
const DONE: &[u8; 5] = b"done\0";
const WHAT_DONE: &str = "ping-pong \"done\"";

/// Error of a handshake.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The peer closed the connection during the handshake.
    #[error("{what}: the peer closed the connection after {got} of {want} bytes")]
    Closed {
        /// Name of the expected message.
        what: &'static str,
        /// Number of bytes received.
        got: usize,
        /// Length of the whole message in bytes.
        want: usize,
    },
    /// The stream's read or write timeout expired.
    #[error("{what}: timed out after {got} of {want} bytes")]
    TimedOut {
        /// Name of the expected message.
        what: &'static str,
        /// Number of bytes transferred.
        got: usize,
        /// Length of the whole message in bytes.
        want: usize,
    },
    /// Another I/O error.
    #[error("{what}: {source}")]
    Io {
        /// Name of the message being transferred.
        what: &'static str,
        /// Error of the stream.
        source: io::Error,
    },
    /// The peer sent something other than the expected message.
    #[error("{what}: {reason} in \"{bytes}\"")]
    Malformed {
        /// Name of the expected message.
        what: &'static str,
        /// Description of the defect.
        reason: String,
        /// The offending bytes, with unprintable ones escaped.
        bytes: String,
    },
}

fn malformed(what: &'static str, reason: impl Into<String>, bytes: &[u8]) -> HandshakeError {
    HandshakeError::Malformed { what, reason: reason.into(), bytes: bytes.escape_ascii().to_string() }
}

/// Encodes an address as text with a terminating NUL.
fn encode(address: &Endpoint) -> [u8; ADDRESS_LEN] {
    let (qpn, psn, gid) = (address.qpn.get(), address.psn.get(), u128::from_be_bytes(address.gid.0));
    let line = format!("0000:{qpn:06x}:{psn:06x}:{gid:032x}\0");
    line.as_bytes().try_into().expect("all fields have a fixed width")
}

/// Parses an address. Every field must have its full width, including leading zeros, as the programs print
/// it.
fn parse(bytes: &[u8; ADDRESS_LEN]) -> Result<Endpoint, HandshakeError> {
    let hex = |name: &str, at: Range<usize>| {
        let (start, field) = (at.start, &bytes[at]);
        let digits = field.iter().all(u8::is_ascii_hexdigit).then(|| str::from_utf8(field).ok()).flatten();
        digits.and_then(|digits| u128::from_str_radix(digits, 16).ok()).ok_or_else(|| {
            let field = field.escape_ascii();
            malformed(ADDRESS, format!("{name} at offset {start} is not hexadecimal (\"{field}\")"), bytes)
        })
    };
    hex("the LID", 0..4)?;
    let (qpn, psn) = (hex("the QP number", 5..11)? as u32, hex("the PSN", 12..18)? as u32);
    let gid = hex("the GID", 19..51)?;
    for (at, expected) in [(4, b':'), (11, b':'), (18, b':'), (51, 0)] {
        if bytes[at] != expected {
            let reason = format!("expected '{}' at offset {at}", expected.escape_ascii());
            return Err(malformed(ADDRESS, reason, bytes));
        }
    }
    Ok(Endpoint { gid: Gid(gid.to_be_bytes()), qpn: Qpn::new(qpn), psn: Psn::new(psn) })
}

fn is_timeout(e: &io::Error) -> bool {
    // Linux returns EAGAIN for a socket timeout, other systems return ETIMEDOUT.
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Reads one message of exactly `N` bytes.
fn read_message<const N: usize>(s: &mut impl Read, what: &'static str) -> Result<[u8; N], HandshakeError> {
    let mut buf = [0; N];
    let mut got = 0;
    while got < N {
        match s.read(&mut buf[got..]) {
            Ok(0) => return Err(HandshakeError::Closed { what, got, want: N }),
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if is_timeout(&e) => return Err(HandshakeError::TimedOut { what, got, want: N }),
            Err(source) => return Err(HandshakeError::Io { what, source }),
        }
    }
    Ok(buf)
}

/// Writes one message with a single `write_all`.
fn write_message(s: &mut impl Write, what: &'static str, bytes: &[u8]) -> Result<(), HandshakeError> {
    s.write_all(bytes).and_then(|()| s.flush()).map_err(|source| match is_timeout(&source) {
        true => HandshakeError::TimedOut { what, got: 0, want: bytes.len() },
        false => HandshakeError::Io { what, source },
    })
}

/// Sends the addresses of 1 to `count` local queue pairs, padded with all-zero addresses to `count`.
fn send_addresses(s: &mut impl Write, local: &[Endpoint], count: usize) -> Result<(), HandshakeError> {
    assert!((1..=count).contains(&local.len()), "{} addresses for a message of {count}", local.len());
    let unused = Endpoint { gid: Gid([0; 16]), qpn: Qpn::new(0), psn: Psn::new(0) };
    let all = local.iter().chain(std::iter::repeat(&unused)).take(count);
    all.into_iter().try_for_each(|address| write_message(s, ADDRESS, &encode(address)))
}

/// Receives `count` addresses, and returns those before the first with QPN 0, where the padding starts. There
/// is at least one. A server then connects its queue pairs to them and calls [`reply`].
///
/// # Errors
/// [`HandshakeError`].
pub fn recv_addresses(s: &mut impl Read, count: usize) -> Result<Vec<Endpoint>, HandshakeError> {
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        all.push(parse(&read_message(s, ADDRESS)?)?);
    }
    match all.iter().position(|address| address.qpn.get() == 0) {
        Some(0) => Err(malformed(ADDRESS, "the QP number is 0", &encode(&all[0]))),
        Some(qps) => Ok(all[..qps].to_vec()),
        None => Ok(all),
    }
}

/// Performs the client side of the handshake, with `count` addresses from each side, and returns the
/// addresses of the server's queue pairs. The caller may then close the stream.
///
/// # Errors
/// [`HandshakeError`].
pub fn client<S: Read + Write>(
    stream: &mut S,
    local: &[Endpoint],
    count: usize,
) -> Result<Vec<Endpoint>, HandshakeError> {
    send_addresses(stream, local, count)?;
    let remote = recv_addresses(stream, count)?;
    write_message(stream, WHAT_DONE, DONE)?;
    Ok(remote)
}

/// Sends the addresses of the server's queue pairs, which must be ready to receive, to a client whose
/// addresses [`recv_addresses`] has returned, and waits for the client's "done".
///
/// # Errors
/// [`HandshakeError`].
pub fn reply<S: Read + Write>(
    stream: &mut S,
    local: &[Endpoint],
    count: usize,
) -> Result<(), HandshakeError> {
    send_addresses(stream, local, count)?;
    let done: [u8; DONE.len()] = read_message(stream, WHAT_DONE)?;
    match &done == DONE {
        true => Ok(()),
        false => Err(malformed(WHAT_DONE, "not \"done\"", &done)),
    }
}

#[cfg(test)]
mod tests;
