//! Tests of the frame codec against frames captured from Linux.

use etherparse::Ipv4Header;
use proptest::prelude::*;

use super::*;
use crate::wire::icrc;

/// Frames captured from Linux 6.1, including its rxe.
const ARP_REQUEST: &str =
    "ffffffffffff525400770001080600010800060400015254007700010a4d00010000000000000a4d0002";
const ARP_REPLY: &str =
    "525400770001525400770002080600010800060400025254007700020a4d00025254007700010a4d0001";
const RXE_V4: &str = "52540077000252540077000108004500002c100740004011161e0a4d00010a4d0002c8d012b7001800000400ffff\
    0000002f8000000301f73ac4";
const RXE_V6: &str = "52540077000152540077000286dd66800000001c1140fe80000000000000505400fffe770002fe80000000000000\
    505400fffe770001e34112b7001c00001100ffff0000004c000001001f0000013e9fd3aa";
const SOLICIT: &str = "3333ff77000252540077000186dd6000000000203afffe80000000000000505400fffe770001ff02000000000000\
    00000001ff770002870089be00000000fe80000000000000505400fffe7700020101525400770001";
const ADVERT: &str = "52540077000152540077000286dd6000000000203afffe80000000000000505400fffe770002fe80000000000000\
    505400fffe7700018800d7ec60000000fe80000000000000505400fffe7700020201525400770002";
const IGMP: &str = "01005e000016525400770002080046c00028000040000102f9aa0a4d0002e0000016940400002200e8f900000001\
    04000000ef010203";

const A: Mac = Mac([0x52, 0x54, 0, 0x77, 0, 1]);
const B: Mac = Mac([0x52, 0x54, 0, 0x77, 0, 2]);

fn unhex(s: &str) -> Vec<u8> {
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}

fn read(bytes: &[u8]) -> Result<Frame, FrameError> {
    parse(bytes, Checksums::Verify)
}

fn roce(bytes: &[u8]) -> RoceFrame {
    match read(bytes).unwrap().content {
        Content::Roce(r) => r,
        other => panic!("{other:?}"),
    }
}

/// Corrects the IPv4 header checksum of a frame.
fn fix_ipv4(frame: &mut [u8]) {
    let (mut ip, _) = Ipv4Header::from_slice(&frame[14..]).unwrap();
    ip.header_checksum = 0;
    frame[24..26].copy_from_slice(&ip.calc_header_checksum().to_be_bytes());
}

#[test]
fn packets_of_rxe_are_decoded_and_their_icrcs_are_valid() {
    let v4 = unhex(RXE_V4);
    let r = roce(&v4);
    assert_eq!(r.ident, IpIdent::Exact { id: 0x1007, flags: 0x4000 });
    assert_eq!((r.flow.src.to_string(), r.flow.src_port), ("10.77.0.1".into(), 0xc8d0));
    assert!(icrc::verify(&r.flow, r.ident, 0, &v4[r.payload]));
    let frame = read(&v4).unwrap();
    assert_eq!((frame.dst, frame.src, frame.vlan), (B, A, [None, None]));

    let v6 = unhex(RXE_V6);
    let r = roce(&v6);
    assert_eq!((r.ident, r.flow.traffic_class), (IpIdent::Unknown, 0x68));
    assert!(icrc::verify(&r.flow, r.ident, 0, &v6[r.payload]));
}

