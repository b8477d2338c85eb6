//! Tests of the packet links of a NIC with several shards: which shard receives each packet.

use std::time::{Duration, Instant as Clock};

use etherparse::{IpNumber, Ipv4Header};
use pnet_datalink::{Channel, Config};
use urxe::link::{Link, Multicast, PacketConfig, PacketLink, PortState};
use urxe::transport::TxQueue;
use urxe::wire::{Bth, Flow, Headers, Opcode, Packet, Qpn, icrc};

use super::{join, now, open};
use urxe_test_support::netns::Veth;

/// Opens the two links of a NIC with two shards.
fn open_two_shards(net: &Veth, side: usize, spec: &str) -> [PacketLink; 2] {
    let config: PacketConfig = spec.parse().unwrap();
    let links = net.sides[side].run(|| PacketLink::open_shards(config, 2)).unwrap();
    links.try_into().unwrap_or_else(|links: Vec<_>| panic!("{} links", links.len()))
}

/// Polls the links in turn until none has received a packet for 300 ms and 100 polls. Returns the last byte
/// of each packet's destination QP number, for each link.
fn received(links: &mut [&mut PacketLink], start: Clock) -> Vec<Vec<u8>> {
    let mut got = vec![Vec::new(); links.len()];
    let (mut last, mut polls) = (Clock::now(), 0);
    while last.elapsed() < Duration::from_millis(300) || polls < 100 {
        polls += 1;
        for (link, got) in links.iter_mut().zip(&mut got) {
            let n = link.receive(now(start), &mut |burst| {
                for (i, data) in burst.packets() {
                    assert!(icrc::verify(&burst.flow, burst.ident, i, data));
                    got.push(Packet::parse(data).unwrap().bth().dest_qp.get() as u8);
                }
            });
            if n.unwrap() > 0 {
                (last, polls) = (Clock::now(), 0);
            }
        }
    }
    got
}

fn send_to_qps(link: &mut PacketLink, src: &str, dst: &str, qps: &[u32], start: Clock) {
    let flow = Flow { hop_limit: 1, ..Flow::new(src.parse().unwrap(), dst.parse().unwrap(), 4000) };
    for qpn in qps {
        let mut queue = TxQueue::new(link.info().burst);
        let bth = Bth { opcode: Opcode(4), dest_qp: Qpn::new(*qpn), ..Bth::default() };
        queue.push(&flow, Headers { bth, ..Headers::default() }, &[7; 100]);
        link.transmit(now(start), &queue).unwrap();
    }
}

/// Returns the link specifications twice: unchanged, and with a filter on each shard's socket instead of a
/// fanout group.
fn with_and_without_fanout<const N: usize>(specs: [String; N]) -> [[String; N]; 2] {
    let without = specs.clone().map(|spec| format!("{spec},fanout=off"));
    [specs, without]
}

