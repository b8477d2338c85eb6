//! The handshake of `ibv_srq_pingpong` (rdma-core 44): the addresses of many queue pairs.
//!
//! # On the wire
//! The exchange is that of the other ping-pong programs, but each side sends [`MAX_QPS`] addresses one after
//! the other, however many queue pairs it has: first those of its queue pairs, in order, then zeros. The
//! client's first queue pair is to be connected with the server's first, and so on. The client ends with the
//! same `done`.
//!
//! # The run
//! Both sides need the same number of queue pairs (`-q`, 16), which is not exchanged; all queue pairs of a
//! side use one shared receive queue. The client starts with a SEND on each queue pair.
//! A side sends again on a queue pair when its last SEND there and a receive from there have completed, as
//! long as it has completed fewer than `-n` SENDs in total; it is done when it has completed that many SENDs
//! and receives. So up to one message per queue pair more than `-n` may be sent. Receives are posted again
//! when no more than one per queue pair is left. The buffer of zeros that the program sends from is also the
//! one that it receives into.

use super::super::{ExchangeError, in_range, read_message, write_message};
use super::{DONE, Destination, WHAT, WHAT_DONE};
use std::io::{Read, Write};

/// Number of addresses that each side sends.
pub const MAX_QPS: usize = 256;

/// Placeholder in the positions without a queue pair.
const UNUSED: Destination = Destination { lid: 0, qpn: 0, psn: 0, gid: [0; 16] };

fn send_addresses(stream: &mut impl Write, local: &[Destination]) -> Result<(), ExchangeError> {
    in_range("number of QPs", local.len() as u64, 1, MAX_QPS as u64)?;
    let all = local.iter().chain(std::iter::repeat(&UNUSED)).take(MAX_QPS);
    all.into_iter().try_for_each(|d| write_message(stream, WHAT, &d.encode()?))
}

/// Reads all addresses and returns those before the first placeholder.
fn recv_addresses(stream: &mut impl Read) -> Result<Vec<Destination>, ExchangeError> {
    let mut all = Vec::with_capacity(MAX_QPS);
    for _ in 0..MAX_QPS {
        all.push(Destination::parse(&read_message(stream, WHAT)?)?);
    }
    let count = all.iter().position(|d| d.qpn == 0).unwrap_or(MAX_QPS);
    all.truncate(count);
    Ok(all)
}

/// Performs the client's whole handshake and returns the addresses of the server's queue pairs.
pub fn client<S: Read + Write>(
    stream: &mut S,
    local: &[Destination],
) -> Result<Vec<Destination>, ExchangeError> {
    send_addresses(stream, local)?;
    let remote = recv_addresses(stream)?;
    write_message(stream, WHAT_DONE, DONE)?;
    Ok(remote)
}

/// The server's side after it has received the client's addresses.
#[derive(Debug)]
pub struct Server<S> {
    stream: S,
    remote: Vec<Destination>,
}

impl<S: Read + Write> Server<S> {
    /// Receives the client's addresses. The caller then connects its queue pairs to them and calls
    /// [`Self::reply`].
    pub fn accept(mut stream: S) -> Result<Self, ExchangeError> {
        let remote = recv_addresses(&mut stream)?;
        Ok(Self { stream, remote })
    }

    /// Returns the client's addresses.
    pub fn remote(&self) -> &[Destination] {
        &self.remote
    }

    /// Sends this side's addresses, when its queue pairs are ready to receive, and waits for the client's
    /// "done".
    pub fn reply(mut self, local: &[Destination]) -> Result<(), ExchangeError> {
        send_addresses(&mut self.stream, local)?;
        super::recv_done(&mut self.stream)
    }
}

#[cfg(test)]
mod tests;
