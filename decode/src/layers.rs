//! Layers around RoCE packets: Ethernet with VLAN tags, Linux cooked captures, IP, UDP, VXLAN; and the frames
//! that explain why packets do not arrive: ICMP errors, address resolution and pauses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{ArpPacketSlice, EtherType, Ipv4HeaderSlice, Ipv6HeaderSlice};
use pcap_file::DataLink;
use urxe::wire::frame::{self, Checksums, Content as FrameContent, PauseFrame};
use urxe::wire::{Flow, Gid, IpIdent, Mac, ROCE_PORT, grh};

/// UDP port of VXLAN.
const VXLAN_PORT: u16 = 4789;

/// EtherType of RoCEv1 (annex A16).
const ROCE_V1: EtherType = EtherType(0x8915);

/// EtherType of MAC control frames, which pauses are.
const MAC_CONTROL: EtherType = EtherType(0x8808);

/// VLAN IDs of nested tags, and VXLANs within VXLANs, that are followed.
const MAX_DEPTH: u8 = 4;

/// Version of RoCE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Version {
    /// GRH directly on Ethernet.
    V1,
    /// UDP.
    V2,
}

/// A RoCE packet within a frame.
#[derive(Clone, Copy, Debug)]
pub struct Roce<'a> {
    /// Version of RoCE.
    pub version: Version,
    /// Fields of the IP and UDP headers, or of the GRH.
    pub flow: Flow,
    /// IPv4 identification and flags.
    pub ident: IpIdent,
    /// The packet from BTH to ICRC, as far as it was captured.
    pub bytes: &'a [u8],
    /// Length of the packet from BTH to ICRC.
    pub len: usize,
    /// IP header, or GRH, as captured.
    pub ip: &'a [u8],
    /// Network identifier of the VXLAN around it.
    pub vni: Option<u32>,
}

/// Error message of ICMP or ICMPv6 about a packet to [`ROCE_PORT`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpError {
    /// Sender of the message: a router, or the destination itself.
    pub from: IpAddr,
    /// Source of the packet.
    pub src: IpAddr,
    /// Destination of the packet.
    pub dst: IpAddr,
    /// Reason.
    pub kind: IcmpKind,
}

/// Reason of an [`IcmpError`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IcmpKind {
    /// No program receives on the port.
    PortUnreachable,
    /// A firewall forbids the packet.
    Prohibited,
    /// No route or no neighbour.
    HostUnreachable,
    /// The packet is larger than a link on its path allows: the size in bytes, 0 if unknown.
    TooBig(u32),
    /// The hop limit was exceeded.
    HopLimit,
}

/// Content of a frame, as far as it matters for RoCE.
#[derive(Clone, Debug)]
pub enum Content<'a> {
    /// A RoCE packet.
    Roce(Roce<'a>),
    /// An ICMP error about a RoCE packet.
    Icmp(IcmpError),
    /// An ARP request or neighbour solicitation: its sender, and the address that it asks for.
    Solicit(IpAddr, IpAddr),
    /// An answer to such a request.
    Advert(IpAddr),
    /// A pause frame, from the given address.
    Pause(Mac, PauseFrame),
    /// A RoCE packet that cannot be parsed, because the capture has too little of it or a header is wrong.
    Unreadable(&'static str),
    /// Anything else.
    Other,
}

/// Link type that cannot contain RoCE, or that is not supported.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("link type {code} ({name}) is not supported: {remedy}")]
pub struct UnsupportedLink {
    /// Number of the link type.
    pub code: u32,
    /// Name.
    pub name: &'static str,
    /// Remedy.
    pub remedy: &'static str,
}

/// Layer that a frame begins with.
#[derive(Clone, Copy)]
enum First {
    Ethernet,
    /// A header of the given length, and the position of the EtherType in it.
    Cooked {
        len: usize,
        ether_type: usize,
    },
    Ip,
    /// A protocol family of 4 bytes.
    Family,
}

fn first_layer(link: DataLink) -> Result<First, UnsupportedLink> {
    let unsupported = |name, remedy| Err(UnsupportedLink { code: link.into(), name, remedy });
    match u32::from(link) {
        1 => Ok(First::Ethernet),
        113 => Ok(First::Cooked { len: 16, ether_type: 14 }),
        276 => Ok(First::Cooked { len: 20, ether_type: 0 }),
        12 | 14 | 101 | 228 | 229 => Ok(First::Ip),
        0 | 108 => Ok(First::Family),
        197 => unsupported("ERF", "convert it to Ethernet, for example with `editcap -T ether`"),
        247 => unsupported("InfiniBand", "this is a capture of an InfiniBand link, not of RoCE"),
        _ => unsupported("unknown", "capture on an Ethernet interface, or on `any`"),
    }
}

/// Returns what a frame of a link contains.
///
/// # Errors
/// [`UnsupportedLink`] if frames of that link type cannot be read.
pub fn dissect(link: DataLink, bytes: &[u8]) -> Result<Content<'_>, UnsupportedLink> {
    let layer = first_layer(link)?;
    let content = match layer {
        First::Ethernet => ethernet(bytes, None, MAX_DEPTH),
        First::Cooked { len, ether_type } => {
            let kind = bytes.get(ether_type..ether_type + 2).map(be16);
            let rest = bytes.get(len..);
            kind.zip(rest).and_then(|(kind, rest)| {
                behind_ether_type(EtherType(kind), rest, Outer::default(), MAX_DEPTH)
            })
        }
        First::Ip => ip(bytes, Outer::default(), MAX_DEPTH),
        First::Family => bytes.get(4..).and_then(|rest| ip(rest, Outer::default(), MAX_DEPTH)),
    };
    Ok(content.unwrap_or(Content::Other))
}

