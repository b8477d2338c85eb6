//! Datagram headers: one for messages over UDP, through which sockets resolve each other's queue pairs, and
//! one for messages between queue pairs.
//!
//! The formats are those that librdmacm 44 sends, which differ from its own description: the queue pair
//! number is stored unshifted, and the address after it is the sender's. Over IPv6, librdmacm writes the flow
//! label and the first twelve bytes of the address there; no receiver reads them, because the sender is the
//! source of the UDP datagram.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;
use urxe::verbs::Qpn;

/// First bytes of every message sent over UDP.
const TAG: [u8; 4] = [0x55; 4];

/// Length of the longest header, in bytes.
pub(crate) const MAX_HEADER_LEN: usize = 28;

/// Length of librdmacm's receive buffers, and thus of the longest message with its header. A longer message
/// would move librdmacm's queue pair to the error state.
pub(crate) const MAX_MESSAGE_LEN: usize = 2048;

/// Operation of a message sent over UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    /// The header is followed by data.
    Data = 0,
    /// Response that carries only a queue pair number.
    Control = 7,
}

/// Reason for which a received message is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(crate) enum HeaderError {
    #[error("message of {0} bytes is too short for a header")]
    TooShort(usize),
    #[error("tag {0:02x?} instead of {TAG:02x?}: not a message of rsockets")]
    Tag([u8; 4]),
    #[error("invalid IP version {0}: expected 4 or 6")]
    Version(u8),
    #[error("invalid operation {0}: expected data (0) or control (7)")]
    Op(u8),
    #[error(
        "invalid header length {stated}: expected at least {min} and at most {got}, the length of the message"
    )]
    Length { stated: u8, got: usize, min: usize },
    #[error("invalid queue pair number {0:#x}: reserved or longer than 24 bits")]
    Qpn(u32),
}

/// Encoded header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    bytes: [u8; MAX_HEADER_LEN],
    len: usize,
}

impl Header {
    fn new() -> Header {
        Header { bytes: [0; MAX_HEADER_LEN], len: 0 }
    }

    fn with(mut self, part: &[u8]) -> Header {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Checks the length field of a header, and returns the bytes after the header.
fn payload_after(bytes: &[u8], stated: u8, min: usize) -> Result<&[u8], HeaderError> {
    let fits = usize::from(stated) >= min && usize::from(stated) <= bytes.len();
    if fits {
        Ok(&bytes[stated.into()..])
    } else {
        Err(HeaderError::Length { stated, got: bytes.len(), min })
    }
}

/// Header of a message sent over UDP, with the sender's queue pair number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resolution {
    pub op: Op,
    pub qpn: Qpn,
}

impl Resolution {
    /// Encodes the header for a sender with the address `from`.
    pub(crate) fn header(&self, from: IpAddr) -> Header {
        let (version, len): (u8, u8) = if from.is_ipv4() { (4, 16) } else { (6, 28) };
        let start = Header::new().with(&TAG).with(&[version, self.op as u8, len, 0]);
        let start = start.with(&self.qpn.get().to_be_bytes());
        match from {
            IpAddr::V4(ip) => start.with(&ip.octets()),
            IpAddr::V6(ip) => start.with(&ip.octets()),
        }
    }

    /// Parses a message. Returns the header and the data that follows it.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Resolution, &[u8]), HeaderError> {
        let &[t0, t1, t2, t3, version, op, stated, _, q0, q1, q2, q3] =
            bytes.first_chunk().ok_or(HeaderError::TooShort(bytes.len()))?;
        let tag = [t0, t1, t2, t3];
        if tag != TAG {
            return Err(HeaderError::Tag(tag));
        }
        let min = match version {
            4 => 16,
            6 => 28,
            other => return Err(HeaderError::Version(other)),
        };
        let op = match op {
            0 => Op::Data,
            7 => Op::Control,
            other => return Err(HeaderError::Op(other)),
        };
        let data = payload_after(bytes, stated, min)?;
        let number = u32::from_be_bytes([q0, q1, q2, q3]);
        // QP0 and QP1 are reserved for management, and the highest number denotes multicast.
        if !(2..0xff_ffff).contains(&number) {
            return Err(HeaderError::Qpn(number));
        }
        Ok((Resolution { op, qpn: Qpn::new(number) }, data))
    }
}

/// Returns the header of a datagram sent between queue pairs, which holds the sender's address and port.
pub(crate) fn source(from: SocketAddr) -> Header {
    let port = from.port().to_be_bytes();
    match from.ip() {
        IpAddr::V4(ip) => Header::new().with(&[4, 8]).with(&port).with(&ip.octets()),
        IpAddr::V6(ip) => Header::new().with(&[6, 24]).with(&port).with(&[0; 4]).with(&ip.octets()),
    }
}

