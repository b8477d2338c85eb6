//! Decoder of Ethernet frames.

use std::net::IpAddr;
use std::ops::Range;

use etherparse::checksum::Sum16BitWords;
use etherparse::icmpv6::{
    NdpOptionSlice, NdpOptionsIterator, NeighborAdvertisementPayloadSlice, NeighborSolicitationPayloadSlice,
};
use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacketSlice, EtherType, Ethernet2HeaderSlice, IcmpEchoHeader,
    Icmpv4Header, Icmpv4Slice, Icmpv4Type, Icmpv6Header, Icmpv6Slice, Icmpv6Type, IpNumber, Ipv4Header,
    Ipv4HeaderSlice, Ipv6Header, Ipv6HeaderSlice, SingleVlanHeaderSlice, UdpHeader, UdpHeaderSlice,
};

use super::membership::{igmp_query, mld_query};
use super::pause::MAC_CONTROL;
use super::{
    Arp, Checksums, Content, Echo, Frame, FrameError, GroupQuery, IpIdent, Mac, NeighborAdvert,
    NeighborSolicit, PauseFrame, ROCE_PORT, RoceFrame,
};
use crate::wire::ip::{v4_flow, v6_flow};
use crate::wire::{Flow, grh, icrc};

/// EtherType of RoCEv1 (annex A16).
const ROCE_V1: EtherType = EtherType(0x8915);
/// Next header value of a GRH that is followed by a BTH (IBA 8.3).
const IBA_TRANSPORT: u8 = 0x1b;

/// Decodes an Ethernet frame (without its frame check sequence). Bytes after the IP packet are ignored as
/// padding.
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
        // MAC control frames have no tag.
        MAC_CONTROL if vlan[0].is_none() && ethernet.destination() == PauseFrame::DESTINATION.0 => {
            PauseFrame::parse(&frame[at..])?.map_or(Content::Foreign, Content::Pause)
        }
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
    let flow = v4_flow(&ip);
    let inner = at + Ipv4Header::MIN_LEN..at + total;
    if protocol == IpNumber::ICMP {
        return icmpv4(frame, inner, &flow, checksums);
    }
    let flags = u16::from_be_bytes([bytes[6], bytes[7]]);
    udp(frame, inner, flow, IpIdent::Exact { id: ip.identification(), flags }, checksums)
}

/// Reports whether an IPv4 header's checksum is valid. It is computed over the bytes as received, because
/// decoding discards the reserved flag.
fn is_ipv4_checksum_valid(header: &[u8]) -> bool {
    Sum16BitWords::new().add_slice(header).ones_complement() == 0
}

/// Computes the checksum that an IPv4 header should have.
pub(crate) fn ipv4_checksum(header: &[u8]) -> u16 {
    let sum = Sum16BitWords::new().add_slice(&header[..10]).add_slice(&header[12..]);
    sum.ones_complement().to_be()
}

