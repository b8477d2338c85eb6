//! Encoders of control frames: ARP, IPv6 neighbour discovery and echo.

use std::net::{IpAddr, Ipv6Addr};

use etherparse::icmpv6::NeighborAdvertisementHeader;
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, EtherType, IcmpEchoHeader, Icmpv4Header, Icmpv4Type, Icmpv6Header,
    Icmpv6Type, IpNumber, Ipv4Header, Ipv6Header,
};

use super::{Arp, Echo, Mac, NeighborAdvert, NeighborSolicit, append_ethernet};

/// Hop limit of neighbour discovery messages. Receivers ignore any other, as a router would have decremented
/// it.
const NEIGHBOR_HOP_LIMIT: u8 = 255;

/// Appends an ARP frame from `arp.sender_mac` to `dst`.
pub fn append_arp(out: &mut Vec<u8>, dst: Mac, arp: &Arp) {
    append_ethernet(out, dst, arp.sender_mac, EtherType::ARP);
    let packet = ArpEthIpv4Packet {
        operation: if arp.request { ArpOperation::REQUEST } else { ArpOperation::REPLY },
        sender_mac: arp.sender_mac.0,
        sender_ipv4: arp.sender_ip.octets(),
        target_mac: arp.target_mac.0,
        target_ipv4: arp.target_ip.octets(),
    };
    out.extend_from_slice(&packet.to_bytes());
}

/// Appends an echo request or reply. `data` is truncated to the maximum of an IP packet.
///
/// # Panics
/// If the addresses are of different families.
pub fn append_echo(out: &mut Vec<u8>, dst: Mac, src: Mac, echo: &Echo, data: &[u8]) {
    let header = IcmpEchoHeader { id: echo.id, seq: echo.seq };
    let data = &data[..data.len().min(usize::from(u16::MAX) - 28)];
    match (echo.src, echo.dst) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            append_ethernet(out, dst, src, EtherType::IPV4);
            let len = (Ipv4Header::MIN_LEN + 8 + data.len()) as u16;
            let mut ip = Ipv4Header {
                total_len: len,
                dont_fragment: true,
                time_to_live: 64,
                protocol: IpNumber::ICMP,
                source: from.octets(),
                destination: to.octets(),
                ..Ipv4Header::default()
            };
            ip.header_checksum = ip.calc_header_checksum();
            out.extend_from_slice(&ip.to_bytes());
            let kind =
                if echo.request { Icmpv4Type::EchoRequest(header) } else { Icmpv4Type::EchoReply(header) };
            out.extend_from_slice(&Icmpv4Header::with_checksum(kind, data).to_bytes());
            out.extend_from_slice(data);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let kind =
                if echo.request { Icmpv6Type::EchoRequest(header) } else { Icmpv6Type::EchoReply(header) };
            append_icmpv6(out, (dst, src), (to, from), 64, kind, data);
        }
        (src, dst) => panic!("an echo from {src} to {dst} mixes address families"),
    }
}

/// Appends a neighbour solicitation from the MAC address `src`.
pub fn append_neighbor_solicit(out: &mut Vec<u8>, dst: Mac, src: Mac, ns: &NeighborSolicit) {
    let mut body = [0; 24];
    let len = neighbor_body(&mut body, ns.target, 1, ns.source_mac);
    let kind = Icmpv6Type::NeighborSolicitation;
    append_icmpv6(out, (dst, src), (ns.dst, ns.src), NEIGHBOR_HOP_LIMIT, kind, &body[..len]);
}

/// Appends a neighbour advertisement from the MAC address `src`.
pub fn append_neighbor_advert(out: &mut Vec<u8>, dst: Mac, src: Mac, na: &NeighborAdvert) {
    let mut body = [0; 24];
    let len = neighbor_body(&mut body, na.target, 2, na.target_mac);
    let kind = Icmpv6Type::NeighborAdvertisement(NeighborAdvertisementHeader {
        router: false,
        solicited: na.solicited,
        r#override: na.replace,
    });
    append_icmpv6(out, (dst, src), (na.dst, na.src), NEIGHBOR_HOP_LIMIT, kind, &body[..len]);
}

/// Writes the target and, if there is one, the MAC address as an option; returns the length.
fn neighbor_body(body: &mut [u8; 24], target: Ipv6Addr, option: u8, mac: Option<Mac>) -> usize {
    body[..16].copy_from_slice(&target.octets());
    let Some(mac) = mac else { return 16 };
    body[16..18].copy_from_slice(&[option, 1]);
    body[18..].copy_from_slice(&mac.0);
    24
}

/// Appends a frame with an ICMPv6 message. `macs` and `ips` are destination and source.
fn append_icmpv6(
    out: &mut Vec<u8>,
    macs: (Mac, Mac),
    ips: (Ipv6Addr, Ipv6Addr),
    hop_limit: u8,
    kind: Icmpv6Type,
    payload: &[u8],
) {
    append_ethernet(out, macs.0, macs.1, EtherType::IPV6);
    let (destination, source) = (ips.0.octets(), ips.1.octets());
    let ip = Ipv6Header {
        payload_length: (8 + payload.len()) as u16,
        next_header: IpNumber::IPV6_ICMP,
        hop_limit,
        source,
        destination,
        ..Ipv6Header::default()
    };
    out.extend_from_slice(&ip.to_bytes());
    let mut header = Icmpv6Header::new(kind);
    // Fails only above 4 GiB, which no caller reaches.
    let _ = header.update_checksum(source, destination, payload);
    out.extend_from_slice(&header.to_bytes());
    out.extend_from_slice(payload);
}
