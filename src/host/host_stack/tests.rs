//! Tests of how the host stack handles ARP, NDP, ICMP, IGMP and MLD, partly with frames captured from Linux.

use std::time::Duration;

use super::groups::UNSOLICITED_REPORT_INTERVAL;
use super::neighbours::{MAX_NEIGHBOURS, MAX_REQUESTS};
use super::*;
use crate::host::unresolved_queue::MAX_UNRESOLVED_BYTES;
use crate::wire::Flow;
use crate::wire::frame::{Checksums, append_frame};

const OWN: Mac = Mac([0x52, 0x54, 0, 0x77, 0, 2]);
const PEER: Mac = Mac([0x52, 0x54, 0, 0x77, 0, 1]);

/// Frames as sent by Linux 6.1.
const ARP_REQUEST: &str =
    "ffffffffffff525400770001 0806 0001080006040001 525400770001 0a4d0001 000000000000 0a4d0002";
const ARP_REPLY: &str =
    "525400770001525400770002 0806 0001080006040002 525400770002 0a4d0002 525400770001 0a4d0001";
const SOLICIT: &str = "3333ff770002525400770001 86dd 6000000000203aff fe80000000000000505400fffe770001\
    ff0200000000000000000001ff770002 870089be00000000 fe80000000000000505400fffe770002 0101525400770001";
const ADVERT: &str = "525400770001525400770002 86dd 6000000000203aff fe80000000000000505400fffe770002\
    fe80000000000000505400fffe770001 8800d7ec60000000 fe80000000000000505400fffe770002 0201525400770002";

fn unhex(s: &str) -> Vec<u8> {
    let s: String = s.split_whitespace().collect();
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}

fn host_stack() -> HostStack {
    let addresses = ["10.77.0.2/24", "fd77::2/64", "fe80::5054:ff:fe77:2/64"];
    HostStack::new(HostStackConfig {
        mac: OWN,
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        gateways: vec!["10.77.0.254".parse().unwrap()],
        vlan: None,
    })
}

fn at(ms: u64) -> Instant {
    Instant::default() + Duration::from_millis(ms)
}

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn drain(s: &mut HostStack) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    while let Some(frame) = s.unresolved.outbox.front() {
        out.push(frame.to_vec());
        s.unresolved.outbox.pop();
    }
    out
}

fn packet(src: &str, dst: &str, to: Mac) -> Vec<u8> {
    let mut out = Vec::new();
    append_frame(&mut out, (to, PEER), None, &Flow::new(ip(src), ip(dst), 1), 0, &[7; 16]);
    out
}

fn handle(s: &mut HostStack, ms: u64, frame: &[u8]) -> FrameOutcome {
    s.handle(at(ms), frame, frame::parse(frame, Checksums::Verify).unwrap())
}

#[test]
fn arp_and_ndp_replies_match_those_of_linux() {
    let mut s = host_stack();
    assert_eq!(handle(&mut s, 0, &unhex(ARP_REQUEST)), FrameOutcome::Handled);
    assert_eq!(handle(&mut s, 0, &unhex(SOLICIT)), FrameOutcome::Handled);
    assert_eq!(drain(&mut s), [unhex(ARP_REPLY), unhex(ADVERT)]);
    // The senders of the requests are known from then on.
    assert_eq!(s.resolve(at(1), ip("10.77.0.1")), Some(PEER));
    assert_eq!(s.resolve(at(1), ip("fe80::5054:ff:fe77:1")), Some(PEER));
    assert_eq!(s.next_deadline(), None);
}

#[test]
fn duplicate_address_probe_gets_a_response_to_all_nodes() {
    let mut s = host_stack();
    let probe = NeighborSolicit {
        src: Ipv6Addr::UNSPECIFIED,
        dst: solicited_node("fd77::2".parse().unwrap()),
        target: "fd77::2".parse().unwrap(),
        source_mac: None,
    };
    let mut frame = Vec::new();
    let group = Mac::of_group(probe.dst.into()).unwrap();
    frame::append_neighbor_solicit(&mut frame, group, PEER, &probe);
    handle(&mut s, 0, &frame);
    let out = drain(&mut s);
    let read = frame::parse(&out[0], Checksums::Verify).unwrap();
    assert_eq!(read.dst.to_string(), "33:33:00:00:00:01");
    let Content::NeighborAdvert(na) = read.content else { panic!("{read:?}") };
    assert_eq!((na.solicited, na.target_mac, na.dst.to_string()), (false, Some(OWN), "ff02::1".into()));
}

