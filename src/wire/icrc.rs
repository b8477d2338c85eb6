//! The invariant CRC: CRC-32 over what no router changes, little-endian at the end of the packet.
//!
//! It covers eight bytes of ones (where InfiniBand has its local route header), then the packet from the
//! IP header to the padding, with the fields that a router may change read as ones: ToS, TTL and header
//! checksum, or traffic class, flow label and hop limit; the UDP checksum; and the whole of BTH byte 4.

use std::net::IpAddr;

use super::{BTH_LEN, Flow, ICRC_LEN, IpIdent, ROCE_PORT};

/// What a UDP length field leaves for the payload.
const MAX_UDP_PAYLOAD: usize = 0xffff - 8;

/// Where the local route header would be.
const LRH: usize = 8;
/// The byte of the BTH that does not count.
const BTH_MASKED: usize = 4;

/// An ICRC in the making: resumable, so that header and payload slices need not be joined.
#[derive(Clone, Copy, Debug)]
pub struct Icrc(u32);

impl Icrc {
    /// The state behind the transport headers of a packet with `udp_payload` bytes (BTH to ICRC). `headers`
    /// starts with the BTH; `id` and `flags` count for IPv4 only.
    ///
    /// # Panics
    /// If `headers` is shorter than a BTH.
    pub fn after_headers(flow: &Flow, id: u16, flags: u16, udp_payload: usize, headers: &[u8]) -> Icrc {
        // Everything up to the BTH in one piece: over IPv4 that is 48 bytes, just what the CRC takes in three
        // steps, and a fixed cost of every packet.
        let mut b = [0xffu8; LRH + 48 + BTH_LEN];
        let udp_len = (udp_payload + 8) as u16;
        let ip = &mut b[LRH..];
        let udp_at = LRH
            + match (flow.src, flow.dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    ip[0] = 0x45;
                    ip[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
                    ip[4..6].copy_from_slice(&id.to_be_bytes());
                    ip[6..8].copy_from_slice(&flags.to_be_bytes());
                    ip[9] = 17;
                    ip[12..16].copy_from_slice(&src.octets());
                    ip[16..20].copy_from_slice(&dst.octets());
                    20
                }
                (src, dst) => {
                    ip[0] = 0x6f;
                    ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
                    ip[6] = 17;
                    ip[8..24].copy_from_slice(&v6_octets(src));
                    ip[24..40].copy_from_slice(&v6_octets(dst));
                    40
                }
            };
        let udp = &mut b[udp_at..udp_at + 8];
        udp[0..2].copy_from_slice(&flow.src_port.to_be_bytes());
        udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        let (bth, behind) = headers.split_at(BTH_LEN);
        let bth_at = udp_at + 8;
        b[bth_at..bth_at + BTH_LEN].copy_from_slice(bth);
        b[bth_at + BTH_MASKED] = 0xff;
        let mut icrc = Icrc(0);
        icrc.update(&b[..bth_at + BTH_LEN]);
        icrc.update(behind);
        icrc
    }

    /// Goes on over `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(bytes);
        self.0 = hasher.finalize();
    }

    /// The value so far; on the wire it is little-endian.
    pub const fn value(self) -> u32 {
        self.0
    }
}

fn v6_octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The ICRC that a whole UDP payload (BTH to ICRC, whose last four bytes are not read) should carry.
pub fn compute(flow: &Flow, id: u16, flags: u16, udp_payload: &[u8]) -> u32 {
    let covered = &udp_payload[..udp_payload.len() - ICRC_LEN];
    Icrc::after_headers(flow, id, flags, udp_payload.len(), covered).value()
}

/// Whether the ICRC of packet `index` of a burst holds, with what is known of its identification.
///
/// Where the identification is unknown, `index` is tried first, which checks all 32 bits; any other that
/// explains the ICRC is accepted, with don't-fragment set or clear, which checks 15.
///
/// `udp_payload` is BTH to ICRC; anything shorter or above 64 KiB fails.
pub fn verify(flow: &Flow, ident: IpIdent, index: u16, udp_payload: &[u8]) -> bool {
    match ident {
        IpIdent::Exact { id, flags } => received(udp_payload)
            .is_some_and(|icrc| icrc == compute(flow, id.wrapping_add(index), flags, udp_payload)),
        IpIdent::Unknown => identify(flow, index, udp_payload).is_some(),
    }
}

/// The IPv4 identification and flags (as the 16 bits on the wire) that explain a packet's ICRC; `None` if
/// none does, which is to say that the packet is corrupt. `likely` is an identification to try first.
///
/// IPv6 has neither: there it is `likely` and [`IpIdent::DONT_FRAGMENT`], or `None`.
pub fn identify(flow: &Flow, likely: u16, udp_payload: &[u8]) -> Option<(u16, u16)> {
    let difference = received(udp_payload)? ^ compute(flow, likely, IpIdent::DONT_FRAGMENT, udp_payload);
    if difference == 0 {
        return Some((likely, IpIdent::DONT_FRAGMENT));
    }
    if flow.dst.is_ipv6() {
        return None;
    }
    // From the identification on: 16 bytes of IP header, 8 of UDP.
    let covered = 16 + 8 + udp_payload.len() - ICRC_LEN;
    super::icrc_ident::recover(difference, covered, likely)
}

/// The ICRC that a packet carries, if it has the length of one.
fn received(udp_payload: &[u8]) -> Option<u32> {
    if !(BTH_LEN + ICRC_LEN..=MAX_UDP_PAYLOAD).contains(&udp_payload.len()) {
        return None;
    }
    udp_payload.last_chunk().map(|icrc| u32::from_le_bytes(*icrc))
}

#[cfg(test)]
#[path = "icrc_tests.rs"]
mod tests;
