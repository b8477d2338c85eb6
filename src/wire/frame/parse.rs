//! Decoder of Ethernet frames.

use std::net::IpAddr;
use std::ops::Range;

use etherparse::checksum::Sum16BitWords;
use etherparse::icmpv6::{
    NeighborAdvertisementHeader, TYPE_NEIGHBOR_ADVERTISEMENT, TYPE_NEIGHBOR_SOLICITATION,
};
use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacketSlice, EtherType, Ethernet2HeaderSlice, IpNumber, Ipv4Header,
    Ipv4HeaderSlice, Ipv6Header, Ipv6HeaderSlice, SingleVlanHeaderSlice, UdpHeader, UdpHeaderSlice, icmpv4,
    icmpv6,
};

use super::membership::{igmp_query, mld_query};
use super::{
    Arp, Checksums, Content, Echo, Frame, FrameError, GroupQuery, IpIdent, Mac, NeighborAdvert,
    NeighborSolicit, ROCE_PORT, RoceFrame,
};
use crate::wire::{Flow, grh, icrc};

const SOURCE_MAC_OPTION: u8 = 1;
const TARGET_MAC_OPTION: u8 = 2;

/// EtherType of RoCEv1 (annex A16).
const ROCE_V1: EtherType = EtherType(0x8915);
/// Next header value of a GRH that is followed by a BTH (IBA 8.3).
const IBA_TRANSPORT: u8 = 0x1b;

/// Length of a neighbour solicitation or advertisement before its options, in bytes.
const NEIGHBOR_LEN: usize = 24;

/// Decodes an Ethernet frame (without its check sequence). Bytes behind the IP packet are padding and
/// ignored.
///
/// A frame that is neither RoCE nor one of the control frames is [`Content::Foreign`], whatever it contains.
///
/// # Errors
/// [`FrameError`] if a header that has to be decoded is truncated, invalid, or of a kind that RoCEv2 does not
/// allow.
pub fn parse(frame: &[u8], checksums: Checksums) -> Result<Frame, FrameError> {
    let ethernet = Ethernet2HeaderSlice::from_slice(frame)
        .map_err(|_| truncated("Ethernet", super::ETHERNET_LEN, frame.len()))?;
    let mut at = super::ETHERNET_LEN;
    let mut ether_type = ethernet.ether_type();
    let mut vlan = [None; 2];
    for tag in &mut vlan {
        if !is_vlan(ether_type) {
            break;
        }
        let header = SingleVlanHeaderSlice::from_slice(&frame[at..])
            .map_err(|_| truncated("VLAN", 4, frame.len() - at))?;
        *tag = Some(header.vlan_identifier().value());
        ether_type = header.ether_type();
        at += 4;
    }
    let content = match ether_type {
        EtherType::IPV4 => ipv4(frame, at, checksums)?,
        EtherType::IPV6 => ipv6(frame, at, checksums)?,
        EtherType::ARP => arp(&frame[at..])?,
        ROCE_V1 => roce_v1(&frame[at..])?,
        _ => Content::Foreign,
    };
    Ok(Frame { dst: Mac(ethernet.destination()), src: Mac(ethernet.source()), vlan, content })
}

fn is_vlan(t: EtherType) -> bool {
    matches!(
        t,
        EtherType::VLAN_TAGGED_FRAME | EtherType::PROVIDER_BRIDGING | EtherType::VLAN_DOUBLE_TAGGED_FRAME
    )
}

fn truncated(layer: &'static str, needed: usize, have: usize) -> FrameError {
    FrameError::Truncated { layer, needed, have }
}

