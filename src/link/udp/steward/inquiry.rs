//! Forwarded MAD: a packet with a request for a service, on its way from the broker to the process that has
//! registered the service.

use std::net::IpAddr;

use super::Place;
use crate::wire::mad::ServiceId;
use crate::wire::{Flow, Gid};

/// First byte of every message: a receiver that expects another format drops it.
const VERSION: u8 = 1;

/// Size of the header: version, traffic class, source port, source and destination address.
const HEAD: usize = 4 + 16 + 16;

/// Size of a receive buffer: larger than any packet with a MAD and the header.
pub(super) const ROOM: usize = 1024;

/// The packet, from BTH to ICRC, and the flow on which it arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Inquiry<'a> {
    pub flow: Flow,
    pub packet: &'a [u8],
}

impl<'a> Inquiry<'a> {
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.packet.len());
        bytes.extend([VERSION, self.flow.traffic_class]);
        bytes.extend(self.flow.src_port.to_be_bytes());
        for ip in [self.flow.src, self.flow.dst] {
            bytes.extend(Gid::from(ip).0);
        }
        bytes.extend(self.packet);
        bytes
    }

    pub fn parse(bytes: &'a [u8]) -> Option<Inquiry<'a>> {
        let (head, packet) = bytes.split_first_chunk::<HEAD>()?;
        let ip = |at: usize| -> Option<IpAddr> { Some(Gid(*head[at..].first_chunk()?).ip()) };
        let (version, src_port) = (head[0], u16::from_be_bytes([head[2], head[3]]));
        let flow = Flow { traffic_class: head[1], ..Flow::new(ip(4)?, ip(20)?, src_port) };
        let is_one = version == VERSION && flow.src.is_ipv4() == flow.dst.is_ipv4() && !packet.is_empty();
        is_one.then_some(Inquiry { flow, packet })
    }
}

/// Returns the name of the socket that receives the requests for a service.
pub(super) fn name(place: &Place, service: ServiceId) -> String {
    format!("{}{:016x}", of_place(place), service.0)
}

/// Reports whether a name is of a service at this address.
pub(super) fn is_at(place: &Place, name: &str) -> bool {
    name.starts_with(&of_place(place))
}

fn of_place(place: &Place) -> String {
    format!("urxe-service/{}/", place.key())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inquiry_round_trips_and_malformed_bytes_are_rejected() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fd00::2")] {
            let flow =
                Flow { traffic_class: 0x68, ..Flow::new(src.parse().unwrap(), dst.parse().unwrap(), 0xc123) };
            let inquiry = Inquiry { flow, packet: &[7; 280] };
            let bytes = inquiry.bytes();
            assert!(bytes.len() <= ROOM);
            assert_eq!(Inquiry::parse(&bytes), Some(inquiry));
            assert_eq!(Inquiry::parse(&bytes[..HEAD]), None);
            assert_eq!(Inquiry::parse(&[&[2], &bytes[1..]].concat()), None);
        }
    }
}
