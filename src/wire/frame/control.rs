//! Encoders for control frames: ARP, IPv6 neighbour discovery and echo.

use std::net::{IpAddr, Ipv6Addr};

use etherparse::icmpv6::{NdpOptionHeader, NdpOptionType, NeighborAdvertisementHeader};
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, EtherType, Icmpv6Type, IpHeaders, Ipv4Header, PacketBuilder,
};

use super::{Arp, Echo, Mac, NeighborAdvert, NeighborSolicit, append_ethernet};

/// Hop limit of neighbour discovery messages. Receivers ignore messages with a lower one, because those have
/// passed through a router.
const NEIGHBOR_HOP_LIMIT: u8 = 255;

/// Hop limit of echo messages.
const ECHO_HOP_LIMIT: u8 = 64;

/// Panic message that states why building a packet cannot fail.
pub(super) const FITS: &str = "the packet fits into 64 KiB, and writing to memory does not fail";

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

/// Appends an echo request or reply. `data` is truncated to what fits into an IP packet.
///
/// # Panics
/// If the addresses are of different families.
pub fn append_echo(out: &mut Vec<u8>, dst: Mac, src: Mac, echo: &Echo, data: &[u8]) {
    let data = &data[..data.len().min(usize::from(u16::MAX) - 28)];
    let ethernet = PacketBuilder::ethernet2(src.0, dst.0);
    match (echo.src, echo.dst) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header = Ipv4Header {
                dont_fragment: true,
                time_to_live: ECHO_HOP_LIMIT,
                source: from.octets(),
                destination: to.octets(),
                ..Ipv4Header::default()
            };
            let ip = ethernet.ip(IpHeaders::Ipv4(header, Default::default()));
            if echo.request {
                ip.icmpv4_echo_request(echo.id, echo.seq).write(out, data)
            } else {
                ip.icmpv4_echo_reply(echo.id, echo.seq).write(out, data)
            }
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let ip = ethernet.ipv6(from.octets(), to.octets(), ECHO_HOP_LIMIT);
            if echo.request {
                ip.icmpv6_echo_request(echo.id, echo.seq).write(out, data)
            } else {
                ip.icmpv6_echo_reply(echo.id, echo.seq).write(out, data)
            }
        }
        (src, dst) => panic!("an echo from {src} to {dst} mixes address families"),
    }
    .expect(FITS);
}

/// Appends a neighbour solicitation from the MAC address `src`.
pub fn append_neighbor_solicit(out: &mut Vec<u8>, dst: Mac, src: Mac, ns: &NeighborSolicit) {
    let option = (NdpOptionType::SOURCE_LINK_LAYER_ADDRESS, ns.source_mac);
    append_neighbor(out, (dst, src), (ns.dst, ns.src), Icmpv6Type::NeighborSolicitation, ns.target, option);
}

/// Appends a neighbour advertisement from the MAC address `src`.
pub fn append_neighbor_advert(out: &mut Vec<u8>, dst: Mac, src: Mac, na: &NeighborAdvert) {
    let kind = Icmpv6Type::NeighborAdvertisement(NeighborAdvertisementHeader {
        router: false,
        solicited: na.solicited,
        r#override: na.replace,
    });
    let option = (NdpOptionType::TARGET_LINK_LAYER_ADDRESS, na.target_mac);
    append_neighbor(out, (dst, src), (na.dst, na.src), kind, na.target, option);
}

/// Appends a neighbour discovery message. `macs` and `ips` each contain the destination, then the source. The
/// link-layer address option is omitted if its MAC address is `None`.
fn append_neighbor(
    out: &mut Vec<u8>,
    macs: (Mac, Mac),
    ips: (Ipv6Addr, Ipv6Addr),
    kind: Icmpv6Type,
    target: Ipv6Addr,
    (option_type, mac): (NdpOptionType, Option<Mac>),
) {
    let mut payload = [0; 24];
    payload[..16].copy_from_slice(&target.octets());
    payload[16..18].copy_from_slice(&NdpOptionHeader { option_type, length_units: 1 }.to_bytes());
    payload[18..].copy_from_slice(&mac.unwrap_or_default().0);
    PacketBuilder::ethernet2(macs.1.0, macs.0.0)
        .ipv6(ips.1.octets(), ips.0.octets(), NEIGHBOR_HOP_LIMIT)
        .icmpv6(kind)
        .write(out, if mac.is_some() { &payload } else { &payload[..16] })
        .expect(FITS);
}