/// Parses the header of a datagram sent between queue pairs. Returns the sender and the header length.
///
/// # Errors
/// [`HeaderError`].
pub(crate) fn parse_source(bytes: &[u8]) -> Result<(SocketAddr, usize), HeaderError> {
    let Some(([version, stated, high, low], rest)) = bytes.split_first_chunk::<4>() else {
        return Err(HeaderError::TooShort(bytes.len()));
    };
    let (version, stated) = (*version, *stated);
    let (ip, min) = match version {
        4 => (rest.first_chunk::<4>().map(|ip| IpAddr::from(Ipv4Addr::from(*ip))), 8),
        6 => {
            // The address follows the flow label.
            let ip = rest.get(4..).and_then(|rest| rest.first_chunk::<16>());
            (ip.map(|ip| Ipv6Addr::from(*ip).into()), 24)
        }
        other => return Err(HeaderError::Version(other)),
    };
    let ip = ip.ok_or(HeaderError::TooShort(bytes.len()))?;
    payload_after(bytes, stated, min)?;
    Ok((SocketAddr::new(ip, u16::from_be_bytes([*high, *low])), stated.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Header of a UDP message from 10.77.0.2, captured from librdmacm 44.
    const BY_UDP: [u8; 16] = [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 0, 0, 0x11, 10, 77, 0, 2];
    /// Header of a datagram sent between queue pairs, from 10.77.0.1 port 7000, captured from librdmacm 44.
    const BY_PAIR: [u8; 8] = [4, 8, 0x1b, 0x58, 10, 77, 0, 1];

    #[test]
    fn headers_are_encoded_and_decoded_as_by_librdmacm() {
        let resolution = Resolution { op: Op::Control, qpn: Qpn::new(0x11) };
        assert_eq!(resolution.header("10.77.0.2".parse().unwrap()).bytes(), BY_UDP);
        assert_eq!(Resolution::parse(&BY_UDP), Ok((resolution, &[][..])));
        assert_eq!(source("10.77.0.1:7000".parse().unwrap()).bytes(), BY_PAIR);
        assert_eq!(parse_source(&BY_PAIR), Ok(("10.77.0.1:7000".parse().unwrap(), 8)));
        let mut v6 = vec![6, 24, 0x1b, 0x5a, 0, 0, 0, 0, 0xfd, 0x77, 0, 0, 0, 0, 0, 0];
        v6.extend([0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(source("[fd77::1]:7002".parse().unwrap()).bytes(), v6);
        assert_eq!(parse_source(&v6), Ok(("[fd77::1]:7002".parse().unwrap(), 24)));
    }

    #[test]
    fn message_is_parsed_with_headers_of_both_ip_versions() {
        for ip in ["10.0.0.1", "fd77::1"] {
            let resolution = Resolution { op: Op::Data, qpn: Qpn::new(0x123456) };
            let message = [resolution.header(ip.parse().unwrap()).bytes(), b"data"].concat();
            assert_eq!(Resolution::parse(&message), Ok((resolution, &b"data"[..])));
        }
    }

    #[test]
    fn invalid_headers_are_rejected_with_the_reason() {
        let with = |at: usize, byte: u8| {
            let mut bytes = BY_UDP;
            bytes[at] = byte;
            Resolution::parse(&bytes).map(|(resolution, _)| resolution)
        };
        for len in 0..12 {
            assert_eq!(Resolution::parse(&BY_UDP[..len]), Err(HeaderError::TooShort(len)));
        }
        for len in 12..16 {
            let wrong = HeaderError::Length { stated: 16, got: len, min: 16 };
            assert_eq!(Resolution::parse(&BY_UDP[..len]), Err(wrong));
        }
        assert_eq!(with(3, 0), Err(HeaderError::Tag([0x55, 0x55, 0x55, 0])));
        assert_eq!(with(4, 5), Err(HeaderError::Version(5)));
        assert_eq!(with(4, 6), Err(HeaderError::Length { stated: 16, got: 16, min: 28 }));
        assert_eq!(with(5, 1), Err(HeaderError::Op(1)));
        assert_eq!(with(6, 15), Err(HeaderError::Length { stated: 15, got: 16, min: 16 }));
        assert_eq!(with(6, 17), Err(HeaderError::Length { stated: 17, got: 16, min: 16 }));
        assert_eq!(with(8, 1), Err(HeaderError::Qpn(0x0100_0011)));
        assert_eq!(with(11, 1), Err(HeaderError::Qpn(1)));
        assert!((0..8).all(|len| parse_source(&BY_PAIR[..len]).is_err()));
        assert_eq!(parse_source(&[7, 8, 0, 1, 0, 0, 0, 0]), Err(HeaderError::Version(7)));
        assert_eq!(
            parse_source(&[4, 9, 0, 1, 0, 0, 0, 0]),
            Err(HeaderError::Length { stated: 9, got: 8, min: 8 })
        );
    }
}