#[test]
fn queued_frame_is_sent_when_its_neighbour_replies() {
    let mut s = host_stack();
    assert_eq!(s.resolve(at(0), ip("10.77.0.1")), None);
    s.queue_unresolved(ip("10.77.0.1"), &mut |out| {
        out.extend_from_slice(&packet("10.77.0.2", "10.77.0.1", Mac::default()))
    });
    s.queue_unresolved(ip("10.77.0.9"), &mut |out| {
        out.extend_from_slice(&packet("10.77.0.2", "10.77.0.9", Mac::default()))
    });
    let mut request = unhex(ARP_REQUEST);
    request[6..12].copy_from_slice(&OWN.0);
    request[22..28].copy_from_slice(&OWN.0);
    request[28..32].copy_from_slice(&[10, 77, 0, 2]);
    request[38..42].copy_from_slice(&[10, 77, 0, 1]);
    assert_eq!(drain(&mut s), std::slice::from_ref(&request));
    // Only one request is sent, however many packets wait.
    assert_eq!(s.resolve(at(1), ip("10.77.0.1")), None);
    assert!(drain(&mut s).is_empty());
    let mut reply = unhex(ARP_REPLY);
    reply[..6].copy_from_slice(&OWN.0);
    reply[6..12].copy_from_slice(&PEER.0);
    reply[22..28].copy_from_slice(&PEER.0);
    reply[28..32].copy_from_slice(&[10, 77, 0, 1]);
    reply[38..42].copy_from_slice(&[10, 77, 0, 2]);
    assert_eq!(handle(&mut s, 2, &reply), FrameOutcome::Handled);
    assert_eq!(drain(&mut s), [packet("10.77.0.2", "10.77.0.1", PEER)]);
    assert_eq!((s.resolve(at(3), ip("10.77.0.1")), s.unresolved.dropped), (Some(PEER), 0));
}

#[test]
fn resolution_fails_after_the_maximum_number_of_requests() {
    let mut s = host_stack();
    for dst in ["10.77.0.3", "fd77::3"] {
        assert_eq!(s.resolve(at(0), ip(dst)), None);
        s.queue_unresolved(ip(dst), &mut |out| out.extend_from_slice(&[0; 60]));
    }
    let mut requests = drain(&mut s).len();
    while let Some(when) = s.next_deadline() {
        s.handle_timeout(when);
        requests += drain(&mut s).len();
    }
    assert_eq!((requests, s.unresolved.dropped), (2 * MAX_REQUESTS as usize, 2));
    // The next packet starts a new resolution.
    assert_eq!(s.resolve(at(9000), ip("10.77.0.3")), None);
    assert_eq!(drain(&mut s).len(), 1);
}

#[test]
fn stale_mac_is_used_while_it_is_probed_until_a_new_one_replaces_it() {
    let mut s = host_stack();
    handle(&mut s, 0, &unhex(ARP_REQUEST));
    drain(&mut s);
    let later = REACHABLE_TIME.as_millis() as u64 + 1;
    assert_eq!(s.resolve(at(later), ip("10.77.0.1")), Some(PEER));
    let probe = drain(&mut s);
    assert_eq!((probe.len(), &probe[0][..6]), (1, &PEER.0[..]));
    let moved = Mac([2, 0, 0, 0, 0, 9]);
    let mut frame = Vec::new();
    let arp = Arp {
        request: true,
        sender_mac: moved,
        sender_ip: "10.77.0.1".parse().unwrap(),
        target_mac: Mac::default(),
        target_ip: "10.77.0.1".parse().unwrap(),
    };
    frame::append_arp(&mut frame, Mac::BROADCAST, &arp);
    handle(&mut s, later + 1, &frame);
    assert_eq!(s.resolve(at(later + 2), ip("10.77.0.1")), Some(moved));
    assert_eq!(s.next_deadline(), None);
    // An announcement of an unknown host is ignored.
    let unknown = Arp { sender_ip: "10.77.0.8".parse().unwrap(), ..arp };
    frame.clear();
    frame::append_arp(&mut frame, Mac::BROADCAST, &unknown);
    handle(&mut s, later + 3, &frame);
    assert_eq!(s.resolve(at(later + 4), ip("10.77.0.8")), None);
}