/// Returns the kernel's list of packet fanout groups on one side, with one entry for each socket in a group.
fn fanouts(net: &Veth, side: usize) -> Vec<String> {
    let out = net.sides[side].command("ss").args(["-0", "-e"]).output().unwrap();
    assert!(out.status.success(), "ss: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout);
    let found = text.match_indices("fanout(").map(|(at, _)| text[at..].split_inclusive(')').next());
    found.flatten().map(str::to_owned).collect()
}

#[test]
fn shards_of_one_nic_share_a_fanout_group() {
    let net = Veth::new(1500);
    let config: PacketConfig = "packet:v1".parse().unwrap();
    let links = net.sides[1].run(|| PacketLink::open_shards(config.clone(), 4)).unwrap();
    assert!(links.iter().all(PacketLink::fans_out));
    let groups = fanouts(&net, 1);
    assert!(groups.len() == 4 && groups.iter().all(|group| *group == groups[0]), "{groups:?}");
    // Another NIC uses another group.
    let more = net.sides[1].run(|| PacketLink::open_shards(config.clone(), 2)).unwrap();
    let mut groups = fanouts(&net, 1);
    groups.sort();
    groups.dedup();
    assert_eq!(groups.len(), 2, "{groups:?}");
    drop((links, more));
    assert_eq!(fanouts(&net, 1), [""; 0]);
    for (spec, count) in [("packet:v1,fanout=off", 2), ("packet:v1", 1)] {
        let links = net.sides[1].run(|| PacketLink::open_shards(spec.parse().unwrap(), count)).unwrap();
        assert!(!links.iter().any(PacketLink::fans_out), "{spec}");
        assert_eq!(fanouts(&net, 1), [""; 0], "{spec}");
    }
}

#[test]
fn shards_receive_their_packets_after_interface_comes_up_again() {
    let net = Veth::new(1500);
    let start = Clock::now();
    let mut a = open(&net, 0, "packet:v0,ip=10.77.0.11/24");
    let config: PacketConfig = "packet:v1,ip=10.77.0.12/24".parse().unwrap();
    let mut links = net.sides[1].run(|| PacketLink::open_shards(config, 4)).unwrap();
    for turn in 0..3 {
        send_to_qps(&mut a, "10.77.0.11", "10.77.0.12", &[0x10, 0x11, 0x12, 0x13, 0x27, 0xfe], start);
        let all = &mut links.iter_mut().chain([&mut a]).collect::<Vec<_>>();
        assert_eq!(
            received(all, start),
            [vec![0x10], vec![0x11], vec![0x12, 0xfe], vec![0x13, 0x27], vec![]],
            "turn {turn}"
        );
        net.sides[1].ip("link set v1 down");
        assert!(received(all, start).concat().is_empty());
        net.sides[1].ip("link set v1 up");
        net.wait_until_up();
    }
}

#[test]
fn each_shard_receives_its_packets_and_resolves_neighbours() {
    let net = Veth::new(1500);
    let station = |dev: &str, n: u32| format!("packet:{dev},ip=10.77.0.{n}/24,ip=fd77::{n}/64");
    for (a, b, hosts) in [
        ("packet:v0".to_owned(), "packet:v1".to_owned(), [1, 2]),
        (station("v0", 11), station("v1", 12), [11, 12]),
    ]
    .into_iter()
    .flat_map(|(a, b, hosts)| with_and_without_fanout([a, b]).map(|[a, b]| (a, b, hosts)))
    {
        let start = Clock::now();
        let ([mut a0, mut a1], [mut b0, mut b1]) =
            (open_two_shards(&net, 0, &a), open_two_shards(&net, 1, &b));
        for net in ["10.77.0.", "fd77::"] {
            let [x, y] = hosts.map(|n| format!("{net}{n}"));
            // Each link resolves its neighbour by itself; both links of the other side are queried.
            for a in [&mut a0, &mut a1] {
                send_to_qps(a, &x, &y, &[0x10, 0x11, 0x13, 0x12], start);
            }
            let mut got = received(&mut [&mut b0, &mut b1, &mut a0, &mut a1], start);
            got.iter_mut().for_each(|qps| qps.sort_unstable());
            assert_eq!(got, [vec![0x10, 0x10, 0x12, 0x12], vec![0x11, 0x11, 0x13, 0x13], vec![], vec![]]);
            send_to_qps(&mut b1, &y, &x, &[3], start);
            assert_eq!(
                received(&mut [&mut a0, &mut a1, &mut b0, &mut b1], start),
                [vec![], vec![3], vec![], vec![]]
            );
        }
        assert_eq!([&mut a0, &mut a1, &mut b0, &mut b1].map(|l| l.counters().tx_unresolved), [0; 4]);
    }
}

/// Returns a general IGMPv3 query, as a router sends it.
fn group_query() -> Vec<u8> {
    let mut igmp = [0x11, 10, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0];
    let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&igmp).ones_complement().to_be();
    igmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut ip = Ipv4Header::new(12, 1, IpNumber::IGMP, [10, 77, 0, 1], [224, 0, 0, 1]).unwrap();
    // Router Alert option.
    ip.options = [0x94, 4, 0, 0].into();
    ip.set_payload_len(igmp.len()).unwrap();
    ip.header_checksum = ip.calc_header_checksum();
    let mut frame = vec![1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0];
    ip.write(&mut frame).unwrap();
    frame.extend(igmp);
    frame
}

