//! Parameters that the two ends of a connection exchange: in the private data of the connection manager, or
//! over TCP together with the endpoints of the queue pairs.

use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;

use urxe::verbs::{Endpoint, Gid, Psn, Qpn};

/// Parameters of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    pub connection: u64,
    /// Incarnation of the process.
    pub incarnation: u32,
    /// Address of the sender's window. Only the window of the target is used.
    pub va: u64,
    pub rkey: u32,
}

impl Offer {
    /// Length in bytes.
    const LEN: usize = 24;

    pub fn bytes(&self) -> Vec<u8> {
        let words = [self.connection, self.va, u64::from(self.incarnation) << 32 | u64::from(self.rkey)];
        words.map(u64::to_le_bytes).concat()
    }

    /// Returns `None` if there are fewer bytes than an offer has.
    pub fn parse(bytes: &[u8]) -> Option<Offer> {
        let (words, _) = bytes.as_chunks();
        let [connection, va, last] = words.first_chunk()?.map(u64::from_le_bytes);
        Some(Offer { connection, va, incarnation: (last >> 32) as u32, rkey: last as u32 })
    }
}

/// Length of an offer with an endpoint, in bytes.
const LEN: usize = Offer::LEN + 24;

/// Returns the message that one end sends over TCP.
pub fn message(offer: &Offer, endpoint: &Endpoint) -> Vec<u8> {
    let numbers = [endpoint.qpn.get(), endpoint.psn.get()].map(u32::to_le_bytes);
    [&offer.bytes(), &endpoint.gid.0[..], numbers.as_flattened()].concat()
}

/// Returns `None` if there are fewer bytes than a message has.
fn parse(bytes: &[u8]) -> Option<(Offer, Endpoint)> {
    let (gid, numbers) = bytes.get(Offer::LEN..)?.split_first_chunk()?;
    let [qpn, psn] = numbers.as_chunks().0.first_chunk()?.map(u32::from_le_bytes);
    Some((Offer::parse(bytes)?, Endpoint { gid: Gid(*gid), qpn: Qpn::new(qpn), psn: Psn::new(psn) }))
}

/// A non-blocking TCP connection, which carries one message in each direction and whose end ends the
/// connection of the queue pairs.
pub struct Exchange {
    pub stream: TcpStream,
    bytes: Vec<u8>,
}

/// Progress of an exchange.
pub enum Progress {
    /// Nothing new.
    Waiting,
    /// The peer's message is complete.
    Received(Offer, Endpoint),
    /// The peer has closed the connection.
    Closed,
}

impl Exchange {
    pub fn new(stream: TcpStream) -> io::Result<Exchange> {
        stream.set_nonblocking(true)?;
        Ok(Exchange { stream, bytes: Vec::new() })
    }

    /// Reads what has arrived.
    pub fn read(&mut self) -> Progress {
        let is_complete = self.bytes.len() >= LEN;
        match self.stream.read_to_end(&mut self.bytes) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            _ => return Progress::Closed,
        }
        match parse(&self.bytes).filter(|_| !is_complete) {
            Some((offer, endpoint)) => Progress::Received(offer, endpoint),
            None => Progress::Waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_round_trips() {
        let offer =
            Offer { connection: 1 << 60 | 7, incarnation: 3, va: 0x1234_5678_9abc, rkey: 0xdead_0001 };
        let endpoint = Endpoint { gid: Gid([7; 16]), qpn: Qpn::new(0x12_3456), psn: Psn::new(0xff_fffe) };
        assert_eq!(parse(&message(&offer, &endpoint)), Some((offer, endpoint)));
        assert_eq!(Offer::parse(&offer.bytes()[..23]), None);
    }
}
