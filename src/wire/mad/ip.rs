//! RDMA IP CM service (IBA annex A11): the service ID contains the IP port, and a header in the private data
//! contains the IP addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::ServiceId;
use crate::wire::Gid;

/// Length in bytes of the header that starts the private data in a REQ or SIDR_REQ.
pub const HEADER_LEN: usize = 36;

/// Port space of `rdma_cm`. Each port space has its own, independent ports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// IP over InfiniBand (`RDMA_PS_IPOIB`): multicast groups shared with the network stack.
    Ipoib = 0x0002,
    /// Connections (`RDMA_PS_TCP`).
    Tcp = 0x0106,
    /// Datagrams (`RDMA_PS_UDP`).
    Udp = 0x0111,
    /// Native service IDs (`RDMA_PS_IB`).
    Ib = 0x013f,
}

impl PortSpace {
    /// All port spaces.
    pub const ALL: [PortSpace; 4] = [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];

    /// Returns the port space's number in `rdma_cm`.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Returns the port space with the given number in `rdma_cm`.
    pub fn from_code(code: u16) -> Option<PortSpace> {
        PortSpace::ALL.into_iter().find(|s| s.code() == code)
    }

    /// Returns the service ID for `port` in this port space.
    pub const fn service(self, port: u16) -> ServiceId {
        ServiceId((self as u64) << 16 | port as u64)
    }
}

impl ServiceId {
    /// Returns the port space and the port that the service ID encodes, or `None` if it does not encode a
    /// port.
    pub fn ip_port(self) -> Option<(PortSpace, u16)> {
        let space = u16::try_from(self.0 >> 16).ok().and_then(PortSpace::from_code)?;
        Some((space, self.0 as u16))
    }

    /// Returns the service IDs for the same port in every port space, or only this service ID if it does not
    /// encode a port.
    pub fn of_same_port(self) -> impl Iterator<Item = ServiceId> {
        let port = self.ip_port().map(|(_, port)| port);
        let all = port.into_iter().flat_map(|port| PortSpace::ALL.map(|space| space.service(port)));
        all.chain(port.is_none().then_some(self))
    }
}

/// Addresses of both ends of a connection. An all-zero address is a wildcard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpHeader {
    /// Address and port of the client.
    pub source: SocketAddr,
    /// Address of the server. The server's port is in the service ID.
    pub destination: IpAddr,
}

/// Reason why private data does not begin with a valid header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IpHeaderError {
    /// The private data is too short.
    #[error("{0} bytes of private data are too short for an IP header of {HEADER_LEN} bytes")]
    Length(usize),
    /// The header version is unknown.
    #[error("version of the IP header is {}.{}, must be 0.0", .0 >> 4, .0 & 0xf)]
    Version(u8),
    /// The address family is neither IPv4 nor IPv6.
    #[error("IP version {0} is neither 4 nor 6")]
    IpVersion(u8),
}

impl IpHeader {
    /// Decodes the header at the start of `private_data`.
    ///
    /// # Errors
    /// [`IpHeaderError`] if the data is too short, or its version or address family is unknown.
    pub fn parse(private_data: &[u8]) -> Result<IpHeader, IpHeaderError> {
        let Some(bytes) = private_data.first_chunk::<HEADER_LEN>() else {
            return Err(IpHeaderError::Length(private_data.len()));
        };
        if bytes[0] != 0 {
            return Err(IpHeaderError::Version(bytes[0]));
        }
        let version = bytes[1] >> 4;
        let address = |at: usize| -> Result<IpAddr, IpHeaderError> {
            match version {
                // An IPv4 address is in the last word of its field.
                4 => Ok(Ipv4Addr::from(*bytes[at + 12..].first_chunk().expect("36 bytes")).into()),
                6 => Ok(Ipv6Addr::from(*bytes[at..].first_chunk().expect("36 bytes")).into()),
                other => Err(IpHeaderError::IpVersion(other)),
            }
        };
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        Ok(IpHeader { source: SocketAddr::new(address(4)?, port), destination: address(20)? })
    }

    /// Encodes the header. If either address is IPv6, both are encoded as IPv6.
    pub fn bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let (source, destination) = (self.source.ip(), self.destination);
        if let (IpAddr::V4(source), IpAddr::V4(destination)) = (source, destination) {
            bytes[1] = 4 << 4;
            bytes[16..20].copy_from_slice(&source.octets());
            bytes[32..].copy_from_slice(&destination.octets());
        } else {
            bytes[1] = 6 << 4;
            bytes[4..20].copy_from_slice(&Gid::from(source).0);
            bytes[20..].copy_from_slice(&Gid::from(destination).0);
        }
        bytes[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_map_to_service_ids_and_back() {
        assert_eq!(PortSpace::Tcp.service(0x1c06), ServiceId(0x0000_0000_0106_1c06));
        assert_eq!(PortSpace::Udp.service(7174).ip_port(), Some((PortSpace::Udp, 7174)));
        assert_eq!(ServiceId(0x1_0106_1c06).ip_port(), None);
        assert_eq!(ServiceId(0x0107_1c06).ip_port(), None);
    }

    #[test]
    fn ip_headers_round_trip_and_mixed_address_families_become_ipv6() {
        for (source, destination) in [("10.0.0.1:7", "10.0.0.2"), ("[fd00::1]:65535", "fd00::2")] {
            let header =
                IpHeader { source: source.parse().unwrap(), destination: destination.parse().unwrap() };
            assert_eq!(IpHeader::parse(&header.bytes()), Ok(header));
        }
        let mixed =
            IpHeader { source: "10.0.0.1:7".parse().unwrap(), destination: "fd00::2".parse().unwrap() };
        let read = IpHeader::parse(&mixed.bytes()).unwrap();
        assert_eq!(read.source, "[::ffff:10.0.0.1]:7".parse().unwrap());
    }

    #[test]
    fn parsing_an_invalid_ip_header_fails_with_the_error_for_its_cause() {
        let good =
            IpHeader { source: "10.0.0.1:7".parse().unwrap(), destination: "10.0.0.2".parse().unwrap() };
        let mut bytes = good.bytes();
        assert_eq!(IpHeader::parse(&bytes[..35]), Err(IpHeaderError::Length(35)));
        bytes[1] = 0x50;
        assert_eq!(IpHeader::parse(&bytes), Err(IpHeaderError::IpVersion(5)));
        bytes[0] = 0x10;
        assert_eq!(IpHeader::parse(&bytes), Err(IpHeaderError::Version(0x10)));
    }
}