#[test]
fn group_resolves_to_its_multicast_mac_and_off_link_host_to_the_router() {
    let mut s = host_stack();
    assert_eq!(s.resolve(at(0), ip("239.1.2.3")), Some(Mac([1, 0, 0x5e, 1, 2, 3])));
    assert_eq!(s.resolve(at(0), ip("ff0e::9")), Some(Mac([0x33, 0x33, 0, 0, 0, 9])));
    assert_eq!(s.resolve(at(0), ip("10.77.0.255")), Some(Mac::BROADCAST));
    assert!(drain(&mut s).is_empty());
    // The destination is off-link: the request is for the router.
    assert_eq!(s.resolve(at(0), ip("8.8.8.8")), None);
    assert_eq!(drain(&mut s)[0][38..42], [10, 77, 0, 254]);
    // There is no router for IPv6.
    assert_eq!(s.resolve(at(0), ip("2001:db8::1")), None);
    s.queue_unresolved(ip("2001:db8::1"), &mut |out| out.extend_from_slice(&[0; 60]));
    assert!(drain(&mut s).is_empty());
    assert_eq!(s.unresolved.dropped, 1);
}

#[test]
fn frames_beyond_the_queue_limit_are_dropped_and_counted() {
    let mut s = host_stack();
    s.resolve(at(0), ip("10.77.0.1"));
    let n = MAX_UNRESOLVED_BYTES / 4096 + 10;
    for _ in 0..n {
        s.queue_unresolved(ip("10.77.0.1"), &mut |out| out.extend_from_slice(&[0; 4096]));
    }
    assert_eq!(s.unresolved.dropped, 10);
}

#[test]
fn packets_are_classified_by_destination_and_update_the_neighbour_cache() {
    let mut s = host_stack();
    let accepted = packet("10.77.0.1", "10.77.0.2", OWN);
    let FrameOutcome::Packet(roce) = handle(&mut s, 0, &accepted) else { panic!() };
    assert_eq!(accepted[roce.payload], [7; 16]);
    assert_eq!(s.resolve(at(0), ip("10.77.0.1")), Some(PEER));
    let group = packet("10.77.0.1", "239.1.2.3", Mac([1, 0, 0x5e, 1, 2, 3]));
    assert_eq!(handle(&mut s, 0, &group), FrameOutcome::Foreign);
    s.join(at(0), ip("239.1.2.3")).unwrap();
    assert!(matches!(handle(&mut s, 0, &group), FrameOutcome::Packet(_)));
    // Another group that maps to the same MAC.
    let same_mac = packet("10.77.0.1", "238.129.2.3", Mac([1, 0, 0x5e, 1, 2, 3]));
    assert_eq!(handle(&mut s, 0, &same_mac), FrameOutcome::Foreign);
    s.leave(ip("239.1.2.3"), true);
    assert_eq!(handle(&mut s, 0, &group), FrameOutcome::Foreign);
    for foreign in [
        packet("10.77.0.1", "10.77.0.2", PEER),
        packet("10.77.0.1", "10.77.0.7", OWN),
        packet("10.77.0.2", "10.77.0.2", OWN),
    ] {
        assert_eq!(handle(&mut s, 0, &foreign), FrameOutcome::Foreign);
    }
    let mut tagged = accepted.clone();
    tagged.splice(12..12, [0x81, 0, 0xa0, 0]);
    assert!(matches!(handle(&mut s, 0, &tagged), FrameOutcome::Packet(_)), "VLAN 0 carries only a priority");
    tagged[15] = 5;
    assert_eq!(handle(&mut s, 0, &tagged), FrameOutcome::Foreign);
    assert!(frame::parse(&accepted[..50], Checksums::Verify).is_err());
}

#[test]
fn echo_requests_are_sent_and_replied_to() {
    for (own, peer) in [("10.77.0.2", "10.77.0.1"), ("fd77::2", "fd77::1")] {
        let mut a = host_stack();
        let mut b = HostStack::new(HostStackConfig {
            mac: PEER,
            addresses: vec![peer.parse().unwrap()],
            gateways: vec![],
            vlan: None,
        });
        assert!(a.ping(at(0), ip(peer), 3, 4, b"abc"));
        let mut replies = Vec::new();
        for _ in 0..4 {
            for f in drain(&mut a) {
                assert_ne!(handle(&mut b, 0, &f), FrameOutcome::Foreign);
            }
            for f in drain(&mut b) {
                if let Content::Echo { echo, .. } = frame::parse(&f, Checksums::Verify).unwrap().content {
                    replies.push(echo);
                }
                assert_eq!(handle(&mut a, 0, &f), FrameOutcome::Handled);
            }
        }
        assert_eq!(replies, [Echo { request: false, src: ip(peer), dst: ip(own), id: 3, seq: 4 }]);
        assert!(!b.ping(at(0), ip(if own.contains(':') { "10.0.0.1" } else { "fd00::1" }), 0, 0, b""));
    }
}

