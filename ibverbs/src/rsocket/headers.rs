//! What datagram sockets put before data: one header where they go by UDP, to learn each other's queue pairs, and another where
//! they go from one to the other.
//!
//! As librdmacm 44 sends them, which its own description does not quite say: the queue pair's number is a plain one, and the
//! address behind it is the sender's. Over IPv6 librdmacm writes the flow label there and the first twelve bytes of the
//! address; nobody reads that, as the sender is where the datagram came from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;
use urxe::verbs::Qpn;

/// What messages of the protocol begin with.
const TAG: [u8; 4] = [0x55; 4];

/// The longest of these headers.
pub const MOST: usize = 28;

/// The longest message, with its header, that librdmacm has room for: a longer one ends its queue pair.
pub const LONGEST: usize = 2048;

/// Of a message by UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Data come with it.
    Data = 0,
    /// It answers with nothing but the number of a queue pair.
    Control = 7,
}

/// A datagram that is none of the protocol's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum HeaderError {
    #[error("{0} bytes, which are too few for a header: they are dropped")]
    Short(usize),
    #[error("the tag is {0:02x?}, not {TAG:02x?}: some other program sends here")]
    Tag([u8; 4]),
    #[error("IP version {0}, neither 4 nor 6: it is dropped")]
    Version(u8),
    #[error("operation {0}, neither data (0) nor control (7): it is dropped")]
    Op(u8),
    #[error("a header of {told} bytes in a message of {got}, where it has at least {least}: it is dropped")]
    Length { told: u8, got: usize, least: usize },
    #[error("queue pair {0:#x}, which has more than 24 bits or is nobody's: it is dropped")]
    Qpn(u32),
}

/// A header as it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    bytes: [u8; MOST],
    len: usize,
}

impl Header {
    fn new() -> Header {
        Header { bytes: [0; MOST], len: 0 }
    }

    fn with(mut self, part: &[u8]) -> Header {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        self
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Checks the length that a header tells, and gives what is behind it.
fn behind(bytes: &[u8], told: u8, least: usize) -> Result<&[u8], HeaderError> {
    let fits = usize::from(told) >= least && usize::from(told) <= bytes.len();
    if fits { Ok(&bytes[told.into()..]) } else { Err(HeaderError::Length { told, got: bytes.len(), least }) }
}

/// What comes by UDP: the sender's queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolution {
    pub op: Op,
    pub qpn: Qpn,
}

impl Resolution {
    pub fn header(&self, from: IpAddr) -> Header {
        let (version, len): (u8, u8) = if from.is_ipv4() { (4, 16) } else { (6, 28) };
        let start = Header::new().with(&TAG).with(&[version, self.op as u8, len, 0]);
        let start = start.with(&self.qpn.get().to_be_bytes());
        match from {
            IpAddr::V4(ip) => start.with(&ip.octets()),
            IpAddr::V6(ip) => start.with(&ip.octets()),
        }
    }

    /// The header, and the data behind it.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn parse(bytes: &[u8]) -> Result<(Resolution, &[u8]), HeaderError> {
        let Some((tag, rest)) = bytes.split_first_chunk::<4>() else {
            return Err(HeaderError::Short(bytes.len()));
        };
        let Some(([version, op, told, _], rest)) = rest.split_first_chunk::<4>() else {
            return Err(HeaderError::Short(bytes.len()));
        };
        let Some((qpn, _)) = rest.split_first_chunk::<4>() else {
            return Err(HeaderError::Short(bytes.len()));
        };
        if *tag != TAG {
            return Err(HeaderError::Tag(*tag));
        }
        let least = match version {
            4 => 16,
            6 => 28,
            other => return Err(HeaderError::Version(*other)),
        };
        let op = match op {
            0 => Op::Data,
            7 => Op::Control,
            other => return Err(HeaderError::Op(*other)),
        };
        let data = behind(bytes, *told, least)?;
        let number = u32::from_be_bytes(*qpn);
        // QP0 and QP1 are the port's own, the last number is that of groups.
        if !(2..0xff_ffff).contains(&number) {
            return Err(HeaderError::Qpn(number));
        }
        Ok((Resolution { op, qpn: Qpn::new(number) }, data))
    }
}

