//! The handshake of `ibv_rc_pingpong` (rdma-core 44).
//!
//! # On the wire
//! One TCP connection, by default to port [`PORT`], over IPv4 or IPv6, independently of the family of the
//! GIDs: the client connects to the first address of its host that accepts; the stock server listens on the
//! first wildcard address of `getaddrinfo`, which is that of IPv4. Three messages:
//!
//! | from | bytes | what |
//! | --- | --- | --- |
//! | client | 52 | its [`Destination`]: `LLLL:QQQQQQ:PPPPPP:G{32}` and a NUL |
//! | server | 52 | its own, in the same format |
//! | client | 5 | `done` and a NUL |
//!
//! LID, QPN and PSN are zero-padded lower-case hexadecimal; the GID is its 16 bytes as 32 digits in network
//! order without separators (`00000000000000000000ffff0a4d0002` is 10.77.0.2). Without `-g` the program sends
//! a GID of zeros, with which no connection works on RoCE. After the last message both sides close.
//!
//! The server brings its QP to RTS *between* receiving the client's address and sending its own
//! ([`Server::accept`], then [`Server::reply`]); the client does so only after the whole handshake. A client
//! may therefore send as soon as its own QP is in RTS, and the receives have to be posted by then.
//!
//! # The run
//! Neither the message size nor the number of iterations is exchanged; both sides need the same `-s` (default
//! 4096) and `-n` (1000). The path MTU is each side's own `-m` (1024) and must be the same too. Each side
//! posts `-r` (500) receives of the whole message, all into its one buffer, before the handshake. The client
//! posts a SEND of that buffer (filled with 0x7b); after that each side posts its next SEND when both its
//! last SEND and a receive have completed, until it has sent `-n`. A side is done when it has also received
//! `-n`. Receives are posted again when no more than one is left. Either side exits as soon as it has its
//! last completion, so a side that has to acknowledge the last SEND should keep its QP for a moment.
//!
//! QP: RC, no remote access, timeout 14, retry count 7, RNR retry 7 (infinite), RNR timer 12 (0.64 ms),
//! one RDMA READ each way, a GRH with hop limit 1 (if the GID's interface ID is not zero).

use super::{ExchangeError, Fields, in_range, read_message, write_message};
use std::io::{Read, Write};

pub mod srq;

/// The default TCP port of all the ping-pong examples.
pub const PORT: u16 = 18515;

/// Length of a [`Destination`] on the wire, with its NUL.
pub const DESTINATION_LEN: usize = 52;

/// The client's last message.
pub const DONE: &[u8; 5] = b"done\0";

const WHAT: &str = "ping-pong address";
const WHAT_DONE: &str = "ping-pong \"done\"";

/// Address of a QP as exchanged in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// LID of the port; 0 on RoCE.
    pub lid: u16,
    /// QP number, 24 bits.
    pub qpn: u32,
    /// First PSN that this side will send, 24 bits.
    pub psn: u32,
    /// GID of this side.
    pub gid: [u8; 16],
}

impl Destination {
    /// Encodes the message, including its NUL.
    pub fn encode(&self) -> Result<[u8; DESTINATION_LEN], ExchangeError> {
        in_range("QP number", self.qpn.into(), 0, 0xff_ffff)?;
        in_range("PSN", self.psn.into(), 0, 0xff_ffff)?;
        let gid = u128::from_be_bytes(self.gid);
        let line = format!("{:04x}:{:06x}:{:06x}:{gid:032x}\0", self.lid, self.qpn, self.psn);
        let mut out = [0; DESTINATION_LEN];
        out.copy_from_slice(line.as_bytes());
        Ok(out)
    }

    /// Parses a message. Every field must have its full width, as the program prints it.
    pub fn parse(bytes: &[u8; DESTINATION_LEN]) -> Result<Self, ExchangeError> {
        let mut f = Fields::new(WHAT, bytes);
        let lid = f.hex_colon("the LID", 4)? as u16;
        let qpn = f.hex_colon("the QP number", 6)? as u32;
        let psn = f.hex_colon("the PSN", 6)? as u32;
        let mut gid = [0; 16];
        for b in &mut gid {
            *b = f.hex("the GID", 2)? as u8;
        }
        f.expect_byte(0)?;
        Ok(Self { lid, qpn, psn, gid })
    }
}

/// Performs the client's whole handshake and returns the server's address. The stream can be closed
/// afterwards.
pub fn client<S: Read + Write>(stream: &mut S, local: &Destination) -> Result<Destination, ExchangeError> {
    write_message(stream, WHAT, &local.encode()?)?;
    let remote = Destination::parse(&read_message(stream, WHAT)?)?;
    write_message(stream, WHAT_DONE, DONE)?;
    Ok(remote)
}

/// The server's side after it has received the client's address.
#[derive(Debug)]
pub struct Server<S> {
    stream: S,
    remote: Destination,
}

impl<S: Read + Write> Server<S> {
    /// Receives the client's address. The caller then connects its QP to it and calls [`Self::reply`].
    pub fn accept(mut stream: S) -> Result<Self, ExchangeError> {
        let remote = Destination::parse(&read_message(&mut stream, WHAT)?)?;
        Ok(Self { stream, remote })
    }

    /// Returns the client's address.
    pub fn remote(&self) -> &Destination {
        &self.remote
    }

    /// Sends this side's address, when its QP is ready to receive, waits for the client's "done" and returns
    /// the client's address.
    pub fn reply(mut self, local: &Destination) -> Result<Destination, ExchangeError> {
        write_message(&mut self.stream, WHAT, &local.encode()?)?;
        recv_done(&mut self.stream)?;
        Ok(self.remote)
    }
}

fn recv_done(stream: &mut impl Read) -> Result<(), ExchangeError> {
    let done: [u8; DONE.len()] = read_message(stream, WHAT_DONE)?;
    if &done != DONE {
        return Err(ExchangeError::malformed(WHAT_DONE, "not \"done\"", &done));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
