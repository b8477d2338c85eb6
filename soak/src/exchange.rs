//! Parameters that the two ends of a connection exchange: in the private data of the connection manager, or over
//! TCP together with the endpoints of the queue pairs.

use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;

use urxe::verbs::{Endpoint, Gid, Psn, Qpn};

/// Parameters of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    pub connection: u64,
    /// Incarnation of the process.
    pub incarnation: u32,
    /// The target's window; 0 from the initiator.
    pub va: u64,
    pub rkey: u32,
}

impl Offer {
    /// Length in private data, in bytes.
    pub const LEN: usize = 24;

    pub fn bytes(&self) -> [u8; Offer::LEN] {
        let mut bytes = [0; Offer::LEN];
        bytes[..8].copy_from_slice(&self.connection.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.va.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[20..].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes
    }

    /// Returns `None` if there are fewer bytes than an offer has.
    pub fn parse(bytes: &[u8]) -> Option<Offer> {
        Some(Offer {
            connection: u64::from_le_bytes(*bytes.first_chunk()?),
            va: u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?),
            rkey: u32::from_le_bytes(*bytes.get(16..)?.first_chunk()?),
            incarnation: u32::from_le_bytes(*bytes.get(20..)?.first_chunk()?),
        })
    }
}

/// Length of an offer with an endpoint, in bytes.
const LEN: usize = Offer::LEN + 24;

/// Returns the message that one end sends over TCP.
pub fn message(offer: &Offer, endpoint: &Endpoint) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..24].copy_from_slice(&offer.bytes());
    bytes[24..40].copy_from_slice(&endpoint.gid.0);
    bytes[40..44].copy_from_slice(&endpoint.qpn.get().to_le_bytes());
    bytes[44..].copy_from_slice(&endpoint.psn.get().to_le_bytes());
    bytes
}

fn parse(bytes: &[u8; LEN]) -> Option<(Offer, Endpoint)> {
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let gid = Gid(*bytes.get(24..)?.first_chunk()?);
    let endpoint = Endpoint { gid, qpn: Qpn::new(word(40)?), psn: Psn::new(word(44)?) };
    Some((Offer::parse(bytes)?, endpoint))
}

/// A non-blocking TCP connection, which carries one message in each direction and whose end ends the connection
/// of the queue pairs.
pub struct Exchange {
    pub stream: TcpStream,
    bytes: [u8; LEN],
    len: usize,
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
        Ok(Exchange { stream, bytes: [0; LEN], len: 0 })
    }

    /// Reads what has arrived.
    pub fn read(&mut self) -> Progress {
        let is_complete = self.len == LEN;
        let mut end = [0];
        let buffer = if is_complete { &mut end[..] } else { &mut self.bytes[self.len..] };
        match self.stream.read(buffer) {
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Progress::Waiting,
            Ok(0) | Err(_) => Progress::Closed,
            Ok(_) if is_complete => Progress::Closed,
            Ok(len) => {
                self.len += len;
                match parse(&self.bytes).filter(|_| self.len == LEN) {
                    Some((offer, endpoint)) => Progress::Received(offer, endpoint),
                    None => Progress::Waiting,
                }
            }
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
