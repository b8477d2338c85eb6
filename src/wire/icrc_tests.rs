//! Tests of the ICRC against packets captured from rxe, an independent CRC implementation, and random
//! corruption.

use crc::{CRC_32_ISO_HDLC, Crc};
use proptest::prelude::*;
use rand_pcg::Pcg32;
use rand_pcg::rand_core::Rng;

use super::*;

const ORACLE: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

fn v4() -> Flow {
    Flow::new("10.77.0.2".parse().unwrap(), "10.77.0.1".parse().unwrap(), 0xc121)
}

fn v6() -> Flow {
    let ip = |s: &str| s.parse().unwrap();
    Flow::new(ip("fe80::5054:ff:fe77:2"), ip("fe80::5054:ff:fe77:1"), 0xe341)
}

/// Returns a UDP payload of `len` bytes whose ICRC is computed with the given identification and flags.
fn packet(flow: &Flow, id: u16, flags: u16, len: usize) -> Vec<u8> {
    let mut p: Vec<u8> = (0..len).map(|i| (i * 7 + 3) as u8).collect();
    let icrc = compute(flow, id, flags, &p);
    p[len - ICRC_LEN..].copy_from_slice(&icrc.to_le_bytes());
    p
}

/// ACK sent by rxe over IPv4 with identification 0x9bcd, from BTH to ICRC.
const RXE_ACK: [u8; 20] = [
    0x11, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x00, 0x57, 0xaf, 0xd7, 0x1f, 0x00, 0x00, 0x01, 0xdf,
    0x3f, 0x9b, 0xff,
];
/// ACK sent by rxe over IPv6, with a traffic class and without a UDP checksum.
const RXE_ACK_V6: [u8; 20] = [
    0x11, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x4c, 0x00, 0x00, 0x01, 0x00, 0x1f, 0x00, 0x00, 0x01, 0x3e,
    0x9f, 0xd3, 0xaa,
];

#[test]
fn packets_of_rxe_pass_the_icrc_check() {
    let seen = IpIdent::Exact { id: 0x9bcd, flags: IpIdent::DONT_FRAGMENT };
    assert!(verify(&v4(), seen, 0, &RXE_ACK));
    assert!(verify(&v4(), IpIdent::Unknown, 0, &RXE_ACK));
    assert_eq!(identify(&v4(), 0, &RXE_ACK), Some((0x9bcd, IpIdent::DONT_FRAGMENT)));
    assert!(!verify(&v4(), IpIdent::SENT, 0, &RXE_ACK));
    assert!(verify(&v6(), IpIdent::Unknown, 3, &RXE_ACK_V6));
}

#[test]
fn fields_that_routers_change_do_not_affect_the_icrc() {
    let changed = Flow { traffic_class: 0xc2, hop_limit: 3, ..v4() };
    // A CNP as a ConnectX sends it: opcode 0x81 with BECN set (byte 4), 16 bytes of zeros.
    let mut cnp = [0u8; 12 + 16 + 4];
    (cnp[0], cnp[2], cnp[3], cnp[7]) = (0x81, 0xff, 0xff, 0x11);
    let plain = compute(&v4(), 0, IpIdent::DONT_FRAGMENT, &cnp);
    cnp[4] = 0x40;
    assert_eq!(compute(&changed, 0, IpIdent::DONT_FRAGMENT, &cnp), plain);
}

#[test]
fn ipv4_ids_are_recovered_at_any_packet_length() {
    for len in [16, 17, 20, 100, 231, 232, 233, 276, 1044, 1500, 4116, 8192, 9000, 65_507] {
        for id in [0, 1, 2, 15, 63, 64, 255, 256, 0x1234, 0x8000, 0xff00, 0xfffe, 0xffff] {
            for flags in [IpIdent::DONT_FRAGMENT, 0] {
                let p = packet(&v4(), id, flags, len);
                for likely in [0, 5, id] {
                    assert_eq!(identify(&v4(), likely, &p), Some((id, flags)), "{len} bytes, {id:#x}");
                }
                assert!(verify(&v4(), IpIdent::Unknown, 9, &p));
            }
        }
    }
}

