//! IP headers of packets to and from a [`Flow`].

use std::net::Ipv4Addr;

use etherparse::{
    IpDscp, IpEcn, IpNumber, Ipv4Header, Ipv4HeaderSlice, Ipv6FlowLabel, Ipv6Header, Ipv6HeaderSlice,
};

use super::{Flow, Gid};

/// Returns the IPv4 header, without options and with don't-fragment set, of a packet with `udp_len` bytes of
/// UDP.
pub(super) fn v4_header(flow: &Flow, src: Ipv4Addr, dst: Ipv4Addr, id: u16, udp_len: u16) -> Ipv4Header {
    let mut header = Ipv4Header {
        dscp: IpDscp::try_new(flow.traffic_class >> 2).unwrap_or_default(),
        ecn: IpEcn::try_new(flow.traffic_class & 3).unwrap_or_default(),
        total_len: udp_len + Ipv4Header::MIN_LEN_U16,
        identification: id,
        dont_fragment: true,
        time_to_live: flow.hop_limit,
        protocol: IpNumber::UDP,
        source: src.octets(),
        destination: dst.octets(),
        ..Ipv4Header::default()
    };
    header.header_checksum = header.calc_header_checksum();
    header
}

/// Returns the IPv6 header, without extensions, of a packet with `udp_len` bytes of UDP.
pub(super) fn v6_header(flow: &Flow, udp_len: u16) -> Ipv6Header {
    Ipv6Header {
        traffic_class: flow.traffic_class,
        flow_label: Ipv6FlowLabel::try_new(flow.flow_label & 0xf_ffff).unwrap_or_default(),
        payload_length: udp_len,
        next_header: IpNumber::UDP,
        hop_limit: flow.hop_limit,
        source: Gid::from(flow.src).0,
        destination: Gid::from(flow.dst).0,
    }
}

/// Returns the flow of an IPv4 packet, without the UDP source port.
pub(super) fn v4_flow(ip: &Ipv4HeaderSlice<'_>) -> Flow {
    Flow {
        traffic_class: ip.slice()[1],
        hop_limit: ip.ttl(),
        ..Flow::new(ip.source_addr().into(), ip.destination_addr().into(), 0)
    }
}

/// Returns the flow of an IPv6 packet, without the UDP source port.
pub(super) fn v6_flow(ip: &Ipv6HeaderSlice<'_>) -> Flow {
    Flow {
        traffic_class: ip.traffic_class(),
        hop_limit: ip.hop_limit(),
        flow_label: ip.flow_label().value(),
        ..Flow::new(ip.source_addr().into(), ip.destination_addr().into(), 0)
    }
}