/// Properties of a packet that its outer layers carry.
#[derive(Clone, Copy, Default)]
struct Outer {
    priority: Option<u8>,
    vni: Option<u32>,
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn ethernet(bytes: &[u8], vni: Option<u32>, depth: u8) -> Option<Content<'_>> {
    let (header, rest) = bytes.split_first_chunk::<14>()?;
    let source = Mac(*header[6..].first_chunk()?);
    let ether_type = EtherType(be16(&header[12..]));
    if ether_type == MAC_CONTROL {
        let FrameContent::Pause(pause) = frame::parse(bytes, Checksums::Trust).ok()?.content else {
            return None;
        };
        return Some(Content::Pause(source, pause));
    }
    behind_ether_type(ether_type, rest, Outer { priority: None, vni }, depth)
}

fn behind_ether_type(ether_type: EtherType, bytes: &[u8], outer: Outer, depth: u8) -> Option<Content<'_>> {
    match ether_type {
        EtherType::IPV4 | EtherType::IPV6 => ip(bytes, outer, depth),
        EtherType::VLAN_TAGGED_FRAME | EtherType::PROVIDER_BRIDGING | EtherType::VLAN_DOUBLE_TAGGED_FRAME
            if depth > 0 =>
        {
            let (tag, rest) = bytes.split_first_chunk::<4>()?;
            let outer = Outer { priority: outer.priority.or(Some(tag[0] >> 5)), ..outer };
            behind_ether_type(EtherType(be16(&tag[2..])), rest, outer, depth - 1)
        }
        EtherType::ARP => {
            let arp = ArpPacketSlice::from_slice(bytes).ok()?;
            let address = |octets: &[u8]| Some(IpAddr::from(<[u8; 4]>::try_from(octets).ok()?));
            match arp.operation().0 {
                // A gratuitous request announces the sender's address.
                1 if arp.sender_protocol_addr() == arp.target_protocol_addr() => {
                    address(arp.sender_protocol_addr()).map(Content::Advert)
                }
                1 => {
                    let from = address(arp.sender_protocol_addr())?;
                    address(arp.target_protocol_addr()).map(|target| Content::Solicit(from, target))
                }
                2 => address(arp.sender_protocol_addr()).map(Content::Advert),
                _ => None,
            }
        }
        ROCE_V1 => roce_v1(bytes, outer),
        _ => None,
    }
}

fn roce_v1(bytes: &[u8], outer: Outer) -> Option<Content<'_>> {
    let Some((header, rest)) = bytes.split_first_chunk::<{ grh::LEN }>() else {
        return Some(Content::Unreadable("the capture ends within the GRH"));
    };
    let gid = |at: usize| header[at..].first_chunk().map_or_else(Gid::default, |gid| Gid(*gid)).ip();
    let flow = Flow {
        traffic_class: header[0] << 4 | header[1] >> 4,
        hop_limit: header[7],
        vlan_priority: outer.priority,
        ..Flow::new(gid(8), gid(24), 0)
    };
    let len = usize::from(be16(&header[4..]));
    let bytes = &rest[..len.min(rest.len())];
    let ident = IpIdent::Unknown;
    Some(Content::Roce(Roce { version: Version::V1, flow, ident, bytes, len, ip: header, vni: outer.vni }))
}

fn ip(bytes: &[u8], outer: Outer, depth: u8) -> Option<Content<'_>> {
    match bytes.first()? >> 4 {
        4 => ipv4(bytes, outer, depth),
        6 => ipv6(bytes, outer, depth),
        _ => None,
    }
}