#[test]
fn encoded_frames_equal_those_of_linux() {
    for hex in [ARP_REQUEST, ARP_REPLY, RXE_V4, RXE_V6, SOLICIT, ADVERT] {
        let bytes = unhex(hex);
        let frame = read(&bytes).unwrap();
        let mut out = Vec::new();
        match &frame.content {
            Content::Arp(arp) => append_arp(&mut out, frame.dst, arp),
            Content::NeighborSolicit(ns) => append_neighbor_solicit(&mut out, frame.dst, frame.src, ns),
            Content::NeighborAdvert(na) => append_neighbor_advert(&mut out, frame.dst, frame.src, na),
            Content::Roce(r) => {
                let id = if let IpIdent::Exact { id, .. } = r.ident { id } else { 0 };
                append_frame(&mut out, (frame.dst, frame.src), None, &r.flow, id, &bytes[r.payload.clone()]);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(out, bytes, "{frame:?}");
    }
}

#[test]
fn neighbour_discovery_is_decoded_unless_a_router_forwarded_it() {
    let Content::NeighborSolicit(ns) = read(&unhex(SOLICIT)).unwrap().content else { panic!() };
    assert_eq!(ns.target.to_string(), "fe80::5054:ff:fe77:2");
    assert_eq!(ns.source_mac, Some(A));
    let Content::NeighborAdvert(na) = read(&unhex(ADVERT)).unwrap().content else { panic!() };
    assert_eq!((na.target_mac, na.solicited, na.replace), (Some(B), true, true));
    // A solicitation that has passed a router is ignored.
    let mut far = unhex(SOLICIT);
    far[21] = 254;
    assert_eq!(read(&far).unwrap().content, Content::Foreign);
}

#[test]
fn neighbour_discovery_with_an_invalid_option_is_rejected() {
    let address = [1, 1, 0x52, 0x54, 0, 0x77, 0, 1];
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    let solicit = |options: &[&[u8]]| {
        let mut frame = unhex(SOLICIT);
        frame.truncate(14 + 40 + 24);
        frame.extend(options.concat());
        let payload_len = (frame.len() - 14 - 40) as u16;
        frame[18..20].copy_from_slice(&payload_len.to_be_bytes());
        match parse(&frame, Checksums::Trust)?.content {
            Content::NeighborSolicit(ns) => Ok(ns.source_mac),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(solicit(&[]), Ok(None));
    assert_eq!(solicit(&[&nonce]), Ok(None));
    assert_eq!(solicit(&[&nonce, &address]), Ok(Some(A)));
    let too_long = [14, 2, 1, 2, 3, 4, 5, 6];
    for invalid in [&[1, 0, 1, 2, 3, 4, 5, 6][..], &too_long, &address[..7], &address[..1]] {
        assert_eq!(solicit(&[invalid]), Err(FrameError::NeighborOption), "{invalid:?}");
        assert_eq!(solicit(&[&nonce, invalid]), Err(FrameError::NeighborOption), "{invalid:?}");
    }
}

#[test]
fn echo_messages_round_trip_over_ipv4_and_ipv6() {
    for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let echo =
            Echo { request: true, src: src.parse().unwrap(), dst: dst.parse().unwrap(), id: 7, seq: 9 };
        let mut out = Vec::new();
        append_echo(&mut out, B, A, &echo, b"hello");
        let Content::Echo { echo: decoded, data } = read(&out).unwrap().content else { panic!() };
        assert_eq!((decoded, &out[data]), (echo, &b"hello"[..]));
        *out.last_mut().unwrap() ^= 1;
        assert!(matches!(read(&out), Err(FrameError::IcmpChecksum { .. })));
    }
}

#[test]
fn frame_with_two_vlan_tags_and_padding_is_decoded() {
    let plain = unhex(RXE_V4);
    let mut tagged = plain.clone();
    tagged.splice(12..12, [0x88, 0xa8, 0x20, 0x05, 0x81, 0x00, 0x00, 0x07]);
    tagged.extend_from_slice(&[0; 18]);
    let frame = read(&tagged).unwrap();
    assert_eq!(frame.vlan, [Some(5), Some(7)]);
    let Content::Roce(r) = frame.content else { panic!() };
    assert_eq!(tagged[r.payload], plain[42..]);
    // A frame with a third tag is foreign.
    tagged.splice(12..12, [0x81, 0x00, 0, 1]);
    assert_eq!(read(&tagged).unwrap().content, Content::Foreign);
}

#[test]
fn tag_has_the_priority_of_the_flow_if_it_demands_one() {
    let flow = Flow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 4000);
    for (vlan_priority, first) in [(None, 0x40), (Some(6), 0xc0)] {
        let (mut out, tag) = (Vec::new(), VlanTag { id: 5, priority: 2 });
        append_frame(&mut out, (A, B), Some(tag), &Flow { vlan_priority, ..flow }, 0, &[0; 16]);
        assert_eq!(out[12..16], [0x81, 0x00, first, 5]);
        assert_eq!(read(&out).unwrap().vlan, [Some(5), None]);
    }
}

#[test]
fn parsing_an_invalid_frame_fails_with_the_error_for_its_cause() {
    let error_of = |f: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = unhex(RXE_V4);
        f(&mut bytes);
        read(&bytes).unwrap_err()
    };
    assert!(matches!(error_of(&|b| b[24] ^= 1), FrameError::Ipv4Checksum { .. }));
    assert_eq!(error_of(&|b| b[14] = 0x46), FrameError::Ipv4Options { words: 6 });
    assert_eq!(error_of(&|b| b[14] = 0x44), FrameError::Ipv4Options { words: 4 });
    assert_eq!(error_of(&|b| b[14] = 0x65), FrameError::IpVersion { version: 6 });
    for fragment in [[0x20, 0x00], [0x00, 0x01]] {
        let cut = error_of(&|b| {
            b[20..22].copy_from_slice(&fragment);
            fix_ipv4(b);
        });
        assert_eq!(cut, FrameError::Fragment);
    }
    assert_eq!(error_of(&|b| b[39] = 0x19), FrameError::UdpLength { udp: 25, ip: 24 });
    assert_eq!(error_of(&|b| b[41] = 0x19), FrameError::UdpChecksum { found: 0x19 });
    assert_eq!(error_of(&|b| b[17] = 19), FrameError::LengthTooShort { layer: "IPv4", len: 19 });
    // Frames that are not RoCEv2 may have options and inconsistent lengths.
    assert_eq!(read(&unhex(IGMP)).unwrap().content, Content::Foreign);
    let mut dns = unhex(RXE_V4);
    dns[36..38].copy_from_slice(&53u16.to_be_bytes());
    dns[39] = 0;
    assert_eq!(read(&dns).unwrap().content, Content::Foreign);
}

#[test]
fn ipv4_header_with_the_reserved_flag_is_decoded_and_its_icrc_is_valid() {
    let mut frame = unhex(RXE_V4);
    frame[20] |= 0x80;
    // The flag adds 0x8000 to the sum of the words, with a carry, so the checksum 0x161e becomes 0x961d.
    frame[24..26].copy_from_slice(&0x961d_u16.to_be_bytes());
    let mut r = roce(&frame);
    let payload = r.payload.clone();
    assert_eq!(r.ident, IpIdent::Exact { id: 0x1007, flags: 0xc000 });
    let icrc = icrc::compute(&r.flow, 0x1007, 0xc000, &frame[payload.clone()]);
    let end = frame.len();
    frame[end - 4..].copy_from_slice(&icrc.to_le_bytes());
    r = roce(&frame);
    assert!(icrc::verify(&r.flow, r.ident, 0, &frame[payload]));
    frame[25] ^= 1;
    assert!(matches!(read(&frame), Err(FrameError::Ipv4Checksum { .. })));
}

/// Returns a RoCEv1 frame: GRH, BTH and AETH of an ACK, and an ICRC from an independent CRC implementation.
fn roce_v1_frame() -> Vec<u8> {
    let mut frame = [&B.0[..], &A.0, &[0x89, 0x15]].concat();
    frame.extend_from_slice(&[0x6a, 0xbc, 0xde, 0xf0, 0, 20, 0x1b, 63]);
    let gid = |s: &str| s.parse::<Ipv6Addr>().unwrap().octets();
    frame.extend_from_slice(&gid("fe80::5054:ff:fe77:1"));
    frame.extend_from_slice(&gid("fe80::5054:ff:fe77:2"));
    frame.extend_from_slice(&[0x11, 0, 0xff, 0xff, 0x40, 0, 0, 0x11, 0, 0, 1, 0, 0x1f, 0, 0, 1]);
    let mut covered = [&[0xff; 8][..], &frame[14..]].concat();
    (8..12).for_each(|at| covered[at] = 0xff);
    covered[8] = 0x6f;
    covered[15] = 0xff;
    covered[8 + 40 + 4] = 0xff;
    let icrc = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC).checksum(&covered);
    frame.extend_from_slice(&icrc.to_le_bytes());
    frame
}