fn ipv4(frame: &[u8], at: usize, checksums: Checksums) -> Result<Content, FrameError> {
    let bytes = &frame[at..];
    let first = *bytes.first().ok_or(truncated("IPv4", Ipv4Header::MIN_LEN, 0))?;
    if first >> 4 != 4 {
        return Err(FrameError::IpVersion { version: first >> 4 });
    }
    if bytes.len() < Ipv4Header::MIN_LEN {
        return Err(truncated("IPv4", Ipv4Header::MIN_LEN, bytes.len()));
    }
    // The protocol is read before the options are checked: other packets may have options (IGMP always does).
    let protocol = IpNumber(bytes[9]);
    if protocol == IpNumber::IGMP {
        return Ok(igmp(bytes).map_or(Content::Foreign, Content::GroupQuery));
    }
    if protocol != IpNumber::UDP && protocol != IpNumber::ICMP {
        return Ok(Content::Foreign);
    }
    if first & 0xf != 5 {
        return Err(FrameError::Ipv4Options { words: first & 0xf });
    }
    let ip = Ipv4HeaderSlice::from_slice(bytes).map_err(|_| truncated("IPv4", 20, bytes.len()))?;
    let total = usize::from(ip.total_len());
    if total < Ipv4Header::MIN_LEN {
        return Err(FrameError::LengthTooShort { layer: "IPv4", len: total });
    }
    if bytes.len() < total {
        return Err(truncated("IPv4", total, bytes.len()));
    }
    if !is_ipv4_checksum_valid(ip.slice()) {
        return Err(FrameError::Ipv4Checksum {
            found: ip.header_checksum(),
            expected: ipv4_checksum(ip.slice()),
        });
    }
    if ip.is_fragmenting_payload() {
        return Err(FrameError::Fragment);
    }
    let flow = Flow {
        traffic_class: bytes[1],
        hop_limit: ip.ttl(),
        ..Flow::new(ip.source_addr().into(), ip.destination_addr().into(), 0)
    };
    let inner = at + Ipv4Header::MIN_LEN..at + total;
    if protocol == IpNumber::ICMP {
        return icmpv4(frame, inner, &flow, checksums);
    }
    let flags = u16::from_be_bytes([bytes[6], bytes[7]]);
    udp(frame, inner, flow, IpIdent::Exact { id: ip.identification(), flags }, checksums)
}

/// Reports whether the checksum of a header is valid, over its bytes as received: a decoded header has lost
/// the reserved flag.
fn is_ipv4_checksum_valid(header: &[u8]) -> bool {
    Sum16BitWords::new().add_slice(header).ones_complement() == 0
}

/// Computes the checksum that a header should have.
fn ipv4_checksum(header: &[u8]) -> u16 {
    let sum = Sum16BitWords::new().add_slice(&header[..10]).add_slice(&header[12..]);
    sum.ones_complement().to_be()
}

/// Decodes a GRH and the packet behind it, up to the ICRC.
fn roce_v1(bytes: &[u8]) -> Result<Content, FrameError> {
    // A GRH has the layout of an IPv6 header.
    let grh = Ipv6HeaderSlice::from_slice(bytes).map_err(|_| match bytes.first() {
        Some(first) if first >> 4 != 6 => FrameError::IpVersion { version: first >> 4 },
        _ => truncated("GRH", grh::LEN, bytes.len()),
    })?;
    let len = grh::LEN + usize::from(grh.payload_length());
    if grh.next_header() != IpNumber(IBA_TRANSPORT) {
        return Ok(Content::Foreign);
    }
    let packet = bytes.get(..len).ok_or(truncated("GRH", len, bytes.len()))?;
    Ok(Content::RoceV1 { intact: icrc::verify_v1(packet) })
}

fn igmp(bytes: &[u8]) -> Option<GroupQuery> {
    let ip = Ipv4HeaderSlice::from_slice(bytes).ok()?;
    let message = bytes.get(ip.slice().len()..usize::from(ip.total_len()))?;
    let is_valid = is_ipv4_checksum_valid(ip.slice()) && !ip.is_fragmenting_payload();
    igmp_query(message).filter(|_| is_valid)
}

