//! Ethernet, VLAN, IP and UDP around a RoCEv2 packet.

use std::net::IpAddr;

use etherparse::{IpDscp, IpEcn, IpFragOffset, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, UdpHeader};

use super::{Flow, ROCE_PORT};

/// Appends the IP and UDP headers of a packet with `udp_payload` bytes (BTH to ICRC) to `out`. The UDP
/// checksum is 0 (none), as every RoCEv2 sender has it.
///
/// # Panics
/// If the addresses are of different families, or the packet exceeds 65,535 bytes.
pub fn append_ip_udp(out: &mut Vec<u8>, flow: &Flow, id: u16, udp_payload: usize) {
    let udp_len = u16::try_from(udp_payload + UdpHeader::LEN).expect("no packet is above 64 KiB");
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut ip = Ipv4Header {
                dscp: IpDscp::try_new(flow.traffic_class >> 2).unwrap_or_default(),
                ecn: IpEcn::try_new(flow.traffic_class & 3).unwrap_or_default(),
                total_len: udp_len + Ipv4Header::MIN_LEN_U16,
                identification: id,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: IpFragOffset::ZERO,
                time_to_live: flow.hop_limit,
                protocol: IpNumber::UDP,
                header_checksum: 0,
                source: src.octets(),
                destination: dst.octets(),
                options: Default::default(),
            };
            ip.header_checksum = ip.calc_header_checksum();
            out.extend_from_slice(&ip.to_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let ip = Ipv6Header {
                traffic_class: flow.traffic_class,
                flow_label: Ipv6FlowLabel::try_new(flow.flow_label & 0xf_ffff).unwrap_or_default(),
                payload_length: udp_len,
                next_header: IpNumber::UDP,
                hop_limit: flow.hop_limit,
                source: src.octets(),
                destination: dst.octets(),
            };
            out.extend_from_slice(&ip.to_bytes());
        }
        (src, dst) => panic!("a flow from {src} to {dst} mixes address families"),
    }
    let udp =
        UdpHeader { source_port: flow.src_port, destination_port: ROCE_PORT, length: udp_len, checksum: 0 };
    out.extend_from_slice(&udp.to_bytes());
}
