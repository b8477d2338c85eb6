//! Verification of ICRCs, and the causes of wrong ones.

use std::fmt;

use urxe::wire::icrc::{self, Icrc, Verifier};
use urxe::wire::{BTH_LEN, ICRC_LEN, IpIdent, Packet, WireError};

use crate::layers::{Roce, Version};

/// Result of the verification of a packet's ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The ICRC is right.
    Right,
    /// The ICRC is wrong.
    Wrong,
    /// The capture does not contain the end of the packet.
    NotCaptured,
}

/// Verifier of the ICRCs of a capture.
#[derive(Debug, Default)]
pub struct Judge {
    verifier: Verifier,
    /// The current packet, if the capture cut it, with zeros in place of what is missing.
    completed: Vec<u8>,
}

impl Judge {
    /// Parses a packet and verifies its ICRC. If the capture cut the packet, its payload is zeros, and the
    /// ICRC is [`Verdict::NotCaptured`].
    ///
    /// # Errors
    /// [`WireError`] if the bytes are not a packet.
    pub fn judge<'a>(&'a mut self, roce: &Roce<'a>) -> Result<(Packet<'a>, Verdict), WireError> {
        if roce.bytes.len() < roce.len {
            self.completed.clear();
            self.completed.extend_from_slice(roce.bytes);
            self.completed.resize(roce.len, 0);
            // Of a packet that was cut within its headers, zeros would be taken for fields.
            let have = roce.bytes.len();
            let packet = Packet::parse(&self.completed)?;
            let need = BTH_LEN + packet.row().headers.wire_len();
            return match have < need {
                true => Err(WireError::Truncated { len: have, need, opcode: packet.bth().opcode }),
                false => Ok((packet, Verdict::NotCaptured)),
            };
        }
        let packet = Packet::parse(roce.bytes)?;
        let is_right = match roce.version {
            Version::V2 => self.verifier.verify_in_burst(&roce.flow, roce.ident, 0, roce.bytes, false),
            Version::V1 => icrc::verify_v1(&[roce.ip, roce.bytes].concat()),
        };
        Ok((packet, if is_right { Verdict::Right } else { Verdict::Wrong }))
    }
}

/// Cause of a wrong ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// One bit was flipped: byte, counted from the BTH, and bit, 0 for the lowest.
    BitError(usize, u8),
    /// The field is zero: the sender's adapter fills it in after the capture, or nothing does.
    Zero,
    /// The bytes of the ICRC are in the opposite order.
    ByteOrder,
    /// The ICRC is right if the field has another value: a device on the path rewrote it.
    Rewritten(&'static str, Option<u32>),
    /// The ICRC is right if the field is not masked: the sender masks too little.
    NotMasked(&'static str),
    /// The ICRC covers the transport headers twice, which Linux 6.12's rxe does for FLUSH.
    CoveredTwice,
    /// None of these: several bits are wrong.
    Unknown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::BitError(byte, bit) => {
                write!(f, "one bit was flipped on the path: bit {bit} of byte {byte} after the start of the BTH")
            }
            Cause::Zero => {
                f.write_str("the field is 0: the packet was captured before the adapter filled the ICRC in, or nothing did")
            }
            Cause::ByteOrder => f.write_str("its bytes are in the opposite order: the sender's ICRC is big-endian"),
            Cause::Rewritten(field, Some(value)) => {
                write!(f, "right if the {field} was {value:#x}: a device on the path has rewritten the {field}, which the ICRC covers")
            }
            Cause::Rewritten(field, None) => {
                write!(f, "right with another {field}: a device on the path has rewritten the {field}, which the ICRC covers")
            }
            Cause::NotMasked(field) => {
                write!(f, "right if the {field} is not masked: the sender computes the ICRC over the {field}")
            }
            Cause::CoveredTwice => f.write_str(
                "right if it covers the transport headers twice: an error of rxe up to Linux 6.12 for FLUSH",
            ),
            Cause::Unknown => f.write_str("several bits differ: payload or headers were changed on the path"),
        }
    }
}

/// Polynomial of CRC-32, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Length of the ones in place of the local route header.
const LRH_LEN: usize = 8;

/// A field that the ICRC masks, by its position.
struct Masked {
    name: &'static str,
    /// Byte ranges within the covered headers, which begin with the local route header, and the bits.
    bytes: &'static [(usize, u8)],
}

/// Masked fields of IPv4, UDP and BTH.
const MASKED_V4: &[Masked] = &[
    Masked { name: "TTL", bytes: &[(16, 0xff)] },
    Masked { name: "type of service", bytes: &[(9, 0xff)] },
    Masked { name: "IP checksum", bytes: &[(18, 0xff), (19, 0xff)] },
    Masked { name: "UDP checksum", bytes: &[(34, 0xff), (35, 0xff)] },
    Masked { name: "reserved byte with FECN and BECN", bytes: &[(40, 0xff)] },
];

