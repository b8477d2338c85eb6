//! Tests of priority flow control on frames links.

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

use urxe::link::{FramesLink, Link, Multicast, PortState};
use urxe::transport::{Instant, TxQueue};
use urxe::wire::frame::{Checksums, Content, PauseFrame, parse};
use urxe::wire::{Flow, Mac, Packet};

use super::{Dir, pair_with};
use urxe_test_support::nic::open;
use urxe_test_support::numbered::packets;
use urxe_test_support::pauses::{SLOW, check_that_pauses_stop_queue_pairs};

/// Group that needs no neighbour resolution.
const GROUP: &str = "239.1.2.3";

fn flow(src: &str, priority: u8) -> Flow {
    Flow { traffic_class: priority << 5, ..Flow::new(src.parse().unwrap(), GROUP.parse().unwrap(), 4000) }
}

fn frame(pause: &PauseFrame) -> Vec<u8> {
    let mut frame = Vec::new();
    pause.append(&mut frame, Mac([2, 0, 0, 0, 0, 9]));
    frame
}

/// Reads all frames, and returns the priority and the number of each RoCEv2 packet.
fn numbers(peer: &UnixDatagram) -> Vec<(u8, u32)> {
    let (mut buffer, mut got) = ([0; 2000], Vec::new());
    while let Ok(len) = peer.recv(&mut buffer) {
        let bytes = &buffer[..len];
        if let Content::Roce(roce) = parse(bytes, Checksums::Verify).unwrap().content {
            let packet = Packet::parse(&bytes[roce.payload]).unwrap();
            let number = u32::from_be_bytes(*packet.payload().first_chunk().unwrap());
            got.push((roce.flow.traffic_class >> 5, number));
        }
    }
    got
}