#[test]
fn every_shard_reports_its_groups_to_a_router() {
    let net = Veth::new(1500);
    for [spec] in with_and_without_fanout(["packet:v1,ip=10.77.0.12/24".to_owned()]) {
        let [mut b0, mut b1] = open_two_shards(&net, 1, &spec);
        let start = Clock::now();
        join(&net, 1, &mut b0, start, "239.1.2.3");
        join(&net, 1, &mut b1, start, "239.4.5.6");
        // The shards send unsolicited reports twice.
        while b0.next_deadline().is_some() || b1.next_deadline().is_some() {
            received(&mut [&mut b0, &mut b1], start);
        }
        let config = Config { read_timeout: Some(Duration::from_millis(10)), ..Config::default() };
        let v0 = || pnet_datalink::interfaces().into_iter().find(|i| i.name == "v0").unwrap();
        let channel = net.sides[0].run(|| pnet_datalink::channel(&v0(), config)).unwrap();
        let Channel::Ethernet(mut tx, mut rx) = channel else { panic!("a veth is Ethernet") };
        tx.send_to(&group_query(), None).unwrap().unwrap();
        let mut reported = [[239, 1, 2, 3], [239, 4, 5, 6]].map(|group| (group, false));
        while reported.iter().any(|(_, is_reported)| !is_reported) {
            assert!(start.elapsed() < Duration::from_secs(20), "{spec}: {reported:?}");
            for link in [&mut b0, &mut b1] {
                link.receive(now(start), &mut |_| {}).unwrap();
            }
            // A membership report of version 3 with one group.
            if let Ok(frame) = rx.next()
                && frame[12..14] == [8, 0]
                && frame[23] == 2
                && frame[14 + 24] == 0x22
            {
                reported
                    .iter_mut()
                    .for_each(|(group, is_reported)| *is_reported |= frame[14 + 24 + 12..][..4] == *group);
            }
        }
    }
}

#[test]
fn multicast_reaches_every_shard_that_joined() {
    let net = Veth::new(1500);
    let station = |dev: &str, n: u32| format!("packet:{dev},ip=10.77.0.{n}/24");
    for [a, b] in [["packet:v0".to_owned(), "packet:v1".to_owned()], [station("v0", 1), station("v1", 2)]]
        .into_iter()
        .flat_map(with_and_without_fanout)
    {
        let start = Clock::now();
        let (mut a, [mut b0, mut b1]) = (open(&net, 0, &a), open_two_shards(&net, 1, &b));
        let group = "239.1.2.3";
        join(&net, 1, &mut b0, start, group);
        send_to_qps(&mut a, "10.77.0.1", group, &[0xff_ffff], start);
        assert_eq!(received(&mut [&mut b0, &mut b1], start), [vec![0xff], vec![]]);
        join(&net, 1, &mut b1, start, group);
        send_to_qps(&mut a, "10.77.0.1", group, &[0xff_ffff], start);
        assert_eq!(received(&mut [&mut b0, &mut b1], start), [vec![0xff], vec![0xff]]);
        // A packet from one shard is delivered to both.
        send_to_qps(&mut b0, "10.77.0.2", group, &[0xff_ffff], start);
        assert_eq!(received(&mut [&mut b0, &mut b1], start), [vec![0xff], vec![0xff]]);
        b0.leave(group.parse().unwrap());
        send_to_qps(&mut b0, "10.77.0.2", group, &[0xff_ffff], start);
        assert_eq!(received(&mut [&mut b0, &mut b1], start), [vec![], vec![0xff]]);
        send_to_qps(&mut a, "10.77.0.1", group, &[0xff_ffff], start);
        assert_eq!(received(&mut [&mut b0, &mut b1], start), [vec![], vec![0xff]]);
    }
}