fn ipv6(frame: &[u8], at: usize, checksums: Checksums) -> Result<Content, FrameError> {
    let bytes = &frame[at..];
    let first = *bytes.first().ok_or(truncated("IPv6", Ipv6Header::LEN, 0))?;
    if first >> 4 != 6 {
        return Err(FrameError::IpVersion { version: first >> 4 });
    }
    let ip =
        Ipv6HeaderSlice::from_slice(bytes).map_err(|_| truncated("IPv6", Ipv6Header::LEN, bytes.len()))?;
    let len = usize::from(ip.payload_length());
    if bytes.len() < Ipv6Header::LEN + len {
        return Err(truncated("IPv6", Ipv6Header::LEN + len, bytes.len()));
    }
    let flow = Flow {
        traffic_class: ip.traffic_class(),
        hop_limit: ip.hop_limit(),
        flow_label: ip.flow_label().value(),
        ..Flow::new(ip.source_addr().into(), ip.destination_addr().into(), 0)
    };
    let inner = at + Ipv6Header::LEN..at + Ipv6Header::LEN + len;
    match ip.next_header() {
        IpNumber::UDP => udp(frame, inner, flow, IpIdent::Unknown, checksums),
        IpNumber::IPV6_ICMP => icmpv6(frame, inner, &flow, checksums),
        IpNumber::IPV6_HEADER_HOP_BY_HOP => {
            Ok(mld_query(&ip.to_header(), &frame[inner]).map_or(Content::Foreign, Content::GroupQuery))
        }
        IpNumber::IPV6_FRAGMENTATION_HEADER => Err(FrameError::Fragment),
        _ => Ok(Content::Foreign),
    }
}

fn udp(
    frame: &[u8],
    inner: Range<usize>,
    mut flow: Flow,
    ident: IpIdent,
    checksums: Checksums,
) -> Result<Content, FrameError> {
    let bytes = &frame[inner.clone()];
    let header =
        UdpHeaderSlice::from_slice(bytes).map_err(|_| truncated("UDP", UdpHeader::LEN, bytes.len()))?;
    if header.destination_port() != ROCE_PORT {
        return Ok(Content::Foreign);
    }
    if usize::from(header.length()) != bytes.len() {
        return Err(FrameError::UdpLength { udp: header.length().into(), ip: bytes.len() });
    }
    let is_unchecked = match checksums {
        Checksums::Verify => header.checksum() == 0,
        Checksums::Partial => [0, super::udp_pseudo_sum(&flow, header.length())].contains(&header.checksum()),
        Checksums::Trust => true,
    };
    if !is_unchecked
        && pseudo_header(&flow, IpNumber::UDP, bytes.len()).add_slice(bytes).ones_complement() != 0
    {
        return Err(FrameError::UdpChecksum { found: header.checksum() });
    }
    flow.src_port = header.source_port();
    Ok(Content::Roce(RoceFrame { flow, ident, payload: inner.start + UdpHeader::LEN..inner.end }))
}

fn pseudo_header(flow: &Flow, protocol: IpNumber, len: usize) -> Sum16BitWords {
    let mut sum = Sum16BitWords::new();
    sum = match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => sum.add_4bytes(src.octets()).add_4bytes(dst.octets()),
        (src, dst) => sum.add_16bytes(super::v6(src).octets()).add_16bytes(super::v6(dst).octets()),
    };
    sum.add_4bytes((len as u32).to_be_bytes()).add_2bytes([0, protocol.0])
}

/// Length of an ICMP header: type, code, checksum and four more bytes.
const ICMP_LEN: usize = 8;

fn icmpv4(
    frame: &[u8],
    inner: Range<usize>,
    flow: &Flow,
    checksums: Checksums,
) -> Result<Content, FrameError> {
    let bytes = &frame[inner.clone()];
    if bytes.len() < ICMP_LEN {
        return Err(truncated("ICMP", ICMP_LEN, bytes.len()));
    }
    let request = match (bytes[0], bytes[1]) {
        (icmpv4::TYPE_ECHO_REQUEST, 0) => true,
        (icmpv4::TYPE_ECHO_REPLY, 0) => false,
        _ => return Ok(Content::Foreign),
    };
    check_icmp(Sum16BitWords::new(), bytes, checksums)?;
    Ok(echo(request, flow, bytes, inner))
}

fn check_icmp(pseudo: Sum16BitWords, bytes: &[u8], checksums: Checksums) -> Result<(), FrameError> {
    if checksums != Checksums::Trust && pseudo.add_slice(bytes).ones_complement() != 0 {
        return Err(FrameError::IcmpChecksum { found: u16::from_be_bytes([bytes[2], bytes[3]]) });
    }
    Ok(())
}

fn echo(request: bool, flow: &Flow, bytes: &[u8], inner: Range<usize>) -> Content {
    let word = |i: usize| u16::from_be_bytes([bytes[i], bytes[i + 1]]);
    let echo = Echo { request, src: flow.src, dst: flow.dst, id: word(4), seq: word(6) };
    Content::Echo { echo, data: inner.start + ICMP_LEN..inner.end }
}

