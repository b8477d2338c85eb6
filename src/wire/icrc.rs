//! Invariant CRC (ICRC): a CRC-32 over the fields that no router changes, stored in little-endian order at
//! the end of the packet.
//!
//! The ICRC covers eight bytes of ones (in place of InfiniBand's local route header), then the packet from
//! the IP header to the padding. Fields that a router may change are replaced by ones: ToS, TTL and header
//! checksum, or traffic class, flow label and hop limit; the UDP checksum; and the whole of BTH byte 4.

use std::net::IpAddr;

use super::icrc_senders::Senders;
use super::{
    BTH_LEN, Flow, Gid, ICRC_LEN, IpIdent, MAX_HEADERS_LEN, Opcode, ROCE_PORT, crc_short as short, grh,
    icrc_ident,
};

/// Maximum length of a UDP payload in bytes, limited by the UDP length field.
const MAX_UDP_PAYLOAD: usize = 0xffff - 8;

/// Length of InfiniBand's local route header in bytes.
const LRH: usize = 8;
/// Length in bytes below which the CRC is computed with tables, because the setup for wide instructions would
/// take longer.
const SHORT: usize = 64;
/// Offset of the BTH byte that the ICRC does not cover.
const BTH_MASKED: usize = 4;

/// Length of the headers from the IPv4 identification to the BTH: 16 bytes of IPv4 and 8 of UDP.
const BEHIND_ID: usize = 16 + 8;

/// CRC state after the headers that precede the BTH. It applies to all packets of the same flow and length,
/// except for the effect of the IPv4 identification, which is added afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    flow: Flow,
    udp_payload: usize,
    /// CRC state for identification 0 with don't-fragment set.
    state: u32,
}

impl Prefix {
    /// Computes the prefix for a flow's packets of `udp_payload` bytes (BTH to ICRC).
    pub fn new(flow: &Flow, udp_payload: usize) -> Prefix {
        let mut b = [0xffu8; LRH + 48];
        let udp_len = (udp_payload + 8) as u16;
        let ip = &mut b[LRH..];
        let udp_at = LRH
            + match (flow.src, flow.dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    ip[0] = 0x45;
                    ip[2..4].copy_from_slice(&udp_len.wrapping_add(20).to_be_bytes());
                    ip[4..8].copy_from_slice(&(IpIdent::DONT_FRAGMENT as u32).to_be_bytes());
                    ip[9] = 17;
                    ip[12..16].copy_from_slice(&src.octets());
                    ip[16..20].copy_from_slice(&dst.octets());
                    20
                }
                (src, dst) => {
                    ip[0] = 0x6f;
                    ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
                    ip[6] = 17;
                    ip[8..24].copy_from_slice(&Gid::from(src).0);
                    ip[24..40].copy_from_slice(&Gid::from(dst).0);
                    40
                }
            };
        let udp = &mut b[udp_at..udp_at + 8];
        udp[0..2].copy_from_slice(&flow.src_port.to_be_bytes());
        udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        Prefix { flow: *flow, udp_payload, state: short::update(0, &b[..udp_at + 8]) }
    }

    /// Returns the CRC state after a packet's transport headers, which start with the BTH. `id` and `flags`
    /// are used only for IPv4.
    ///
    /// # Panics
    /// If `headers` is shorter than a BTH.
    #[inline(always)]
    pub fn after_headers(&self, id: u16, flags: u16, headers: &[u8]) -> Icrc {
        let (first, behind) = headers.split_first_chunk().expect("headers start with a BTH");
        let masked = u64::from_le_bytes(*first) | 0xff << (8 * BTH_MASKED);
        let ident = if self.flow.dst.is_ipv4() { icrc_ident::effect(id, flags) } else { 0 };
        let mut icrc = Icrc(short::update_eight(self.state ^ ident, masked));
        icrc.update(behind);
        icrc
    }
}

/// Cache of the two most recently used prefixes, because packets of two lengths often alternate: requests and
/// acknowledgements, or the first packets of WRITEs, which are longer, and the rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prefixes {
    last: Option<Prefix>,
    other: Option<Prefix>,
}

impl Prefixes {
    /// Returns the prefix for a flow's packets of `udp_payload` bytes, from the cache if possible. `is_next`
    /// must be set only if the previous call was for the same flow: then only the length of the last prefix
    /// is compared.
    #[inline]
    pub fn of(&mut self, flow: &Flow, udp_payload: usize, is_next: bool) -> &Prefix {
        let is_of_flow = |prefix: Prefix| prefix.udp_payload == udp_payload && prefix.flow == *flow;
        if !self.last.is_some_and(|last| is_next && last.udp_payload == udp_payload || is_of_flow(last)) {
            std::mem::swap(&mut self.last, &mut self.other);
            if !self.last.is_some_and(is_of_flow) {
                self.last = None;
            }
        }
        self.last.get_or_insert_with(|| Prefix::new(flow, udp_payload))
    }
}