/// What a datagram from queue pair to queue pair begins with: its sender's address and port.
pub fn source(from: SocketAddr) -> Header {
    let port = from.port().to_be_bytes();
    match from.ip() {
        IpAddr::V4(ip) => Header::new().with(&[4, 8]).with(&port).with(&ip.octets()),
        IpAddr::V6(ip) => Header::new().with(&[6, 24]).with(&port).with(&[0; 4]).with(&ip.octets()),
    }
}

/// The sender, and the bytes of that header.
///
/// # Errors
/// [`HeaderError`].
pub fn parse_source(bytes: &[u8]) -> Result<(SocketAddr, usize), HeaderError> {
    let Some(([version, told, high, low], rest)) = bytes.split_first_chunk::<4>() else {
        return Err(HeaderError::Short(bytes.len()));
    };
    let (version, told) = (*version, *told);
    let (ip, least) = match version {
        4 => (rest.first_chunk::<4>().map(|ip| IpAddr::from(Ipv4Addr::from(*ip))), 8),
        6 => {
            // Behind a flow label.
            let ip = rest.get(4..).and_then(|rest| rest.first_chunk::<16>());
            (ip.map(|ip| Ipv6Addr::from(*ip).into()), 24)
        }
        other => return Err(HeaderError::Version(other)),
    };
    let ip = ip.ok_or(HeaderError::Short(bytes.len()))?;
    behind(bytes, told, least)?;
    Ok((SocketAddr::new(ip, u16::from_be_bytes([*high, *low])), told.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As librdmacm 44 sent them, from 10.77.0.2 by UDP and from port 7000 of 10.77.0.1 by queue pairs.
    const BY_UDP: [u8; 16] = [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 0, 0, 0x11, 10, 77, 0, 2];
    const BY_PAIR: [u8; 8] = [4, 8, 0x1b, 0x58, 10, 77, 0, 1];

    #[test]
    fn headers_are_librdmacms() {
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
    fn data_are_behind_headers_of_both_versions() {
        for ip in ["10.0.0.1", "fd77::1"] {
            let resolution = Resolution { op: Op::Data, qpn: Qpn::new(0x123456) };
            let message = [resolution.header(ip.parse().unwrap()).bytes(), b"data"].concat();
            assert_eq!(Resolution::parse(&message), Ok((resolution, &b"data"[..])));
        }
    }

    #[test]
    fn what_is_none_is_told_apart() {
        let with = |at: usize, byte: u8| {
            let mut bytes = BY_UDP;
            bytes[at] = byte;
            Resolution::parse(&bytes).map(|(resolution, _)| resolution)
        };
        for len in 0..12 {
            assert_eq!(Resolution::parse(&BY_UDP[..len]), Err(HeaderError::Short(len)));
        }
        for len in 12..16 {
            let wrong = HeaderError::Length { told: 16, got: len, least: 16 };
            assert_eq!(Resolution::parse(&BY_UDP[..len]), Err(wrong));
        }
        assert_eq!(with(3, 0), Err(HeaderError::Tag([0x55, 0x55, 0x55, 0])));
        assert_eq!(with(4, 5), Err(HeaderError::Version(5)));
        assert_eq!(with(4, 6), Err(HeaderError::Length { told: 16, got: 16, least: 28 }));
        assert_eq!(with(5, 1), Err(HeaderError::Op(1)));
        assert_eq!(with(6, 15), Err(HeaderError::Length { told: 15, got: 16, least: 16 }));
        assert_eq!(with(6, 17), Err(HeaderError::Length { told: 17, got: 16, least: 16 }));
        assert_eq!(with(8, 1), Err(HeaderError::Qpn(0x0100_0011)));
        assert_eq!(with(11, 1), Err(HeaderError::Qpn(1)));
        assert!((0..8).all(|len| parse_source(&BY_PAIR[..len]).is_err()));
        assert_eq!(parse_source(&[7, 8, 0, 1, 0, 0, 0, 0]), Err(HeaderError::Version(7)));
        assert_eq!(
            parse_source(&[4, 9, 0, 1, 0, 0, 0, 0]),
            Err(HeaderError::Length { told: 9, got: 8, least: 8 })
        );
    }
}