#[test]
fn roce_v1_frame_is_recognised_and_its_icrc_verified() {
    let good = roce_v1_frame();
    let content = |frame: &[u8]| read(frame).unwrap().content;
    assert_eq!(content(&good), Content::RoceV1 { intact: true });
    // The ICRC does not cover traffic class, flow label, hop limit and byte 4 of the BTH.
    for (at, intact) in
        [(14, true), (15, true), (17, true), (21, true), (58, true), (30, false), (54, false), (69, false)]
    {
        let mut changed = good.clone();
        changed[at] ^= 1;
        assert_eq!(content(&changed), Content::RoceV1 { intact }, "byte {at}");
    }
    let mut padded = good.clone();
    padded.extend_from_slice(&[0; 9]);
    assert_eq!(content(&padded), Content::RoceV1 { intact: true });
    let mut raw = good.clone();
    raw[20] = 0x3b;
    assert_eq!(content(&raw), Content::Foreign);
    raw[14] = 0x45;
    assert_eq!(read(&raw).unwrap_err(), FrameError::IpVersion { version: 4 });
    for len in 14..good.len() {
        assert!(matches!(read(&good[..len]), Err(FrameError::Truncated { .. })), "{len}");
    }
}

#[test]
fn frame_cut_short_at_any_length_is_reported_as_truncated() {
    for hex in [ARP_REQUEST, RXE_V4, RXE_V6, SOLICIT, ADVERT] {
        let whole = unhex(hex);
        for len in 0..whole.len() {
            let result = read(&whole[..len]);
            assert!(matches!(result, Err(FrameError::Truncated { .. })), "{len} of {hex}: {result:?}");
        }
    }
}