#[test]
fn corrupt_packets_are_rejected() {
    let mut random = Pcg32::new(1, 1);
    let (mut accepted_v4, mut accepted_v6) = (0, 0);
    // Random changes: of 200,000, a mean of 200,000 / 2^15 = 6 are explained by some identification.
    for i in 0..200_000 {
        let len = 24 + (i % 40) * 4;
        for (flow, accepted) in [(v4(), &mut accepted_v4), (v6(), &mut accepted_v6)] {
            let mut p = packet(&flow, i as u16, IpIdent::DONT_FRAGMENT, len);
            let before = p.clone();
            for _ in 0..1 + random.next_u32() % 4 {
                let at = random.next_u32() as usize % len;
                // A change of byte 4 would have no effect, as that is masked.
                p[if at == 4 { 5 } else { at }] ^= 1 << (random.next_u32() % 8);
            }
            *accepted += usize::from(p != before && verify(&flow, IpIdent::Unknown, i as u16, &p));
        }
    }
    println!("accepted of 200,000 corruptions: {accepted_v4} over IPv4, {accepted_v6} over IPv6");
    assert!(accepted_v4 <= 16, "{accepted_v4} of 200,000");
    assert_eq!(accepted_v6, 0);
}

#[test]
fn flush_whose_icrc_covers_its_headers_twice_is_accepted_only_if_enabled() {
    for (flow, opcode) in [(v4(), 0x1c), (v6(), 0x1c), (v4(), 4), (v6(), 4)] {
        let mut p: Vec<u8> = (0..12 + 4 + 16 + ICRC_LEN).map(|i| (i * 7) as u8).collect();
        p[0] = opcode;
        let body = p.len() - ICRC_LEN;
        let specified = compute(&flow, 7, IpIdent::DONT_FRAGMENT, &p);
        // Continues over the headers with byte 4 of the BTH unmasked.
        let mut hasher = crc32fast::Hasher::new_with_initial(specified);
        hasher.update(&p[..body]);
        let twice = hasher.finalize();
        let flush = opcode == 0x1c;
        for (icrc, if_enabled, if_disabled) in
            [(specified, true, true), (twice, flush, false), (specified ^ 1, false, false)]
        {
            p[body..].copy_from_slice(&icrc.to_le_bytes());
            for ident in [IpIdent::Exact { id: 7, flags: IpIdent::DONT_FRAGMENT }, IpIdent::Unknown] {
                assert_eq!(
                    Verifier::new(true).verify(&flow, ident, 0, &p),
                    if_enabled,
                    "{opcode:#x} {ident:?}"
                );
                assert_eq!(
                    Verifier::new(false).verify(&flow, ident, 0, &p),
                    if_disabled,
                    "{opcode:#x} {ident:?}"
                );
            }
        }
    }
}

#[test]
fn packets_shorter_than_bth_and_icrc_fail_verification() {
    for len in 0..16 {
        assert!(!verify(&v4(), IpIdent::Unknown, 0, &vec![0xff; len]));
        assert!(!verify(&v6(), IpIdent::SENT, 0, &vec![0xff; len]));
    }
}

proptest! {
    #[test]
    fn icrc_computed_in_slices_equals_that_of_another_implementation(
        payload in proptest::collection::vec(any::<u8>(), 16..2000),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6),
        id: u16,
        flags in prop_oneof![Just(IpIdent::DONT_FRAGMENT), any::<u16>()],
        six: bool,
    ) {
        let flow = if six { v6() } else { v4() };
        let covered = payload.len() - ICRC_LEN;

        // Joins all covered bytes, with other implementations of the CRC and of the headers.
        let mut frame = Vec::new();
        crate::wire::frame::append_ip_udp(&mut frame, &flow, id, payload.len());
        let masked: &[usize] = if six { &[1, 2, 3, 7, 46, 47] } else { &[1, 8, 10, 11, 26, 27] };
        masked.iter().for_each(|&at| frame[at] = 0xff);
        if six {
            frame[0] |= 0x0f;
        } else {
            frame[6..8].copy_from_slice(&flags.to_be_bytes());
        }
        let mut all = vec![0xff; 8];
        all.extend_from_slice(&frame);
        let bth = all.len();
        all.extend_from_slice(&payload[..covered]);
        all[bth + 4] = 0xff;
        let expected = ORACLE.checksum(&all);

        let mut at: Vec<usize> = cuts.iter().map(|c| 12 + c.index(covered - 11)).collect();
        at.push(covered);
        at.sort_unstable();
        let mut icrc = Prefix::new(&flow, payload.len()).after_headers(id, flags, &payload[..at[0]]);
        at.windows(2).for_each(|w| icrc.update(&payload[w[0]..w[1]]));
        prop_assert_eq!(icrc.value(), expected);
        prop_assert_eq!(compute(&flow, id, flags, &payload), expected);
    }
}

