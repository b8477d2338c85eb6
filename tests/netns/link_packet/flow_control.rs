//! Tests of priority flow control on packet links.

use std::time::{Duration, Instant as Clock};

use parking_lot::Mutex;
use pnet_datalink::{Channel, Config, DataLinkSender};
use urxe::link::{Link, PacketConfig, PacketLink, PortState};
use urxe::transport::{Instant, TxQueue};
use urxe::wire::frame::PauseFrame;
use urxe::wire::{Flow, Mac};

use super::{join, open};
use urxe_test_support::netns::Veth;
use urxe_test_support::nic;
use urxe_test_support::numbered::packets;
use urxe_test_support::pauses::{SLOW, check_that_pauses_stop_queue_pairs};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Group that needs no neighbour resolution.
const GROUP: &str = "239.1.2.3";

/// Opens a raw socket on the interface of the second side.
fn raw_socket(net: &Veth) -> Box<dyn DataLinkSender> {
    let v1 = || pnet_datalink::interfaces().into_iter().find(|i| i.name == "v1").unwrap();
    let channel = net.sides[1].run(|| pnet_datalink::channel(&v1(), Config::default())).unwrap();
    match channel {
        Channel::Ethernet(tx, _) => tx,
        _ => panic!("a veth is Ethernet"),
    }
}

fn send(raw: &mut dyn DataLinkSender, pause: &PauseFrame) {
    let mut frame = Vec::new();
    pause.append(&mut frame, Mac([2, 0, 0, 0, 0, 9]));
    raw.send_to(&frame, None).unwrap().unwrap();
}

fn open_shards(net: &Veth, side: usize, spec: &str, count: usize) -> Vec<PacketLink> {
    let config: PacketConfig = spec.parse().unwrap();
    net.sides[side].run(|| PacketLink::open_shards(config, count)).unwrap()
}

fn flow(src: &str, priority: u8) -> Flow {
    Flow { traffic_class: priority << 5, ..Flow::new(src.parse().unwrap(), GROUP.parse().unwrap(), 4000) }
}

/// Polls the links until `is_done` is true of them.
fn poll(links: &mut [PacketLink], now: u64, is_done: impl Fn(&mut [PacketLink]) -> bool) {
    let start = Clock::now();
    while !is_done(links) {
        assert!(
            start.elapsed() < TIMEOUT,
            "{:?}",
            links.iter_mut().map(|l| l.counters()).collect::<Vec<_>>()
        );
        for link in &mut *links {
            link.receive(Instant(now), &mut |_| {}).unwrap();
        }
    }
}

fn pauses(links: &mut [PacketLink]) -> u64 {
    links.iter_mut().map(|link| link.counters().rx_prio_pause[3]).sum()
}

#[test]
fn pause_frames_of_a_raw_socket_pause_all_shards_and_are_counted_once() {
    let net = Veth::new(1500);
    let mut raw = raw_socket(&net);
    for (address, src) in [("", "10.77.0.1"), (",ip=10.77.0.11/24", "10.77.0.11")] {
        for (count, fanout) in [(1, "on"), (2, "on"), (2, "off")] {
            let spec = format!("packet:v0{address},pfc=on,{SLOW},fanout={fanout}");
            let mut links = open_shards(&net, 0, &spec, count);
            let mut peer = open(&net, 1, "packet:v1");
            let start = Clock::now();
            join(&net, 1, &mut peer, start, GROUP);
            send(&mut *raw, &PauseFrame::new(1 << 3, 1000));
            poll(&mut links, 1, |links| pauses(links) == 1);
            // 1000 quanta of 512 µs.
            let end = 512_000_001;
            for link in &mut links {
                let room = link.egress_room().unwrap();
                assert_eq!([2, 3].map(|priority| room.has_room(priority)), [true, false], "{spec}");
                assert_eq!(link.next_deadline(), Some(Instant(end)), "{spec}");
                let mut queue = TxQueue::new(link.info().burst);
                [3, 1].iter().for_each(|priority| packets(&mut queue, &flow(src, *priority), 2, 8));
                link.transmit(Instant(2), &queue).unwrap();
            }
            let mut arrived = |expected: &[u8]| {
                let (mut got, start) = (Vec::new(), Clock::now());
                while got.len() < expected.len() {
                    assert!(start.elapsed() < TIMEOUT, "{spec}: {got:?}");
                    let mut add = |priority: u8, count: usize| got.extend(vec![priority; count]);
                    peer.receive(Instant(1), &mut |burst| {
                        add(burst.flow.traffic_class >> 5, burst.packets().count());
                    })
                    .unwrap();
                }
                assert_eq!(got, expected, "{spec}");
            };
            arrived(&vec![1; 2 * count]);
            // The frame with time 0 arrives at one shard, and wakes the others.
            send(&mut *raw, &PauseFrame::new(1 << 3, 0));
            poll(&mut links, 3, |links| pauses(links) == 2);
            poll(&mut links, 3, |links| links.iter().all(|link| link.next_deadline().is_none()));
            arrived(&vec![3; 2 * count]);
            assert!(links.iter().all(|link| link.egress_room().unwrap().has_room(3)), "{spec}");
        }
    }
}