#[test]
fn nonzero_udp_checksum_is_verified_and_pseudo_header_sum_completes_to_a_valid_one() {
    for hex in [RXE_V4, RXE_V6] {
        let mut frame = unhex(hex);
        let r = roce(&frame);
        let udp_at = r.payload.start - 8;
        let udp_len = (frame.len() - udp_at) as u16;
        // As in hardware: the field holds the sum of the pseudo-header, and everything is summed up.
        let pseudo = udp_pseudo_sum(&r.flow, udp_len);
        frame[udp_at + 6..udp_at + 8].copy_from_slice(&pseudo.to_be_bytes());
        let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&frame[udp_at..]);
        let full = sum.ones_complement().to_be();
        frame[udp_at + 6..udp_at + 8].copy_from_slice(&full.to_be_bytes());
        roce(&frame);
        frame[udp_at + 6] ^= 0x10;
        assert!(matches!(read(&frame), Err(FrameError::UdpChecksum { .. })));
        assert!(parse(&frame, Checksums::Trust).is_ok());
    }
}

proptest! {
    #[test]
    fn parser_does_not_panic_on_random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
    }

    #[test]
    fn parser_does_not_panic_on_corrupt_frames(
        which in 0usize..7,
        hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        checksums in prop_oneof![Just(Checksums::Verify), Just(Checksums::Trust)],
    ) {
        let mut bytes = unhex([ARP_REQUEST, ARP_REPLY, RXE_V4, RXE_V6, SOLICIT, ADVERT, IGMP][which]);
        for (at, value) in hits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok(Frame { content: Content::Roce(r), .. }) = parse(&bytes, checksums) {
            prop_assert!(r.payload.start <= r.payload.end && r.payload.end <= bytes.len());
        }
    }

    #[test]
    fn encoded_frame_decodes_to_the_same_packet(
        v6 in any::<bool>(), src in any::<u128>(), dst in any::<u128>(), src_port in any::<u16>(),
        traffic_class in any::<u8>(), hop_limit in any::<u8>(), label in 0u32..1 << 20, id in any::<u16>(),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let ip = |bits: u128| -> IpAddr {
            if v6 { Ipv6Addr::from(bits).into() } else { Ipv4Addr::from(bits as u32).into() }
        };
        let flow_label = if v6 { label } else { 0 };
        let flow = Flow { traffic_class, hop_limit, flow_label, ..Flow::new(ip(src), ip(dst), src_port) };
        let mut out = Vec::new();
        append_frame(&mut out, (A, B), None, &flow, id, &payload);
        let r = roce(&out);
        prop_assert_eq!(r.flow, flow);
        prop_assert_eq!(&out[r.payload], &payload[..]);
        if !v6 {
            prop_assert_eq!(r.ident, IpIdent::Exact { id, flags: IpIdent::DONT_FRAGMENT });
        }
    }
}

