//! A packet that asks for a service, on its way from the steward to the process that has claimed it.

use std::net::IpAddr;

use super::Place;
use crate::wire::mad::ServiceId;
use crate::wire::{Flow, Gid};

/// Begins every one: who expects another form takes none.
const VERSION: u8 = 1;

/// Version, traffic class, source port, source and destination.
const HEAD: usize = 4 + 16 + 16;

/// Longer than any packet with a MAD, and what stands before it.
pub(super) const ROOM: usize = 1024;

/// The packet, BTH to ICRC, and how it came.
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

/// The name of the socket that takes those for a service.
pub(super) fn name(place: &Place, service: ServiceId) -> String {
    format!("{}{:016x}", of_place(place), service.0)
}

/// Whether a name is of a service at this place.
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
    fn one_reads_as_it_was_written_and_scraps_are_none() {
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