/// An ICRC computation in progress. It can be extended slice by slice, so that headers and payload need not
/// be contiguous.
#[derive(Clone, Copy, Debug, Default)]
pub struct Icrc(u32);

impl Icrc {
    /// Extends the CRC by `bytes`.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        if bytes.len() < SHORT {
            self.0 = short::update(self.0, bytes);
            return;
        }
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(bytes);
        self.0 = hasher.finalize();
    }

    /// Returns the current CRC register, for code that continues the computation by other means.
    #[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
    #[inline]
    pub(crate) fn register(self) -> u32 {
        !self.0
    }

    /// Returns the state after a message that is congruent to `bytes` modulo the polynomial. Code that has
    /// continued the computation from [`register`](Self::register) uses this to get back to an [`Icrc`].
    #[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
    #[inline]
    pub(crate) fn of_remainder(bytes: &[u8; 16]) -> Icrc {
        Icrc(short::update(!0, bytes))
    }

    /// Returns x^`exponent` modulo the polynomial, in the bit order for carry-less multiplication of
    /// reflected operands.
    #[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
    pub(crate) const fn power(exponent: usize) -> u64 {
        (icrc_ident::power(icrc_ident::X, exponent) as u64) << 1
    }

    /// Returns the ICRC of the bytes so far. On the wire, it is stored in little-endian order.
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// Computes the ICRC for a whole UDP payload (BTH to ICRC). The last four bytes, the place of the ICRC
/// itself, are not read.
pub fn compute(flow: &Flow, id: u16, flags: u16, udp_payload: &[u8]) -> u32 {
    compute_behind::<1>(&Prefix::new(flow, udp_payload.len()), id, flags, udp_payload)
}

/// Computes an ICRC for a whole UDP payload that covers the bytes behind the prefix `TIMES` times: first as
/// specified, and then again with no byte masked.
#[inline(always)]
fn compute_behind<const TIMES: usize>(prefix: &Prefix, id: u16, flags: u16, udp_payload: &[u8]) -> u32 {
    let covered = &udp_payload[..udp_payload.len() - ICRC_LEN];
    let mut icrc = prefix.after_headers(id, flags, covered);
    (1..TIMES).for_each(|_| icrc.update(covered));
    icrc.value()
}

/// Verifier for the ICRCs of received packets. Packets of the same flow and length share a [`Prefix`].
///
/// For links that do not show the identification, the verifier learns for each flow whether its sender counts
/// identifications from 0 in each burst, and then accepts no others: see `Senders`.
#[derive(Clone, Debug, Default)]
pub struct Verifier {
    prefixes: Prefixes,
    senders: Senders,
    flush_twice: bool,
}

impl Verifier {
    /// Creates a verifier. With `flush_twice`, it also accepts a FLUSH whose ICRC covers the transport
    /// headers twice: first as specified, and then again with no byte masked.
    pub fn new(flush_twice: bool) -> Verifier {
        Verifier { flush_twice, ..Verifier::default() }
    }

    /// Reports whether a packet's ICRC is correct, like the function [`verify`], but is stricter for flows
    /// from known senders.
    pub fn verify(&mut self, flow: &Flow, ident: IpIdent, index: u16, udp_payload: &[u8]) -> bool {
        self.verify_in_burst(flow, ident, index, udp_payload, false)
    }

    /// Reports whether a packet's ICRC is correct, like [`verify`](Self::verify), but faster if the previous
    /// packet was from the same flow (`is_next`).
    #[inline]
    pub fn verify_in_burst(
        &mut self,
        flow: &Flow,
        ident: IpIdent,
        index: u16,
        udp_payload: &[u8],
        is_next: bool,
    ) -> bool {
        if ident == IpIdent::Elided {
            return has_valid_len(udp_payload);
        }
        let prefix = self.prefixes.of(flow, udp_payload.len(), is_next);
        icrc_matches::<1>(prefix, Some(&mut self.senders), ident, index, udp_payload)
            || self.flush_twice
                && is_flush(udp_payload)
                && icrc_matches::<2>(prefix, Some(&mut self.senders), ident, index, udp_payload)
    }
}

/// Reports whether a packet is a FLUSH, which has no payload.
#[cold]
fn is_flush(udp_payload: &[u8]) -> bool {
    udp_payload.first() == Some(&Opcode::FLUSH.0) && udp_payload.len() <= MAX_HEADERS_LEN + ICRC_LEN
}