/// Frames sent by Linux 6.18 when it joins and leaves 239.1.2.3 and ff15::7, and as the querier on a bridge.
const IGMP_LEFT: &str = "01005e000016525400770002080046c00028000040000102f9aa0a4d0002e0000016940400002200e9f9000000010300\
    0000ef010203";
const IGMP2: &str =
    "01005e010203525400770002080046c00020000040000102e8c40a4d0002ef010203940400001600f8faef010203";
const IGMP2_LEFT: &str =
    "01005e000002525400770002080046c00020000040000102f9c60a4d0002e0000002940400001700f7faef010203";
const MLD: &str = "33330000001652540077000286dd6000000000240001fe80000000000000505400fffe770002ff020000000000000000\
    0000000000163a000502000001008f0020240000000104000000ff150000000000000000000000000007";
const MLD_LEFT: &str = "33330000001652540077000286dd6000000000240001fe80000000000000505400fffe770002ff020000000000000000\
    0000000000163a000502000001008f0021240000000103000000ff150000000000000000000000000007";
const MLD1: &str = "33330000000752540077000286dd6000000000200001fe80000000000000505400fffe770002ff150000000000000000\
    0000000000073a000502000001008300302500000000ff150000000000000000000000000007";
const MLD1_LEFT: &str = "33330000000252540077000286dd6000000000200001fe80000000000000505400fffe770002ff020000000000000000\
    0000000000023a0005020000010084002f3d00000000ff150000000000000000000000000007";
const IGMP_QUERY: &str = "01005e000001525400770002080046c00024000040000102041300000000e0000001940400001164ec98000000000203\
    0000";
const IGMP2_QUERY: &str =
    "01005e000001525400770002080046c00020000040000102041700000000e0000001940400001164ee9b00000000";
const MLD_QUERY: &str = "33330000000152540077000286dd6000000000240001fe80000000000000505400fffe770002ff020000000000000000\
    0000000000013a0005020000000082000744271000000000000000000000000000000000000002030000";
const MLD1_QUERY: &str = "33330000000152540077000286dd6000000000200001fe80000000000000505400fffe770002ff020000000000000000\
    0000000000013a000502000000008200094b2710000000000000000000000000000000000000";