fn icmpv6(
    frame: &[u8],
    inner: Range<usize>,
    flow: &Flow,
    checksums: Checksums,
) -> Result<Content, FrameError> {
    let bytes = &frame[inner.clone()];
    if bytes.len() < ICMP_LEN {
        return Err(truncated("ICMPv6", ICMP_LEN, bytes.len()));
    }
    let pseudo = pseudo_header(flow, IpNumber::IPV6_ICMP, bytes.len());
    match (bytes[0], bytes[1]) {
        (kind @ (icmpv6::TYPE_ECHO_REQUEST | icmpv6::TYPE_ECHO_REPLY), 0) => {
            check_icmp(pseudo, bytes, checksums)?;
            Ok(echo(kind == icmpv6::TYPE_ECHO_REQUEST, flow, bytes, inner))
        }
        // Neighbour discovery with a hop limit below 255 has passed a router, and is treated as an attack
        // (RFC 4861, 7.1).
        (TYPE_NEIGHBOR_SOLICITATION | TYPE_NEIGHBOR_ADVERTISEMENT, 0) if flow.hop_limit == 255 => {
            check_icmp(pseudo, bytes, checksums)?;
            neighbor(flow, bytes)
        }
        _ => Ok(Content::Foreign),
    }
}

fn neighbor(flow: &Flow, bytes: &[u8]) -> Result<Content, FrameError> {
    let Some((head, options)) = bytes.split_first_chunk::<NEIGHBOR_LEN>() else {
        return Err(truncated("neighbour discovery", NEIGHBOR_LEN, bytes.len()));
    };
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (flow.src, flow.dst) else { return Ok(Content::Foreign) };
    let mut octets = [0; 16];
    octets.copy_from_slice(&head[8..]);
    let target = octets.into();
    Ok(if head[0] == TYPE_NEIGHBOR_SOLICITATION {
        let source_mac = mac_option(options, SOURCE_MAC_OPTION)?;
        Content::NeighborSolicit(NeighborSolicit { src, dst, target, source_mac })
    } else {
        let flags = NeighborAdvertisementHeader::from_bytes([head[4], head[5], head[6], head[7]]);
        Content::NeighborAdvert(NeighborAdvert {
            src,
            dst,
            target,
            target_mac: mac_option(options, TARGET_MAC_OPTION)?,
            solicited: flags.solicited,
            replace: flags.r#override,
        })
    })
}

/// Returns the MAC address in the option of this kind. An option is kind, length in units of 8 bytes, and
/// value.
fn mac_option(mut options: &[u8], kind: u8) -> Result<Option<Mac>, FrameError> {
    while !options.is_empty() {
        let len = options.get(1).map_or(0, |&n| usize::from(n) * 8);
        if len == 0 {
            return Err(FrameError::LengthTooShort { layer: "neighbour discovery option", len });
        }
        if options.len() < len {
            return Err(truncated("neighbour discovery option", len, options.len()));
        }
        let (option, rest) = options.split_at(len);
        if option[0] == kind {
            return Ok(option[2..].first_chunk().map(|mac| Mac(*mac)));
        }
        options = rest;
    }
    Ok(None)
}

fn arp(bytes: &[u8]) -> Result<Content, FrameError> {
    let arp = ArpPacketSlice::from_slice(bytes).map_err(|e| truncated("ARP", e.required_len, bytes.len()))?;
    if arp.hw_addr_type() != ArpHardwareId::ETHERNET {
        return Ok(Content::Foreign);
    }
    let Ok(arp) = arp.to_packet().try_eth_ipv4() else { return Ok(Content::Foreign) };
    let request = match arp.operation {
        ArpOperation::REQUEST => true,
        ArpOperation::REPLY => false,
        _ => return Ok(Content::Foreign),
    };
    Ok(Content::Arp(Arp {
        request,
        sender_mac: Mac(arp.sender_mac),
        sender_ip: arp.sender_ipv4.into(),
        target_mac: Mac(arp.target_mac),
        target_ip: arp.target_ipv4.into(),
    }))
}