/// Masked fields of IPv6, UDP and BTH.
const MASKED_V6: &[Masked] = &[
    Masked { name: "hop limit", bytes: &[(15, 0xff)] },
    Masked { name: "traffic class", bytes: &[(8, 0x0f), (9, 0xf0)] },
    Masked { name: "flow label", bytes: &[(9, 0x0f), (10, 0xff), (11, 0xff)] },
    Masked { name: "UDP checksum", bytes: &[(54, 0xff), (55, 0xff)] },
    Masked { name: "reserved byte with FECN and BECN", bytes: &[(60, 0xff)] },
];

/// Finds the cause of a packet's wrong ICRC. `udp_checksum` is not part of [`Roce`] and is taken as 0, which
/// all known senders use.
pub fn cause_of(roce: &Roce<'_>) -> Cause {
    let Some((covered, received)) = roce.bytes.split_last_chunk::<ICRC_LEN>() else { return Cause::Unknown };
    let (received, is_v4) = (u32::from_le_bytes(*received), roce.flow.dst.is_ipv4());
    if roce.version == Version::V1 || covered.len() < BTH_LEN {
        return Cause::Unknown;
    }
    let fields = if is_v4 { MASKED_V4 } else { MASKED_V6 };
    // What the ICRC covers, as it is on the wire.
    let mut plain = vec![0xff; LRH_LEN];
    plain.extend_from_slice(roce.ip);
    let udp_at = plain.len();
    plain.extend_from_slice(&roce.flow.src_port.to_be_bytes());
    plain.extend_from_slice(&urxe::wire::ROCE_PORT.to_be_bytes());
    plain.extend_from_slice(&(roce.len as u16 + 8).to_be_bytes());
    plain.extend_from_slice(&[0, 0]);
    plain.extend_from_slice(covered);
    let mut masked = plain.clone();
    let mut mask = |field: &Masked| field.bytes.iter().for_each(|(at, bits)| masked[*at] |= bits);
    fields.iter().for_each(&mut mask);
    let crc = |bytes: &[u8]| {
        let mut icrc = Icrc::default();
        icrc.update(bytes);
        icrc.value()
    };
    let computed = crc(&masked);
    let difference = computed ^ received;
    match () {
        () if received == 0 => return Cause::Zero,
        () if received == computed.swap_bytes() => return Cause::ByteOrder,
        () if Verifier::new(true).verify(&roce.flow, roce.ident, 0, roce.bytes) => {
            return Cause::CoveredTwice;
        }
        () => {}
    }
    for field in fields {
        let mut unmasked = masked.clone();
        field.bytes.iter().for_each(|(at, bits)| unmasked[*at] = masked[*at] & !bits | plain[*at] & bits);
        if unmasked != masked && crc(&unmasked) == received {
            return Cause::NotMasked(field.name);
        }
    }
    // A router decrements the TTL, so that the one that the sender covers is not that of the packet.
    let ttl = if is_v4 { (16, "TTL") } else { (15, "hop limit") };
    let with_ttl = |ttl_value: u8| {
        let mut unmasked = masked.clone();
        unmasked[ttl.0] = ttl_value;
        crc(&unmasked)
    };
    if (0..=u8::MAX).any(|value| with_ttl(value) == received) {
        return Cause::NotMasked(ttl.1);
    }
    if let Some((byte, bit)) = flipped_bit(difference, masked.len()) {
        let at_bth = udp_at + 8;
        let is_in = |range: std::ops::Range<usize>| range.contains(&byte);
        return match () {
            () if byte >= at_bth => Cause::BitError(byte - at_bth, bit),
            () if is_v4 && is_in(LRH_LEN + 6..LRH_LEN + 8) => {
                Cause::Rewritten("don't-fragment flag of the IP header", None)
            }
            () if is_v4 && is_in(LRH_LEN + 4..LRH_LEN + 6) => Cause::Rewritten("IP identification", None),
            () if is_in(udp_at..udp_at + 2) => Cause::Rewritten("UDP source port", None),
            () => Cause::Rewritten("IP header", None),
        };
    }
    if let Some(port) = word_that_explains(difference, &masked, udp_at, crc) {
        return Cause::Rewritten("UDP source port", Some(u32::from(port)));
    }
    if is_v4 && icrc::verify(&roce.flow, IpIdent::Unknown, 0, roce.bytes) {
        return Cause::Rewritten("IP identification", None);
    }
    Cause::Unknown
}

/// Returns the position of the bit whose flip changes the CRC of `len` bytes, or the CRC itself, by
/// `difference`: byte and bit.
fn flipped_bit(difference: u32, len: usize) -> Option<(usize, u8)> {
    if difference.is_power_of_two() {
        let bit = difference.trailing_zeros();
        return Some((len + (bit / 8) as usize, (bit % 8) as u8));
    }
    // The effect of a flip of the last bit; each bit before it has the effect of one more step.
    let mut effect = POLYNOMIAL;
    for byte in (0..len).rev() {
        for bit in (0..8).rev() {
            if effect == difference {
                return Some((byte, bit));
            }
            effect = effect >> 1 ^ if effect & 1 != 0 { POLYNOMIAL } else { 0 };
        }
    }
    None
}