#[test]
fn neighbour_cache_does_not_grow_beyond_its_limit() {
    let mut s = HostStack::new(HostStackConfig {
        mac: OWN,
        addresses: vec!["10.0.0.1/8".parse().unwrap()],
        gateways: vec![],
        vlan: None,
    });
    for i in 0..MAX_NEIGHBOURS as u32 + 50 {
        let src = Ipv4Addr::from_bits(0x0a01_0000 + i);
        handle(&mut s, i.into(), &packet(&src.to_string(), "10.0.0.1", OWN));
    }
    assert_eq!(s.resolve(at(9999), ip("10.1.16.49")), Some(PEER));
    assert_eq!(s.resolve(at(9999), ip("10.1.0.0")), None);
}

/// Queries as sent by the multicast querier of a Linux 6.18 bridge: IGMPv3, IGMPv2, MLDv2, MLDv1.
const QUERIES: [&str; 4] = [
    "01005e000001525400770002080046c00024000040000102041300000000e0000001940400001164ec980000000002030000",
    "01005e000001525400770002080046c00020000040000102041700000000e0000001940400001164ee9b00000000",
    "33330000000152540077000286dd6000000000240001fe80000000000000505400fffe770002ff020000000000000000\
    0000000000013a0005020000000082000744271000000000000000000000000000000000000002030000",
    "33330000000152540077000286dd6000000000200001fe80000000000000505400fffe770002ff020000000000000000\
    0000000000013a000502000000008200094b2710000000000000000000000000000000000000",
];

fn reports(reports: &[(&str, MembershipState, bool)]) -> Vec<Vec<u8>> {
    let frame = |(group, membership, old): &(&str, MembershipState, bool)| {
        let (group, membership, old) = (ip(group), *membership, *old);
        let src = ip(if group.is_ipv4() { "10.77.0.2" } else { "fe80::5054:ff:fe77:2" });
        let mut out = Vec::new();
        frame::append_group_report(&mut out, OWN, &frame::GroupReport { src, group, membership, old });
        out
    };
    reports.iter().map(frame).collect()
}

#[test]
fn membership_is_reported_twice_after_joining_and_again_on_query_and_on_leave() {
    use MembershipState::{Joined, Left, Member};
    let mut s = host_stack();
    let [v4, v6] = ["239.1.2.3", "ff15::7"];
    s.join(at(0), ip(v4)).unwrap();
    s.join(at(5), ip(v6)).unwrap();
    s.join(at(6), ip(v6)).unwrap();
    assert_eq!(drain(&mut s), reports(&[(v4, Joined, false), (v6, Joined, false)]));
    assert_eq!(s.next_deadline(), Some(at(0) + UNSOLICITED_REPORT_INTERVAL));
    s.handle_timeout(at(999));
    assert!(drain(&mut s).is_empty());
    s.handle_timeout(at(1005));
    assert_eq!(drain(&mut s), reports(&[(v4, Joined, false), (v6, Joined, false)]));
    assert_eq!(s.next_deadline(), None);

    // The response is of the version of the query, and later reports keep that version.
    for (query, group, old) in [(0, v4, false), (1, v4, true), (2, v6, false), (3, v6, true)] {
        assert_eq!(handle(&mut s, 2000, &unhex(QUERIES[query])), FrameOutcome::Handled);
        assert_eq!(drain(&mut s), reports(&[(group, Member, old)]));
    }
    s.leave(ip(v4), true);
    s.leave(ip(v4), true);
    s.leave(ip(v6), true);
    assert_eq!(drain(&mut s), reports(&[(v4, Left, true), (v6, Left, true)]));
    handle(&mut s, 2001, &unhex(QUERIES[0]));
    assert!(drain(&mut s).is_empty());
    // A membership that ends before its report is repeated is not reported again.
    s.join(at(3000), ip(v4)).unwrap();
    s.leave(ip(v4), true);
    assert_eq!(s.next_deadline(), None);
}