#[test]
fn packets_of_a_paused_priority_leave_after_the_pause_and_others_at_once() {
    let dir = Dir::new("pause");
    let mut a = dir.open(&format!("frames:dgram:@/a,@/b,ip=10.77.0.1/24,pfc=on,{SLOW}"));
    let peer = UnixDatagram::bind(dir.0.join("b")).unwrap();
    peer.connect(dir.0.join("a")).unwrap();
    peer.set_nonblocking(true).unwrap();
    let send = |a: &mut FramesLink, now: u64, first: u32| {
        let mut queue = TxQueue::new(a.info().burst);
        for priority in [3, 1] {
            packets(&mut queue, &flow("10.77.0.1", priority), first, 8);
        }
        a.transmit(Instant(now), &queue).unwrap();
        numbers(&peer)
    };
    let receive = |a: &mut FramesLink, now: u64, bytes: &[u8]| {
        peer.send(bytes).unwrap();
        a.receive(Instant(now), &mut |_| {}).unwrap();
        let room = a.egress_room().unwrap();
        let frames = numbers(&peer);
        ((0..8).filter(|priority| !room.has_room(*priority)).collect::<Vec<_>>(), frames)
    };
    assert_eq!(send(&mut a, 1, 1), [(3, 0), (1, 0)]);
    // 1000 quanta of 512 µs.
    assert_eq!(receive(&mut a, 1000, &frame(&PauseFrame::new(1 << 3, 1000))), (vec![3], vec![]));
    assert_eq!(a.next_deadline(), Some(Instant(512_001_000)));
    assert_eq!(send(&mut a, 2000, 2), [(1, 0), (1, 1)]);
    // Frames that are malformed, or for another priority, change nothing.
    assert_eq!(receive(&mut a, 2000, &frame(&PauseFrame::new(1 << 3, 0))[..30]), (vec![3], vec![]));
    assert_eq!(receive(&mut a, 2000, &frame(&PauseFrame::new(1 << 2, 0))), (vec![3], vec![]));
    a.receive(Instant(512_000_999), &mut |_| {}).unwrap();
    assert!(numbers(&peer).is_empty());
    a.receive(Instant(512_001_000), &mut |_| {}).unwrap();
    assert_eq!(numbers(&peer), [(3, 0), (3, 1)]);
    assert_eq!((a.next_deadline(), send(&mut a, 512_001_000, 1)), (None, vec![(3, 0), (1, 0)]));
    // A frame with time 0 ends a pause early.
    assert_eq!(receive(&mut a, 600_000_000, &frame(&PauseFrame::new(0xff, 9))).0, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(send(&mut a, 600_000_000, 1).is_empty());
    let resumed = receive(&mut a, 600_000_001, &frame(&PauseFrame::new(0b1010, 0)));
    assert_eq!(resumed, (vec![0, 2, 4, 5, 6, 7], vec![(1, 0), (3, 0)]));
    let counters = a.counters();
    assert_eq!(counters.rx_prio_pause, [1, 2, 2, 3, 1, 1, 1, 1]);
    assert_eq!((counters.rx_truncated, counters.tx_dropped, counters.tx_prio_pause), (1, 0, [0; 8]));
}

#[test]
fn link_without_flow_control_ignores_pause_frames() {
    let dir = Dir::new("no-pause");
    let mut a = dir.open("frames:dgram:@/a,@/b,ip=10.77.0.1/24");
    let peer = UnixDatagram::bind(dir.0.join("b")).unwrap();
    peer.connect(dir.0.join("a")).unwrap();
    peer.send(&frame(&PauseFrame::new(0xff, 0xffff))).unwrap();
    a.receive(Instant(1), &mut |_| {}).unwrap();
    assert_eq!((a.egress_room(), a.next_deadline()), (None, None));
    assert_eq!((a.counters().rx_foreign, a.counters().rx_prio_pause), (1, [0; 8]));
}

#[test]
fn slow_receiver_pauses_the_sender_and_every_packet_arrives() {
    const COUNT: u32 = 4000;
    let dir = Dir::new("slow-pause");
    let (mut a, mut b) = pair_with(&dir, "stream", ",pfc=on,xoff=60000,xon=20000");
    b.join(Instant(0), GROUP.parse().unwrap()).unwrap();
    let mut queue = TxQueue::new(a.info().burst);
    packets(&mut queue, &flow("10.77.0.1", 3), 40, 1000);
    // The sender offers 40 packets in each step; the receiver processes 64 in every other one.
    let (mut sent, mut got, mut stopped) = (0, 0, 0);
    for step in 0.. {
        assert!(step < 100_000, "{got} of {sent} packets arrived");
        a.receive(Instant(1), &mut |_| {}).unwrap();
        if sent < COUNT && a.egress_room().unwrap().has_room(3) {
            a.transmit(Instant(1), &queue).unwrap();
            sent += 40;
        } else if sent < COUNT {
            stopped += 1;
        }
        if step % 2 == 0 {
            b.receive(Instant(1), &mut |burst| got += burst.packets().count() as u32).unwrap();
        }
        if got == COUNT {
            break;
        }
    }
    for _ in 0..4 {
        b.receive(Instant(1), &mut |_| {}).unwrap();
        a.receive(Instant(1), &mut |_| {}).unwrap();
    }
    let (a, b) = (a.counters(), b.counters());
    assert!(stopped > 0 && b.tx_prio_pause[3] >= 2, "{stopped} {b:?}");
    assert_eq!(a.rx_prio_pause, b.tx_prio_pause);
    assert_eq!((a.tx_dropped, b.tx_prio_pause[1]), (0, 0));
}

/// Forwards frames from one socket to another until `from` has been shut down.
fn forward(from: &UnixDatagram, to: &UnixDatagram) {
    let mut buffer = vec![0; 70_000];
    while let Ok(len @ 1..) = from.recv(&mut buffer) {
        // The peer may have been closed already.
        let _ = to.send(&buffer[..len]);
    }
}

#[test]
fn queue_pairs_of_a_paused_priority_stop_and_others_continue() {
    let dir = Dir::new("pause-qps");
    let bind = |name: &str| Arc::new(UnixDatagram::bind(dir.0.join(name)).unwrap());
    let wires = ["c", "d"].map(bind);
    let links = [("a", "c", 1, &format!(",pfc=on,{SLOW}")), ("b", "d", 2, &String::new())].map(
        |(local, remote, n, options)| {
            dir.open(&format!("frames:dgram:@/{local},@/{remote},ip=10.77.0.{n}/24{options}"))
        },
    );
    for (wire, link) in wires.iter().zip(["a", "b"]) {
        wire.connect(dir.0.join(link)).unwrap();
        wire.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    }
    let threads = [[0, 1], [1, 0]].map(|ends| {
        let [from, to] = ends.map(|end| wires[end].clone());
        std::thread::spawn(move || forward(&from, &to))
    });
    let contexts = links.map(|link| open([link]));
    check_that_pauses_stop_queue_pairs(contexts, |pause| {
        wires[0].send(&frame(pause)).unwrap();
    });
    wires.iter().for_each(|wire| wire.shutdown(std::net::Shutdown::Both).unwrap());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