#[test]
fn membership_reports_equal_those_of_linux() {
    let report = |group: &str, membership, old| {
        let src = if group.contains(':') { "fe80::5054:ff:fe77:2" } else { "10.77.0.2" };
        let mut out = Vec::new();
        let (src, group) = (src.parse().unwrap(), group.parse().unwrap());
        append_group_report(&mut out, B, &GroupReport { src, group, membership, old });
        out
    };
    let [v4, v6] = ["239.1.2.3", "ff15::7"];
    for (group, [joined, left, old_joined, old_left]) in
        [(v4, [IGMP, IGMP_LEFT, IGMP2, IGMP2_LEFT]), (v6, [MLD, MLD_LEFT, MLD1, MLD1_LEFT])]
    {
        assert_eq!(report(group, MembershipState::Joined, false), unhex(joined));
        assert_eq!(report(group, MembershipState::Left, false), unhex(left));
        assert_eq!(report(group, MembershipState::Joined, true), unhex(old_joined));
        assert_eq!(report(group, MembershipState::Left, true), unhex(old_left));
        // The previous versions do not distinguish a response from a new membership; the current ones do so
        // by the record type alone.
        assert_eq!(report(group, MembershipState::Member, true), unhex(old_joined));
        let (response, joined_report) = (report(group, MembershipState::Member, false), unhex(joined));
        let differ: Vec<_> = response.iter().zip(&joined_report).filter(|(a, b)| a != b).collect();
        assert!(
            differ.contains(&(&2, &4)) && differ.len() == 2,
            "only the type and the checksum differ: {differ:?}"
        );
    }
}

#[test]
fn only_valid_membership_queries_are_decoded() {
    let all_v4 = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let all_v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let queries = [
        (IGMP_QUERY, all_v4, false),
        (IGMP2_QUERY, all_v4, true),
        (MLD_QUERY, all_v6, false),
        (MLD1_QUERY, all_v6, true),
    ];
    for (frame, group, old) in queries {
        let mut frame = unhex(frame);
        let content = |frame: &[u8]| read(frame).unwrap().content;
        assert_eq!(content(&frame), Content::GroupQuery(GroupQuery { group, old }));
        // Padding of a short frame does not belong to the message.
        frame.resize(frame.len().max(60) + 4, 0);
        assert_eq!(content(&frame), Content::GroupQuery(GroupQuery { group, old }));
        // Queries with a wrong type, a wrong checksum or a changed field are not valid.
        let message = if group.is_ipv4() { 38 } else { 62 };
        for at in [message, message + 2, message + 4] {
            let mut bad = frame.clone();
            bad[at] ^= 1;
            assert_eq!(content(&bad), Content::Foreign, "byte {at}");
        }
        if group.is_ipv6() {
            let mut far = frame.clone();
            far[21] = 2;
            assert_eq!(content(&far), Content::Foreign);
        }
    }
    for report in [IGMP, IGMP_LEFT, IGMP2, IGMP2_LEFT, MLD, MLD_LEFT, MLD1, MLD1_LEFT] {
        assert_eq!(read(&unhex(report)).unwrap().content, Content::Foreign);
    }
    // Queries with a length of no version.
    for added in 1..=4 {
        let mut igmp = unhex(IGMP2_QUERY);
        igmp[17] += added;
        fix_ipv4(&mut igmp);
        let mut mld = unhex(MLD1_QUERY);
        mld[19] += added;
        // The pseudo-header contains the length of the message.
        mld[65] -= added;
        for mut frame in [igmp, mld] {
            frame.extend(vec![0; added.into()]);
            let is_query = matches!(read(&frame).unwrap().content, Content::GroupQuery(q) if !q.old);
            assert_eq!(is_query, added == 4, "{added} bytes longer: {frame:02x?}");
        }
    }
    // A query for one group.
    let mut one = unhex(IGMP2_QUERY);
    one[42..46].copy_from_slice(&[239, 1, 2, 3]);
    let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&[0x11, 100, 0, 0, 239, 1, 2, 3]);
    one[40..42].copy_from_slice(&sum.ones_complement().to_ne_bytes());
    let group = "239.1.2.3".parse().unwrap();
    assert_eq!(read(&one).unwrap().content, Content::GroupQuery(GroupQuery { group, old: true }));
}