#[test]
fn membership_of_all_nodes_and_host_local_groups_is_not_reported() {
    let mut s = host_stack();
    for group in ["224.0.0.1", "ff02::1", "ff01::7"] {
        s.join(at(0), ip(group)).unwrap();
        assert!(s.is_member(ip(group)));
    }
    s.handle_timeout(at(2000));
    for query in QUERIES {
        assert_eq!(handle(&mut s, 0, &unhex(query)), FrameOutcome::Handled);
    }
    assert!(drain(&mut s).is_empty());
}

#[test]
fn joining_a_group_fails_without_an_address_of_its_ip_version() {
    let only_v6 =
        HostStackConfig { addresses: vec!["fd77::2/64".parse().unwrap()], ..host_stack().config.clone() };
    let mut s = HostStack::new(only_v6);
    assert!(matches!(s.join(at(0), ip("239.1.2.3")), Err(JoinError::NoAddress(_))));
    assert!(matches!(s.join(at(0), ip("fd77::1")), Err(JoinError::NotMulticast(_))));
    // Without a link-local address, the source of the report is the one derived from the MAC.
    s.join(at(0), ip("ff15::7")).unwrap();
    assert_eq!(drain(&mut s), reports(&[("ff15::7", MembershipState::Joined, false)]));
}

/// Returns the frame with an 802.1Q tag whose tag control information is `tci`.
fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0x00], &tci.to_be_bytes(), &frame[12..]].concat()
}

#[test]
fn vlan_host_stack_tags_its_frames_and_accepts_only_its_vlan() {
    let vlan = Some(VlanTag { id: 5, priority: 3 });
    let mut s = HostStack::new(HostStackConfig { vlan, ..host_stack().config.clone() });
    let request = unhex(ARP_REQUEST);
    for other in [request.clone(), tagged(&request, 0), tagged(&request, 6), tagged(&tagged(&request, 6), 5)]
    {
        assert_eq!(handle(&mut s, 0, &other), FrameOutcome::Foreign);
    }
    assert!(drain(&mut s).is_empty());
    // The priority of received frames is ignored.
    assert_eq!(handle(&mut s, 0, &tagged(&request, 7 << 13 | 5)), FrameOutcome::Handled);
    let replies = drain(&mut s);
    assert_eq!(replies, [tagged(&unhex(ARP_REPLY), 3 << 13 | 5)]);
    // Both the frame queued for resolution and the request carry exactly one tag.
    let mut s = HostStack::new(HostStackConfig { vlan, ..host_stack().config.clone() });
    assert!(s.ping(at(0), ip("10.77.0.1"), 1, 1, b"x"));
    let outgoing = drain(&mut s);
    assert_eq!((outgoing.len(), &outgoing[0][12..16]), (1, &[0x81, 0x00, 0x60, 0x05][..]));
    handle(&mut s, 0, &tagged(&request, 5));
    let sent = drain(&mut s);
    assert_eq!(sent.len(), 2);
    for frame in sent {
        assert_eq!((&frame[..6], &frame[12..16]), (&PEER.0[..], &[0x81, 0x00, 0x60, 0x05][..]));
        assert!(frame::parse(&frame, Checksums::Verify).is_ok_and(|f| f.vlan == [Some(5), None]));
    }
}

#[test]
fn host_stack_without_a_vlan_drops_vlan_tags_but_accepts_priority_tags() {
    let mut s = host_stack();
    let request = unhex(ARP_REQUEST);
    assert_eq!(handle(&mut s, 0, &tagged(&request, 5)), FrameOutcome::Foreign);
    assert_eq!(handle(&mut s, 0, &tagged(&request, 7 << 13)), FrameOutcome::Handled);
    assert_eq!(drain(&mut s), [unhex(ARP_REPLY)]);
}

proptest::proptest! {
    #[test]
    fn corrupt_frames_cause_no_panic(
        which in 0usize..8,
        hits in proptest::collection::vec((0usize..90, proptest::prelude::any::<u8>()), 0..4),
    ) {
        let [a, b, c, d] = QUERIES;
        let mut frame = unhex([ARP_REQUEST, ARP_REPLY, SOLICIT, ADVERT, a, b, c, d][which]);
        for (at, value) in hits {
            if let Some(b) = frame.get_mut(at) {
                *b = value;
            }
        }
        let mut s = host_stack();
        s.join(at(0), ip("239.1.2.3")).unwrap();
        if let Ok(parsed) = frame::parse(&frame, Checksums::Trust) {
            s.handle(at(0), &frame, parsed);
        }
        drain(&mut s);
    }
}