/// Returns a verifier that has seen `count` packets with the identifications that `id` returns.
fn verifier_of(count: usize, id: impl Fn(usize) -> u16) -> Verifier {
    let mut verifier = Verifier::default();
    for i in 0..count {
        let p = packet(&v4(), id(i), IpIdent::DONT_FRAGMENT, 100);
        assert!(verifier.verify(&v4(), IpIdent::Unknown, 0, &p), "packet {i}");
    }
    verifier
}

#[test]
fn only_ipv4_ids_below_64_are_accepted_from_a_known_sender() {
    let mut verifier = verifier_of(100, |_| 0);
    let (df, unknown) = (IpIdent::DONT_FRAGMENT, IpIdent::Unknown);
    for (id, flags) in [(64, df), (0x1234, df)] {
        assert!(!verifier.verify(&v4(), unknown, 0, &packet(&v4(), id, flags, 100)));
    }
    assert!(verifier.verify(&v4(), unknown, 0, &packet(&v4(), 0, df, 100)));
    assert!(!verifier.verify(&v4(), unknown, 0, &packet(&v4(), 0, 0, 100)));
    // The rest of a burst whose first packets were lost.
    for id in 20..64 {
        assert!(verifier.verify(&v4(), unknown, id - 20, &packet(&v4(), id, df, 100)));
    }
    // Another flow is unknown.
    let other = Flow { src_port: 7, ..v4() };
    assert!(verifier.verify(&other, unknown, 0, &packet(&other, 0x1234, df, 100)));
}

#[test]
fn new_sender_at_a_known_address_is_accepted_after_two_lost_packets() {
    let mut verifier = verifier_of(200, |_| 0);
    let accepted: Vec<bool> = (5000..5006)
        .map(|id| {
            let p = packet(&v4(), id, IpIdent::DONT_FRAGMENT, 100);
            verifier.verify(&v4(), IpIdent::Unknown, 0, &p)
        })
        .collect();
    assert_eq!(accepted, [false, false, true, true, true, true]);
}

#[test]
fn packets_are_accepted_while_the_ipv4_id_wraps_around() {
    verifier_of(3 * 65_536, |i| i as u16);
}

#[test]
fn corrupt_packets_of_a_known_sender_are_rejected() {
    let mut verifier = verifier_of(100, |_| 0);
    let (mut random, mut accepted) = (Pcg32::new(1, 1), 0);
    let good = packet(&v4(), 0, IpIdent::DONT_FRAGMENT, 100);
    // The mean is 200,000 / 2^26 of the corruptions; if every identification were accepted, it would be six.
    for _ in 0..200_000 {
        let mut p = good.clone();
        p[96..].copy_from_slice(&random.next_u32().to_le_bytes());
        accepted += usize::from(p != good && verifier.verify(&v4(), IpIdent::Unknown, 0, &p));
    }
    assert_eq!(accepted, 0);
}

#[test]
fn invalid_flush_of_any_length_is_rejected_without_panic() {
    for len in [16, 60, 300, 32_780, 32_888, 65_000, MAX_UDP_PAYLOAD, MAX_UDP_PAYLOAD + 1] {
        let mut packet = vec![0; len];
        packet[0] = Opcode::FLUSH.0;
        assert!(!Verifier::new(true).verify(&v4(), IpIdent::Unknown, 0, &packet), "{len} bytes");
    }
}
