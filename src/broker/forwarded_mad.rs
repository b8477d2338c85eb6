//! Forwarded MAD: a packet with a request for a service, which the broker forwards to the process that has
//! registered the service.

use std::net::IpAddr;

use crate::link::udp::BindAddr;
use crate::wire::mad::ServiceId;
use crate::wire::{Flow, Gid};

/// Format version, in the first byte of every message. Receivers drop messages with another version.
const VERSION: u8 = 1;

/// Size of the header, in bytes: version, traffic class and source port (4), source address (16), destination
/// address (16).
const HEADER_LEN: usize = 4 + 16 + 16;

/// Size of a receive buffer, in bytes: more than the header and any packet with a MAD.
pub const MAX_LEN: usize = 1024;

/// A packet, from BTH to ICRC, and the flow on which it arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForwardedMad<'a> {
    pub flow: Flow,
    pub packet: &'a [u8],
}

impl<'a> ForwardedMad<'a> {
    pub fn bytes(&self) -> Vec<u8> {
        let Flow { src, dst, src_port, traffic_class, .. } = self.flow;
        let [src, dst] = [src, dst].map(|ip| Gid::from(ip).0);
        [&[VERSION, traffic_class][..], &src_port.to_be_bytes(), &src, &dst, self.packet].concat()
    }

    pub fn parse(bytes: &'a [u8]) -> Option<ForwardedMad<'a>> {
        let (head, packet) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let ip = |at: usize| -> Option<IpAddr> { Some(Gid(*head[at..].first_chunk()?).ip()) };
        let (version, src_port) = (head[0], u16::from_be_bytes([head[2], head[3]]));
        let flow = Flow { traffic_class: head[1], ..Flow::new(ip(4)?, ip(20)?, src_port) };
        let is_valid = version == VERSION && flow.src.is_ipv4() == flow.dst.is_ipv4() && !packet.is_empty();
        is_valid.then_some(ForwardedMad { flow, packet })
    }
}

/// Returns the name of the socket that receives the requests for a service.
pub fn name(bind_addr: &BindAddr, service: ServiceId) -> String {
    format!("{}{:016x}", name_prefix(bind_addr), service.0)
}

/// Reports whether a socket name is that of a service on the given address.
pub fn is_at(bind_addr: &BindAddr, name: &str) -> bool {
    name.starts_with(&name_prefix(bind_addr))
}

fn name_prefix(bind_addr: &BindAddr) -> String {
    format!("urxe-service/{}/", bind_addr.key())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_mad_round_trips_and_malformed_bytes_are_rejected() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fd00::2")] {
            let flow =
                Flow { traffic_class: 0x68, ..Flow::new(src.parse().unwrap(), dst.parse().unwrap(), 0xc123) };
            let forwarded_mad = ForwardedMad { flow, packet: &[7; 280] };
            let bytes = forwarded_mad.bytes();
            assert!(bytes.len() <= MAX_LEN);
            assert_eq!(ForwardedMad::parse(&bytes), Some(forwarded_mad));
            assert_eq!(ForwardedMad::parse(&bytes[..HEADER_LEN]), None);
            assert_eq!(ForwardedMad::parse(&[&[2], &bytes[1..]].concat()), None);
        }
    }
}