/// Decodes a RoCEv1 packet, from the GRH to the ICRC.
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
    let flow = v6_flow(&ip);
    let inner = at + Ipv6Header::LEN..at + Ipv6Header::LEN + len;
    match ip.next_header() {
        IpNumber::UDP => udp(frame, inner, flow, IpIdent::Unknown, checksums),
        IpNumber::IPV6_ICMP => icmpv6(frame, inner, &ip, checksums),
        IpNumber::IPV6_HEADER_HOP_BY_HOP => {
            Ok(mld_query(&ip, &frame[inner]).map_or(Content::Foreign, Content::GroupQuery))
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
        && super::udp_pseudo_header(&flow, header.length()).add_slice(bytes).ones_complement() != 0
    {
        return Err(FrameError::UdpChecksum { found: header.checksum() });
    }
    flow.src_port = header.source_port();
    Ok(Content::Roce(RoceFrame { flow, ident, payload: inner.start + UdpHeader::LEN..inner.end }))
}

fn icmpv4(
    frame: &[u8],
    inner: Range<usize>,
    flow: &Flow,
    checksums: Checksums,
) -> Result<Content, FrameError> {
    let bytes = &frame[inner.clone()];
    if bytes.len() < Icmpv4Header::MIN_LEN {
        return Err(truncated("ICMP", Icmpv4Header::MIN_LEN, bytes.len()));
    }
    let Ok(message) = Icmpv4Slice::from_slice(bytes) else { return Ok(Content::Foreign) };
    let (request, header) = match message.icmp_type() {
        Icmpv4Type::EchoRequest(header) => (true, header),
        Icmpv4Type::EchoReply(header) => (false, header),
        _ => return Ok(Content::Foreign),
    };
    if checksums != Checksums::Trust && Sum16BitWords::new().add_slice(bytes).ones_complement() != 0 {
        return Err(FrameError::IcmpChecksum { found: message.checksum() });
    }
    Ok(echo(request, header, (flow.src, flow.dst), inner))
}

fn echo(request: bool, header: IcmpEchoHeader, (src, dst): (IpAddr, IpAddr), inner: Range<usize>) -> Content {
    let echo = Echo { request, src, dst, id: header.id, seq: header.seq };
    Content::Echo { echo, data: inner.start + Icmpv4Header::MIN_LEN..inner.end }
}

fn icmpv6(
    frame: &[u8],
    inner: Range<usize>,
    ip: &Ipv6HeaderSlice<'_>,
    checksums: Checksums,
) -> Result<Content, FrameError> {
    let bytes = &frame[inner.clone()];
    let message = Icmpv6Slice::from_slice(bytes)
        .map_err(|_| truncated("ICMPv6", Icmpv6Header::MIN_LEN, bytes.len()))?;
    let kind = message.icmp_type();
    match kind {
        Icmpv6Type::EchoRequest(_) | Icmpv6Type::EchoReply(_) => {}
        // Neighbour discovery with a hop limit below 255 has passed a router, and is treated as an attack
        // (RFC 4861, 7.1).
        Icmpv6Type::NeighborSolicitation | Icmpv6Type::NeighborAdvertisement(_) if ip.hop_limit() == 255 => {}
        _ => return Ok(Content::Foreign),
    }
    if checksums != Checksums::Trust && !message.is_checksum_valid(ip.source(), ip.destination()) {
        return Err(FrameError::IcmpChecksum { found: message.checksum() });
    }
    let (src, dst) = (ip.source_addr(), ip.destination_addr());
    let short = |_| {
        let needed = Icmpv6Header::MIN_LEN + NeighborSolicitationPayloadSlice::FIXED_PART_LEN;
        truncated("neighbour discovery", needed, bytes.len())
    };
    Ok(match kind {
        Icmpv6Type::EchoRequest(header) => echo(true, header, (src.into(), dst.into()), inner),
        Icmpv6Type::EchoReply(header) => echo(false, header, (src.into(), dst.into()), inner),
        Icmpv6Type::NeighborAdvertisement(flags) => {
            let payload = NeighborAdvertisementPayloadSlice::from_slice(message.payload()).map_err(short)?;
            Content::NeighborAdvert(NeighborAdvert {
                src,
                dst,
                target: payload.target_address(),
                target_mac: mac_option(payload.options_iterator(), |option| match option {
                    NdpOptionSlice::TargetLinkLayerAddress(option) => Some(option.link_layer_address()),
                    _ => None,
                })?,
                solicited: flags.solicited,
                replace: flags.r#override,
            })
        }
        _ => {
            let payload = NeighborSolicitationPayloadSlice::from_slice(message.payload()).map_err(short)?;
            Content::NeighborSolicit(NeighborSolicit {
                src,
                dst,
                target: payload.target_address(),
                source_mac: mac_option(payload.options_iterator(), |option| match option {
                    NdpOptionSlice::SourceLinkLayerAddress(option) => Some(option.link_layer_address()),
                    _ => None,
                })?,
            })
        }
    })
}

/// Returns the MAC address from the first option in which `address` finds one.
fn mac_option<'a>(
    options: NdpOptionsIterator<'a>,
    address: impl Fn(&NdpOptionSlice<'a>) -> Option<&'a [u8]>,
) -> Result<Option<Mac>, FrameError> {
    for option in options {
        if let Some(mac) = address(&option.map_err(|_| FrameError::NeighborOption)?) {
            return Ok(mac.first_chunk().map(|mac| Mac(*mac)));
        }
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
