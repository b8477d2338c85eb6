//! Ethernet, VLAN, IP and UDP encapsulation of RoCEv2 packets, and the few other frames that a host on
//! Ethernet has to process: ARP, IPv6 neighbour discovery, multicast membership, echo and pauses.
//!
//! [`parse()`] decodes a frame; the `append_...` functions encode one to the end of a buffer.

mod control;
mod membership;
mod parse;
mod pause;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use etherparse::checksum::Sum16BitWords;
use etherparse::{EtherType, Ethernet2Header, IpNumber, UdpHeader};

pub(crate) use control::{append_arp, append_echo, append_neighbor_advert, append_neighbor_solicit};
pub use membership::GroupQuery;
pub(crate) use membership::{GroupReport, MembershipState, append_group_report};
pub(crate) use parse::ipv4_checksum;
pub use parse::parse;
pub use pause::{PRIORITIES, PauseFrame};

use super::{Flow, Gid, IpIdent, Mac, ROCE_PORT, ip};

/// Length in bytes of an Ethernet header without VLAN tags.
pub const ETHERNET_LEN: usize = Ethernet2Header::LEN;

/// Decoded Ethernet frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Destination address.
    pub dst: Mac,
    /// Source address.
    pub src: Mac,
    /// VLAN IDs of the outer and the inner tag. A tag with VLAN ID 0 carries only a priority.
    pub vlan: [Option<u16>; 2],
    /// Decoded payload.
    pub content: Content,
}

/// Decoded payload of a frame. Ranges are byte positions in the frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// A RoCEv2 packet, or several that the kernel left unsegmented (GSO super-packet).
    Roce(RoceFrame),
    /// An ARP request or reply for IPv4.
    Arp(Arp),
    /// An ICMP or ICMPv6 echo request or reply.
    Echo {
        /// Direction and addresses.
        echo: Echo,
        /// Echo data, which a reply must return.
        data: Range<usize>,
    },
    /// An IPv6 neighbour solicitation.
    NeighborSolicit(NeighborSolicit),
    /// An IPv6 neighbour advertisement.
    NeighborAdvert(NeighborAdvert),
    /// An IGMP or MLD query.
    GroupQuery(GroupQuery),
    /// A RoCEv1 packet, which has a GRH in place of IP and UDP headers (annex A16).
    RoceV1 {
        /// Whether the ICRC is valid.
        intact: bool,
    },
    /// A pause frame.
    Pause(PauseFrame),
    /// A frame of none of the kinds above.
    Foreign,
}

/// An 802.1Q tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VlanTag {
    /// VLAN ID, 1 to 4094.
    pub id: u16,
    /// Priority code point, 0 to 7.
    pub priority: u8,
}

impl VlanTag {
    /// Length of a tag in bytes.
    pub const LEN: usize = 4;

    /// Returns the tag for a packet: with the priority that its flow demands, if any.
    pub fn of_flow(self, flow: &Flow) -> VlanTag {
        VlanTag { priority: flow.vlan_priority.unwrap_or(self.priority), ..self }
    }

    /// Inserts the tag after the MAC addresses of the frame that begins at offset `start` in `out`.
    pub fn insert(self, out: &mut Vec<u8>, start: usize) {
        let [high, low] = (u16::from(self.priority) << 13 | self.id).to_be_bytes();
        let [kind, of] = EtherType::VLAN_TAGGED_FRAME.0.to_be_bytes();
        let at = start + ETHERNET_LEN - 2;
        out.splice(at..at, [kind, of, high, low]);
    }
}

/// A RoCEv2 packet within a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoceFrame {
    /// Fields of the packet's IP and UDP headers.
    pub flow: Flow,
    /// IPv4 identification and flags from the header; [`IpIdent::Unknown`] for IPv6.
    pub ident: IpIdent,
    /// Byte range of the packet in the frame, from BTH to ICRC.
    pub payload: Range<usize>,
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    /// Whether this is a request rather than a reply.
    pub request: bool,
    /// MAC address of the sender.
    pub sender_mac: Mac,
    /// IP address of the sender; 0.0.0.0 in a probe.
    pub sender_ip: Ipv4Addr,
    /// In a reply, the recipient's MAC address; in a request, zeros.
    pub target_mac: Mac,
    /// In a request, the IP address to resolve; in a reply, the recipient's IP address.
    pub target_ip: Ipv4Addr,
}

/// An echo request or reply, without its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Echo {
    /// Whether this is a request rather than a reply.
    pub request: bool,
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family as `src`.
    pub dst: IpAddr,
    /// Identifier.
    pub id: u16,
    /// Sequence number.
    pub seq: u16,
}

/// An IPv6 neighbour solicitation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighborSolicit {
    /// IP address of the sender; unspecified during duplicate address detection.
    pub src: Ipv6Addr,
    /// Destination address: the target itself or its solicited-node group.
    pub dst: Ipv6Addr,
    /// IP address being resolved.
    pub target: Ipv6Addr,
    /// MAC address of the sender, if the source link-layer address option is present.
    pub source_mac: Option<Mac>,
}

/// An IPv6 neighbour advertisement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighborAdvert {
    /// IP address of the sender.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// IP address being resolved.
    pub target: Ipv6Addr,
    /// MAC address of the target, if the target link-layer address option is present.
    pub target_mac: Option<Mac>,
    /// Whether the advertisement responds to a solicitation.
    pub solicited: bool,
    /// Whether the advertisement overrides existing neighbour cache entries (override flag).
    pub replace: bool,
}