/// Returns the value of the 16-bit word at `at` with which the CRC of `bytes` changes by `difference`.
fn word_that_explains(difference: u32, bytes: &[u8], at: usize, crc: impl Fn(&[u8]) -> u32) -> Option<u16> {
    let mut changed = bytes.to_vec();
    let before = crc(bytes);
    let effects: [u32; 16] = std::array::from_fn(|bit| {
        changed[at + 1 - bit / 8] ^= 1 << (bit % 8);
        let effect = crc(&changed) ^ before;
        changed[at + 1 - bit / 8] ^= 1 << (bit % 8);
        effect
    });
    // In the order of a Gray code, in which one bit changes at a time.
    let (mut word, mut effect) = (0, 0);
    for step in 1..=u16::MAX {
        let bit = step.trailing_zeros();
        word ^= 1 << bit;
        effect ^= effects[bit as usize];
        if effect == difference {
            return Some(word ^ u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Content, dissect};
    use pcap_file::DataLink;
    use urxe::wire::{Bth, Flow, Headers, Opcode, Psn, Qpn, frame};

    /// Returns an IP packet with a SEND of 32 bytes.
    fn packet(v6: bool) -> Vec<u8> {
        let ips = if v6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
        let [src, dst] = ips.map(|ip| ip.parse().unwrap());
        let flow = Flow { traffic_class: 0x68, ..Flow::new(src, dst, 0xc123) };
        let bth = Bth { opcode: Opcode(4), dest_qp: Qpn::new(0x11), psn: Psn::new(7), ..Bth::default() };
        let mut payload = vec![0; 12];
        Headers { bth, ..Headers::default() }.emit(&mut payload);
        payload.extend(0..32);
        payload.extend([0; 4]);
        let icrc = icrc::compute(&flow, 9, IpIdent::DONT_FRAGMENT, &payload);
        let at = payload.len() - 4;
        payload[at..].copy_from_slice(&icrc.to_le_bytes());
        let mut bytes = Vec::new();
        frame::append_ip_udp(&mut bytes, &flow, 9, payload.len());
        bytes.extend(payload);
        bytes
    }

    fn verdict(bytes: &[u8]) -> (Verdict, Cause) {
        let Content::Roce(roce) = dissect(DataLink::RAW, bytes).unwrap() else { panic!() };
        let verdict = Judge::default().judge(&roce).unwrap().1;
        (verdict, cause_of(&roce))
    }

    #[test]
    fn right_icrc_is_right_and_of_a_cut_packet_unknown() {
        for v6 in [false, true] {
            let bytes = packet(v6);
            assert_eq!(verdict(&bytes).0, Verdict::Right);
            let Content::Roce(roce) = dissect(DataLink::RAW, &bytes[..bytes.len() - 16]).unwrap() else {
                panic!()
            };
            assert_eq!(Judge::default().judge(&roce).unwrap().1, Verdict::NotCaptured);
        }
    }

    #[test]
    fn cause_is_the_flipped_bit_wherever_it_is() {
        for v6 in [false, true] {
            let bytes = packet(v6);
            let bth = bytes.len() - 48;
            for byte in [5, 9, 12, 20, 43, 44, 47] {
                for bit in [0, 3, 7] {
                    let mut broken = bytes.clone();
                    broken[bth + byte] ^= 1 << bit;
                    assert_eq!(
                        verdict(&broken),
                        (Verdict::Wrong, Cause::BitError(byte, bit)),
                        "{byte} {bit}"
                    );
                }
            }
        }
    }

    #[test]
    fn cause_is_the_rewritten_or_unmasked_field() {
        let bytes = packet(false);
        let change = |f: &dyn Fn(&mut Vec<u8>)| {
            let mut changed = bytes.clone();
            f(&mut changed);
            verdict(&changed).1
        };
        assert_eq!(
            change(&|b| b[20..22].copy_from_slice(&0xd0aau16.to_be_bytes())),
            Cause::Rewritten("UDP source port", Some(0xc123))
        );
        assert_eq!(change(&|b| b[4] = 0x5a), Cause::Rewritten("IP identification", None));
        assert_eq!(change(&|b| b[6] = 0), Cause::Rewritten("don't-fragment flag of the IP header", None));
        let end = bytes.len() - 4;
        assert_eq!(change(&|b| b[end..].fill(0)), Cause::Zero);
        assert_eq!(change(&|b| b[end..].reverse()), Cause::ByteOrder);
        assert_eq!(change(&|b| b[40..60].fill(0x77)), Cause::Unknown);
        // A sender that computes over its TTL.
        let mut plain = vec![0xff; 8];
        plain.extend_from_slice(&bytes[..end]);
        for at in [9, 18, 19, 34, 35, 40] {
            plain[at] = 0xff;
        }
        let mut icrc = Icrc::default();
        icrc.update(&plain);
        assert_eq!(
            change(&|b| b[end..].copy_from_slice(&icrc.value().to_le_bytes())),
            Cause::NotMasked("TTL")
        );
    }
}
