//! Ethernet, VLAN, IP and UDP around a RoCEv2 packet, and the few frames that a host on Ethernet owes its
//! neighbours: ARP, IPv6 neighbour discovery, multicast memberships and echo.
//!
//! [`parse()`] reads a frame into what it is; the `append_…` functions write one to the end of a buffer.

mod control;
mod membership;
mod parse;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use etherparse::{
    EtherType, Ethernet2Header, IpDscp, IpEcn, IpFragOffset, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header,
    UdpHeader,
};

pub use control::{append_arp, append_echo, append_neighbor_advert, append_neighbor_solicit};
pub use membership::{GroupQuery, GroupReport, Standing, append_group_report};
pub use parse::parse;

use super::{Flow, IpIdent, Mac, ROCE_PORT};

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_LEN: usize = Ethernet2Header::LEN;

/// A frame, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// The VLAN of the outer and the inner tag. A tag of VLAN 0 only carries a priority.
    pub vlan: [Option<u16>; 2],
    /// What it is about.
    pub content: Content,
}

/// What a frame is about. Ranges are positions in the frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// A RoCEv2 packet, or a run of them that the kernel has not cut apart.
    Roce(RoceFrame),
    /// ARP for IPv4.
    Arp(Arp),
    /// An ICMP or ICMPv6 echo request or reply.
    Echo {
        /// Direction and addresses.
        echo: Echo,
        /// What is to come back.
        data: Range<usize>,
    },
    /// An IPv6 neighbour solicitation.
    NeighborSolicit(NeighborSolicit),
    /// An IPv6 neighbour advertisement.
    NeighborAdvert(NeighborAdvert),
    /// An IGMP or MLD query.
    GroupQuery(GroupQuery),
    /// A RoCEv1 packet: a GRH in place of IP and UDP (annex A16).
    RoceV1 {
        /// Whether its ICRC holds.
        intact: bool,
    },
    /// Anything else.
    Foreign,
}

/// An 802.1Q tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VlanTag {
    /// The VLAN, 1 to 4094.
    pub id: u16,
    /// The priority code point, 0 to 7.
    pub priority: u8,
}

impl VlanTag {
    /// Bytes.
    pub const LEN: usize = 4;

    /// Puts it into the frame that begins at `start` of `out`, behind the addresses.
    pub fn insert(self, out: &mut Vec<u8>, start: usize) {
        let [high, low] = (u16::from(self.priority) << 13 | self.id).to_be_bytes();
        let [kind, of] = EtherType::VLAN_TAGGED_FRAME.0.to_be_bytes();
        let at = start + ETHERNET_LEN - 2;
        out.splice(at..at, [kind, of, high, low]);
    }
}

/// A RoCEv2 packet in its frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoceFrame {
    /// Addresses, source port, traffic class.
    pub flow: Flow,
    /// Identification and flags as in the header; nothing for IPv6.
    pub ident: IpIdent,
    /// Where BTH to ICRC are.
    pub payload: Range<usize>,
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    /// Whether it is a request, and not a reply.
    pub request: bool,
    /// MAC of the sender.
    pub sender_mac: Mac,
    /// Its address; 0.0.0.0 in a probe.
    pub sender_ip: Ipv4Addr,
    /// MAC of the recipient of a reply; zeros in a request.
    pub target_mac: Mac,
    /// Address that a request asks for.
    pub target_ip: Ipv4Addr,
}

/// An echo request or reply, its data aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Echo {
    /// Whether it is a request, and not a reply.
    pub request: bool,
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family.
    pub dst: IpAddr,
    /// Identifier.
    pub id: u16,
    /// Sequence number.
    pub seq: u16,
}

/// An IPv6 neighbour solicitation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighborSolicit {
    /// Address of the sender; unspecified while it checks that its address is free.
    pub src: Ipv6Addr,
    /// Where to: the target itself or its solicited-node group.
    pub dst: Ipv6Addr,
    /// Address whose MAC is asked for.
    pub target: Ipv6Addr,
    /// MAC of the sender, if it is given.
    pub source_mac: Option<Mac>,
}

/// An IPv6 neighbour advertisement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighborAdvert {
    /// Address of the sender.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Address whose MAC is advertised.
    pub target: Ipv6Addr,
    /// The MAC, if it says.
    pub target_mac: Option<Mac>,
    /// Whether it answers a solicitation.
    pub solicited: bool,
    /// Whether it replaces what was known.
    pub replace: bool,
}