/// Reason why a frame cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame ends before one of its headers or payloads is complete.
    #[error("frame ends in its {layer} header or payload: {needed} bytes needed, {have} present")]
    Truncated {
        /// Layer whose header or payload is incomplete.
        layer: &'static str,
        /// Number of bytes that the layer needs.
        needed: usize,
        /// Number of bytes present.
        have: usize,
    },
    /// The IP version does not match the EtherType.
    #[error("IP version {version} does not match the EtherType")]
    IpVersion {
        /// Version field of the header.
        version: u8,
    },
    /// The IPv4 header has options, which RoCEv2 does not allow: the ICRC is not defined for them.
    #[error("IPv4 header of {words} words: RoCEv2 allows no options (5 words)")]
    Ipv4Options {
        /// Header length field, in words of 4 bytes.
        words: u8,
    },
    /// A length field is less than the length of the header that contains it.
    #[error("{layer} length {len} is less than its own header")]
    LengthTooShort {
        /// Layer of the header.
        layer: &'static str,
        /// Value of the length field.
        len: usize,
    },
    /// The IPv4 header checksum is wrong.
    #[error("IPv4 header checksum {found:#06x} should be {expected:#06x}")]
    Ipv4Checksum {
        /// Checksum in the header.
        found: u16,
        /// Computed checksum.
        expected: u16,
    },
    /// The packet is an IP fragment.
    #[error("IP fragment: RoCEv2 packets must fit the MTU")]
    Fragment,
    /// The UDP length does not match the IP length.
    #[error("UDP length {udp} does not match the IP payload length {ip}")]
    UdpLength {
        /// Length according to the UDP header.
        udp: usize,
        /// Length according to the IP header.
        ip: usize,
    },
    /// The UDP checksum is present but wrong.
    #[error("UDP checksum {found:#06x} is wrong")]
    UdpChecksum {
        /// Checksum in the header.
        found: u16,
    },
    /// A neighbour discovery option is truncated or has an invalid length.
    #[error("neighbour discovery option is truncated or has an invalid length")]
    NeighborOption,
    /// The ICMP or ICMPv6 checksum is wrong.
    #[error("ICMP checksum {found:#06x} is wrong")]
    IcmpChecksum {
        /// Checksum in the header.
        found: u16,
    },
}

/// Verification policy for UDP and ICMP checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksums {
    /// Checksums must be correct, as in frames from a wire.
    Verify,
    /// Checksums must be correct, except that the UDP checksum field may contain only the pseudo-header sum,
    /// left for hardware to complete.
    Partial,
    /// Checksums are not verified: the kernel has verified them, or left them for hardware to fill in.
    Trust,
}

/// Appends an Ethernet header.
pub(crate) fn append_ethernet(out: &mut Vec<u8>, dst: Mac, src: Mac, ether_type: EtherType) {
    out.extend_from_slice(&Ethernet2Header { destination: dst.0, source: src.0, ether_type }.to_bytes());
}

/// Appends the Ethernet, IP and UDP headers for a packet with `udp_payload` bytes (BTH to ICRC).
///
/// # Panics
/// As for [`append_ip_udp`].
pub fn append_headers(out: &mut Vec<u8>, dst: Mac, src: Mac, flow: &Flow, id: u16, udp_payload: usize) {
    let ether_type = if flow.dst.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    append_ethernet(out, dst, src, ether_type);
    append_ip_udp(out, flow, id, udp_payload);
}

/// Appends a complete frame that carries `udp_payload` (BTH to ICRC). `macs` are the destination and the
/// source; `tag` is the VLAN tag, if any.
///
/// # Panics
/// As for [`append_ip_udp`].
pub fn append_frame(
    out: &mut Vec<u8>,
    macs: (Mac, Mac),
    tag: Option<VlanTag>,
    flow: &Flow,
    id: u16,
    udp_payload: &[u8],
) {
    let start = out.len();
    append_headers(out, macs.0, macs.1, flow, id, udp_payload.len());
    if let Some(tag) = tag {
        tag.of_flow(flow).insert(out, start);
    }
    out.extend_from_slice(udp_payload);
}

/// Returns the sum over a UDP pseudo-header. It goes into the checksum field if hardware is to complete the
/// checksum.
pub fn udp_pseudo_sum(flow: &Flow, udp_len: u16) -> u16 {
    !udp_pseudo_header(flow, udp_len).ones_complement().to_be()
}

fn udp_pseudo_header(flow: &Flow, udp_len: u16) -> Sum16BitWords {
    let mut sum = Sum16BitWords::new();
    sum = match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => sum.add_4bytes(src.octets()).add_4bytes(dst.octets()),
        (src, dst) => sum.add_16bytes(Gid::from(src).0).add_16bytes(Gid::from(dst).0),
    };
    sum.add_2bytes([0, IpNumber::UDP.0]).add_2bytes(udp_len.to_be_bytes())
}

/// Appends the IP and UDP headers for a packet with `udp_payload` bytes (BTH to ICRC) to `out`. The UDP
/// checksum is 0 (none), as in packets from other RoCEv2 implementations.
///
/// # Panics
/// If the addresses are of different families, or the packet exceeds 65,535 bytes.
pub fn append_ip_udp(out: &mut Vec<u8>, flow: &Flow, id: u16, udp_payload: usize) {
    let udp_len = u16::try_from(udp_payload + UdpHeader::LEN).expect("a packet is at most 64 KiB");
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            out.extend_from_slice(&ip::v4_header(flow, src, dst, id, udp_len).to_bytes());
        }
        (IpAddr::V6(_), IpAddr::V6(_)) => out.extend_from_slice(&ip::v6_header(flow, udp_len).to_bytes()),
        (src, dst) => panic!("a flow from {src} to {dst} mixes address families"),
    }
    let udp =
        UdpHeader { source_port: flow.src_port, destination_port: ROCE_PORT, length: udp_len, checksum: 0 };
    out.extend_from_slice(&udp.to_bytes());
}