fn ipv4(bytes: &[u8], outer: Outer, depth: u8) -> Option<Content<'_>> {
    let header = Ipv4HeaderSlice::from_slice(bytes).ok()?;
    let rest = &bytes[header.slice().len()..];
    let is_later_fragment = header.fragments_offset().value() != 0;
    match header.protocol().0 {
        1 if !is_later_fragment => icmp_v4(header.source_addr().into(), rest).map(Content::Icmp),
        17 if !is_later_fragment => {
            let ident = IpIdent::Exact { id: header.identification(), flags: be16(&bytes[6..]) };
            let flow = Flow {
                traffic_class: bytes[1],
                hop_limit: header.ttl(),
                vlan_priority: outer.priority,
                ..Flow::new(header.source_addr().into(), header.destination_addr().into(), 0)
            };
            udp(header.slice(), rest, flow, ident, outer, depth)
        }
        _ => None,
    }
}

fn ipv6(bytes: &[u8], outer: Outer, depth: u8) -> Option<Content<'_>> {
    let header = Ipv6HeaderSlice::from_slice(bytes).ok()?;
    let rest = &bytes[header.slice().len()..];
    match header.next_header().0 {
        17 => {
            let flow = Flow {
                traffic_class: header.traffic_class(),
                hop_limit: header.hop_limit(),
                flow_label: header.flow_label().value(),
                vlan_priority: outer.priority,
                ..Flow::new(header.source_addr().into(), header.destination_addr().into(), 0)
            };
            udp(header.slice(), rest, flow, IpIdent::Unknown, outer, depth)
        }
        58 => icmp_v6(header.source_addr().into(), rest),
        _ => None,
    }
}

fn udp<'a>(
    ip: &'a [u8],
    bytes: &'a [u8],
    flow: Flow,
    ident: IpIdent,
    outer: Outer,
    depth: u8,
) -> Option<Content<'a>> {
    let (header, rest) = bytes.split_first_chunk::<8>()?;
    let udp_len = usize::from(be16(&header[4..]));
    match be16(&header[2..]) {
        ROCE_PORT => {
            let Some(len) = udp_len.checked_sub(header.len()) else {
                return Some(Content::Unreadable("the UDP length is less than that of its header"));
            };
            let flow = Flow { src_port: be16(header), ..flow };
            let bytes = &rest[..len.min(rest.len())];
            Some(Content::Roce(Roce { version: Version::V2, flow, ident, bytes, len, ip, vni: outer.vni }))
        }
        VXLAN_PORT if depth > 0 => {
            let (header, inner) = rest.split_first_chunk::<8>()?;
            let vni = u32::from_be_bytes([0, header[4], header[5], header[6]]);
            ethernet(inner, Some(vni), depth - 1)
        }
        _ => None,
    }
}

fn icmp_v4(from: IpAddr, bytes: &[u8]) -> Option<IcmpError> {
    let (header, inner) = bytes.split_first_chunk::<8>()?;
    let kind = match (header[0], header[1]) {
        (3, 3) => IcmpKind::PortUnreachable,
        (3, 4) => IcmpKind::TooBig(be16(&header[6..]).into()),
        (3, 9 | 10 | 13) => IcmpKind::Prohibited,
        (3, _) => IcmpKind::HostUnreachable,
        (11, 0) => IcmpKind::HopLimit,
        _ => return None,
    };
    let (ip, rest) = inner.split_first_chunk::<20>()?;
    let address = |at: usize| Some(Ipv4Addr::from(*ip[at..].first_chunk::<4>()?));
    let udp = rest.get(usize::from(ip[0] & 0xf).saturating_sub(5) * 4..)?;
    let is_roce = ip[9] == 17 && be16(udp.get(2..4)?) == ROCE_PORT;
    is_roce.then_some(IcmpError { from, src: address(12)?.into(), dst: address(16)?.into(), kind })
}

fn icmp_v6(from: IpAddr, bytes: &[u8]) -> Option<Content<'_>> {
    let (header, rest) = bytes.split_first_chunk::<8>()?;
    let address = |bytes: &[u8], at: usize| Some(Ipv6Addr::from(*bytes.get(at..)?.first_chunk::<16>()?));
    let kind = match (header[0], header[1]) {
        (135, _) => return Some(Content::Solicit(from, address(rest, 0)?.into())),
        (136, _) => return Some(Content::Advert(address(rest, 0)?.into())),
        (1, 4) => IcmpKind::PortUnreachable,
        (1, 1 | 5 | 6) => IcmpKind::Prohibited,
        (1, _) => IcmpKind::HostUnreachable,
        (2, _) => IcmpKind::TooBig(u32::from_be_bytes(*header[4..].first_chunk()?)),
        (3, 0) => IcmpKind::HopLimit,
        _ => return None,
    };
    let udp = rest.get(40..44)?;
    let is_roce = rest[6] == 17 && be16(&udp[2..]) == ROCE_PORT;
    let error = IcmpError { from, src: address(rest, 8)?.into(), dst: address(rest, 24)?.into(), kind };
    is_roce.then_some(Content::Icmp(error))
}