#[test]
fn queue_pairs_of_a_paused_priority_stop_and_others_continue() {
    let net = Veth::new(1500);
    for (shards, fanout) in [(1, "on"), (2, "on"), (2, "off")] {
        let raw = Mutex::new(raw_socket(&net));
        let spec = format!("packet:v0,ip=10.77.0.11/24,pfc=on,{SLOW},fanout={fanout}");
        let a = nic::open(open_shards(&net, 0, &spec, shards));
        let b = nic::open([open(&net, 1, "packet:v1,ip=10.77.0.12/24")]);
        check_that_pauses_stop_queue_pairs([a, b], |pause| send(&mut **raw.lock(), pause));
    }
}

/// Sends packets to a receiver that processes fewer than are sent. Returns how many arrived, and how many
/// pause frames the sender received.
fn send_to_slow_receiver(net: &Veth, sender: &str, count: u32) -> (u32, u64) {
    let mut a = open(net, 0, &format!("packet:v0,offload=off,{sender}"));
    let mut b = open(net, 1, "packet:v1,offload=off,pfc=on,xoff=400000,xon=100000");
    // Receives everything at once, which shows what the interface has received.
    let mut fast = open(net, 1, "packet:v1,offload=off");
    let start = Clock::now();
    [&mut b, &mut fast].into_iter().for_each(|link| join(net, 1, link, start, GROUP));
    let flow = flow("10.77.0.1", 3);
    let mut queue = TxQueue::new(a.info().burst);
    packets(&mut queue, &flow, 64, 1000);
    let (mut sent, mut seen, mut got) = (0, 0, 0);
    // In each step, the receiver processes a quarter of what the sender may send.
    loop {
        assert!(start.elapsed() < 4 * TIMEOUT, "{got} of {sent} packets have arrived");
        a.receive(Instant(1), &mut |_| {}).unwrap();
        if sent < count && a.egress_room().is_none_or(|room| room.has_room(3)) {
            a.transmit(Instant(1), &queue).unwrap();
            sent += 64;
        }
        while seen < sent {
            assert!(start.elapsed() < 4 * TIMEOUT, "{seen} of {sent} packets have reached the interface");
            fast.receive(Instant(1), &mut |burst| seen += burst.packets().count() as u32).unwrap();
        }
        let received = b.receive(Instant(1), &mut |burst| got += burst.packets().count() as u32).unwrap();
        if received == 0 && sent == count {
            break;
        }
    }
    assert_eq!(a.counters().tx_dropped, 0);
    assert!(b.counters().tx_prio_pause[3] >= 2, "{:?}", b.counters());
    (got, a.counters().rx_prio_pause[3])
}

#[test]
fn slow_receiver_pauses_the_sender_and_every_packet_arrives() {
    let net = Veth::new(1500);
    // Twice what the receive buffer holds.
    let count = 640 * 64;
    let (arrived, pauses) = send_to_slow_receiver(&net, "pfc=on", count);
    assert!(arrived == count && pauses >= 2, "{arrived} of {count} arrived, {pauses} pause frames");
    let (arrived, _) = send_to_slow_receiver(&net, "pfc=off", count);
    assert!(arrived < count, "all packets arrive without flow control");
}