/// Why a frame cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// It ends too early.
    #[error("frame ends in its {layer} header or payload: {needed} bytes needed, {have} there")]
    Truncated {
        /// In which header or its payload.
        layer: &'static str,
        /// Bytes that the layer needs.
        needed: usize,
        /// Bytes that there are.
        have: usize,
    },
    /// The version field does not fit the Ethernet type.
    #[error("IP version {version} under the Ethernet type of another")]
    IpVersion {
        /// As in the header.
        version: u8,
    },
    /// RoCEv2 has no IPv4 options, and the ICRC does not say how to cover them.
    #[error("IPv4 header of {words} words: RoCEv2 allows no options (5 words)")]
    Ipv4Options {
        /// The header length field.
        words: u8,
    },
    /// A length field is shorter than what it has to span.
    #[error("{layer} length {len} is less than its own header")]
    LengthTooShort {
        /// The layer of the header.
        layer: &'static str,
        /// As in the header.
        len: usize,
    },
    /// The IPv4 header checksum is wrong.
    #[error("IPv4 header checksum {found:#06x} should be {expected:#06x}")]
    Ipv4Checksum {
        /// As in the header.
        found: u16,
        /// As computed.
        expected: u16,
    },
    /// A part of a larger packet.
    #[error("IP fragment: RoCEv2 packets must fit the MTU")]
    Fragment,
    /// UDP and IP disagree.
    #[error("UDP length {udp} does not fit the {ip} bytes that IP carries")]
    UdpLength {
        /// As in the UDP header.
        udp: usize,
        /// By the IP header.
        ip: usize,
    },
    /// The UDP checksum is there and wrong.
    #[error("UDP checksum {found:#06x} is wrong")]
    UdpChecksum {
        /// As in the header.
        found: u16,
    },
    /// The ICMP or ICMPv6 checksum is wrong.
    #[error("ICMP checksum {found:#06x} is wrong")]
    IcmpChecksum {
        /// As in the header.
        found: u16,
    },
}

/// Whether the checksums above IP are worth a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksums {
    /// As off a wire: they must be right.
    Verify,
    /// They must be right, but that of UDP may be just the sum over the pseudo header, for hardware to complete.
    Partial,
    /// The kernel vouches for them, or has left them to be filled in by hardware.
    Trust,
}

/// Appends an Ethernet header.
pub fn append_ethernet(out: &mut Vec<u8>, dst: Mac, src: Mac, ether_type: EtherType) {
    out.extend_from_slice(&Ethernet2Header { destination: dst.0, source: src.0, ether_type }.to_bytes());
}

/// Appends Ethernet, IP and UDP headers of a packet with `udp_payload` bytes (BTH to ICRC).
///
/// # Panics
/// As [`append_ip_udp`].
pub fn append_headers(out: &mut Vec<u8>, dst: Mac, src: Mac, flow: &Flow, id: u16, udp_payload: usize) {
    let ether_type = if flow.dst.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    append_ethernet(out, dst, src, ether_type);
    append_ip_udp(out, flow, id, udp_payload);
}

/// Appends a whole frame around `udp_payload` (BTH to ICRC).
///
/// # Panics
/// As [`append_ip_udp`].
pub fn append_frame(out: &mut Vec<u8>, dst: Mac, src: Mac, flow: &Flow, id: u16, udp_payload: &[u8]) {
    append_headers(out, dst, src, flow, id, udp_payload.len());
    out.extend_from_slice(udp_payload);
}

/// The sum over a UDP pseudo header, as a checksum field holds it that hardware shall complete.
pub fn udp_pseudo_sum(flow: &Flow, udp_len: u16) -> u16 {
    let mut sum = etherparse::checksum::Sum16BitWords::new();
    sum = match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => sum.add_4bytes(src.octets()).add_4bytes(dst.octets()),
        (src, dst) => sum.add_16bytes(v6(src).octets()).add_16bytes(v6(dst).octets()),
    };
    let sum = sum.add_2bytes([0, IpNumber::UDP.0]).add_2bytes(udp_len.to_be_bytes());
    !sum.ones_complement().to_be()
}

fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

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