/// Reports whether the ICRC of a packet is correct if it covers the bytes behind the prefix `TIMES` times.
#[inline]
fn icrc_matches<const TIMES: usize>(
    prefix: &Prefix,
    senders: Option<&mut Senders>,
    ident: IpIdent,
    index: u16,
    udp_payload: &[u8],
) -> bool {
    let Some(received) = received(udp_payload) else { return false };
    match ident {
        IpIdent::Elided => true,
        IpIdent::Exact { id, flags } => {
            received == compute_behind::<TIMES>(prefix, id.wrapping_add(index), flags, udp_payload)
        }
        IpIdent::Unknown => {
            let likely = compute_behind::<TIMES>(prefix, index, IpIdent::DONT_FRAGMENT, udp_payload);
            if received == likely {
                // The first packet of a burst says enough of its sender.
                if let Some(senders) = senders.filter(|_| index == 0) {
                    senders.on_expected_id(&prefix.flow);
                }
                return true;
            }
            let covered = TIMES * (udp_payload.len() - ICRC_LEN);
            match (explain(&prefix.flow, received ^ likely, index, covered), senders) {
                (Some((id, flags)), Some(senders)) => senders.accepts_id(&prefix.flow, id, flags),
                (None, Some(senders)) => senders.on_corrupt(&prefix.flow),
                (explained, None) => explained.is_some(),
            }
        }
    }
}

/// Reports whether the ICRC of the packet at position `index` in a burst is correct, given what is known
/// about the packet's identification.
///
/// If the identification is unknown, `index` is tried first, which checks all 32 bits. Any other
/// identification that explains the ICRC is accepted, with don't-fragment set or clear, which checks 15 bits.
/// A [`Verifier`] checks at least 26 bits once it knows the sender.
///
/// `udp_payload` is BTH to ICRC; a payload that is too short, or longer than 64 KiB, fails. Packets whose
/// ICRCs are [elided](IpIdent::Elided) pass.
pub fn verify(flow: &Flow, ident: IpIdent, index: u16, udp_payload: &[u8]) -> bool {
    icrc_matches::<1>(&Prefix::new(flow, udp_payload.len()), None, ident, index, udp_payload)
}

/// Reports whether the ICRC of a RoCEv1 packet (GRH to ICRC) is correct. The ICRC covers eight bytes of ones
/// in place of the local route header, and then the packet, with the GRH's traffic class, flow label and hop
/// limit and the BTH's byte 4 replaced by ones (IBA 7.8.1, annex A16).
pub fn verify_v1(packet: &[u8]) -> bool {
    let Some((headers, rest)) = packet.split_first_chunk::<{ grh::LEN + BTH_LEN }>() else { return false };
    let Some((covered, received)) = rest.split_last_chunk::<ICRC_LEN>() else { return false };
    let mut masked = *headers;
    masked[0] |= 0x0f;
    masked[1..4].fill(0xff);
    masked[7] = 0xff;
    masked[grh::LEN + BTH_MASKED] = 0xff;
    let mut icrc = Icrc::default();
    icrc.update(&[0xff; LRH]);
    icrc.update(&masked);
    icrc.update(covered);
    icrc.value() == u32::from_le_bytes(*received)
}

/// Returns the IPv4 identification and flags (as the 16 bits on the wire) for which a packet's ICRC is
/// correct, or `None` if there are none, which means that the packet is corrupt. `likely` is the
/// identification to try first.
///
/// IPv6 has neither field: the result is `likely` and [`IpIdent::DONT_FRAGMENT`], or `None`.
pub fn identify(flow: &Flow, likely: u16, udp_payload: &[u8]) -> Option<(u16, u16)> {
    let difference = received(udp_payload)? ^ compute(flow, likely, IpIdent::DONT_FRAGMENT, udp_payload);
    explain(flow, difference, likely, udp_payload.len() - ICRC_LEN)
}

/// Returns the identification and flags that explain the difference between a packet's ICRC and the one
/// computed with `likely` and don't-fragment over `covered` bytes behind the prefix.
#[inline]
fn explain(flow: &Flow, difference: u32, likely: u16, covered: usize) -> Option<(u16, u16)> {
    if difference == 0 {
        return Some((likely, IpIdent::DONT_FRAGMENT));
    }
    if flow.dst.is_ipv6() {
        return None;
    }
    icrc_ident::recover(difference, BEHIND_ID + covered, likely)
}

/// Returns the ICRC at the end of a packet, or `None` if the payload is too short or too long for a packet.
fn received(udp_payload: &[u8]) -> Option<u32> {
    if !has_valid_len(udp_payload) {
        return None;
    }
    udp_payload.last_chunk().map(|icrc| u32::from_le_bytes(*icrc))
}

/// Reports whether a payload has the length of a packet. An elided ICRC is not read, which would be a cache
/// miss.
#[inline]
fn has_valid_len(udp_payload: &[u8]) -> bool {
    (BTH_LEN + ICRC_LEN..=MAX_UDP_PAYLOAD).contains(&udp_payload.len())
}

#[cfg(test)]
#[path = "icrc_tests.rs"]
mod tests;
