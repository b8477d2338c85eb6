//! Tests of two frames links with host stacks, connected by unix sockets: neighbours are resolved, bursts
//! arrive, ICRCs are valid.

mod flow_control;

use std::net::IpAddr;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant as Clock};

use etherparse::PacketBuilder;
use urxe::link::{FramesConfig, FramesLink, Link, Multicast, PortState};
use urxe::transport::{Instant, TxQueue};
use urxe::wire::frame::{Checksums, Content, Echo, parse};
use urxe::wire::{Flow, icrc};
use urxe_test_support::numbered::{expect, now, packets};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("urxe-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    fn open(&self, spec: &str) -> FramesLink {
        let spec: FramesConfig = spec.replace('@', self.0.to_str().unwrap()).parse().unwrap();
        FramesLink::open(spec).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pair(dir: &Dir, wire: &str) -> (FramesLink, FramesLink) {
    pair_with(dir, wire, "")
}

/// Opens two links with further options, which begin with a comma.
fn pair_with(dir: &Dir, wire: &str, more: &str) -> (FramesLink, FramesLink) {
    let options = |n: u32| format!("ip=10.77.0.{n}/24,ip=fd77::{n}/64,mtu=4500{more}");
    if wire == "dgram" {
        let a = dir.open(&format!("frames:dgram:@/a,@/b,{}", options(1)));
        (a, dir.open(&format!("frames:dgram:@/b,@/a,{}", options(2))))
    } else {
        let mut a = dir.open(&format!("frames:listen:@/s,{}", options(1)));
        let b = dir.open(&format!("frames:connect:@/s,{}", options(2)));
        a.receive(Instant(0), &mut |_| {}).unwrap();
        (a, b)
    }
}

/// Opens a link over datagrams, and the socket of its peer.
fn with_socket(dir: &Dir) -> (FramesLink, UnixDatagram) {
    let link = dir.open("frames:dgram:@/a,@/b,ip=10.77.0.1/24,ip=fd77::1/64,mtu=4500");
    let peer = UnixDatagram::bind(dir.0.join("b")).unwrap();
    peer.connect(dir.0.join("a")).unwrap();
    (link, peer)
}

/// Returns a frame with an echo request.
fn echo_request(src: IpAddr, dst: IpAddr, to: [u8; 6], data: &[u8]) -> Vec<u8> {
    let (mut frame, ethernet) = (Vec::new(), PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], to));
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = ethernet.ipv4(src.octets(), dst.octets(), 64);
            ip.icmpv4_echo_request(1, 2).write(&mut frame, data).unwrap();
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let ip = ethernet.ipv6(src.octets(), dst.octets(), 64);
            ip.icmpv6_echo_request(1, 2).write(&mut frame, data).unwrap();
        }
        mixed => panic!("{mixed:?}"),
    }
    frame
}

fn check_both_directions(wire: &str) {
    let dir = Dir::new(wire);
    let (mut a, mut b) = pair(&dir, wire);
    let start = Clock::now();
    for net in ["10.77.0.", "fd77::"] {
        let ip = |n: u32| format!("{net}{n}").parse().unwrap();
        let mut queue = TxQueue::new(a.info().burst);
        // More data than the peer's socket can hold; the first packets wait for the neighbour.
        let [there, back] = [Flow::new(ip(1), ip(2), 4000), Flow::new(ip(2), ip(1), 4000)];
        packets(&mut queue, &there, 200, 4096);
        assert!(queue.bursts().len() < 20, "the packets form too many bursts");
        a.transmit(now(start), &queue).unwrap();
        expect(&mut b, &mut a, start, &there, 200);
        queue.clear();
        packets(&mut queue, &back, 1000, 64);
        b.transmit(now(start), &queue).unwrap();
        expect(&mut a, &mut b, start, &back, 1000);
    }
    for link in [&mut a, &mut b] {
        assert_eq!(link.counters(), Default::default());
    }
}

#[test]
fn unix_datagram_sockets_carry_bursts_both_ways() {
    check_both_directions("dgram");
}

#[test]
fn unix_stream_sockets_carry_bursts_both_ways() {
    check_both_directions("stream");
}

#[test]
fn ping_is_answered_and_resolves_the_address_of_its_sender() {
    let dir = Dir::new("ping");
    let (mut a, peer) = with_socket(&dir);
    let mut buffer = [0; 2000];
    for (src, dst) in [("10.77.0.2", "10.77.0.1"), ("fd77::2", "fd77::1")] {
        let [src, dst] = [src, dst].map(|ip| ip.parse().unwrap());
        peer.send(&echo_request(src, dst, a.info().mac, b"x")).unwrap();
        a.receive(Instant(0), &mut |_| {}).unwrap();
        let len = peer.recv(&mut buffer).unwrap();
        let content = parse(&buffer[..len], Checksums::Verify).unwrap().content;
        let Content::Echo { echo, data } = content else { panic!("{content:?}") };
        assert_eq!(echo, Echo { request: false, src: dst, dst: src, id: 1, seq: 2 });
        assert_eq!(&buffer[data], b"x");
        // Packets to the sender need no resolution.
        let mut queue = TxQueue::new(a.info().burst);
        packets(&mut queue, &Flow::new(dst, src, 9), 1, 100);
        a.transmit(Instant(0), &queue).unwrap();
        let len = peer.recv(&mut buffer).unwrap();
        let content = parse(&buffer[..len], Checksums::Verify).unwrap().content;
        assert!(matches!(content, Content::Roce(_)), "{content:?}");
    }
    assert_eq!(a.counters(), Default::default());
}

#[test]
fn multicast_reaches_joined_members_without_neighbour_resolution() {
    for wire in ["dgram", "stream"] {
        let dir = Dir::new(&format!("groups-{wire}"));
        let (mut a, mut b) = pair(&dir, wire);
        for (src, group) in [("10.77.0.1", "239.1.2.3"), ("fd77::1", "ff15::7")] {
            let group = group.parse().unwrap();
            let flow = Flow::new(src.parse().unwrap(), group, 4000);
            let mut queue = TxQueue::new(a.info().burst);
            packets(&mut queue, &flow, 3, 100);
            // Sends the packets and returns how many each of the two receives.
            let send = |a: &mut FramesLink, b: &mut FramesLink| {
                a.transmit(Instant(1), &queue).unwrap();
                let mut got = [0; 2];
                for _ in 0..10 {
                    for (link, got) in [&mut *a, &mut *b].into_iter().zip(&mut got) {
                        link.receive(Instant(1), &mut |burst| {
                            assert_eq!(burst.flow, flow);
                            for (i, data) in burst.packets() {
                                assert!(icrc::verify(&burst.flow, burst.ident, i, data));
                                *got += 1;
                            }
                        })
                        .unwrap();
                    }
                }
                got
            };
            assert_eq!(send(&mut a, &mut b), [0, 0]);
            b.join(Instant(0), group).unwrap();
            assert_eq!(send(&mut a, &mut b), [0, 3]);
            a.join(Instant(0), group).unwrap();
            assert_eq!(send(&mut a, &mut b), [3, 3]);
            b.leave(group);
            assert_eq!(send(&mut a, &mut b), [3, 0]);
        }
        assert_eq!((a.counters().tx_unresolved, a.counters().tx_dropped), (0, 0));
    }
}

#[test]
fn two_busy_threads_exchange_packets_without_loss() {
    for wire in ["dgram", "stream"] {
        let dir = Dir::new(&format!("busy-{wire}"));
        let (a, b) = pair(&dir, wire);
        let start = Clock::now();
        let finished_threads = Arc::new(AtomicUsize::new(0));
        let arrived = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let run = |mut link: FramesLink, own: u32, peer: u32| {
            let (finished_threads, arrived) = (finished_threads.clone(), arrived.clone());
            move || {
                let [own_arrived, peer_arrived] = [own, peer].map(|n| &arrived[n as usize - 1]);
                let ip = |n: u32| format!("10.77.0.{n}").parse().unwrap();
                let flow = Flow::new(ip(own), ip(peer), 4000);
                let (mut sent, mut got) = (0, 0);
                let mut queue = TxQueue::new(link.info().burst);
                // The neighbour is resolved first, because the queue for it is bounded.
                packets(&mut queue, &flow, 1, 1024);
                link.transmit(now(start), &queue).unwrap();
                while link.next_deadline().is_some() {
                    link.receive(now(start), &mut |b| got += b.packets().count()).unwrap();
                }
                while got < 10_000 || sent < 10_000 || link.next_deadline().is_some() {
                    assert!(start.elapsed() < Duration::from_secs(60), "{sent} {got} {:?}", link.counters());
                    // Limits the backlog to the 4 MiB that the link queues for a peer that is not scheduled.
                    if sent < 10_000 && sent < peer_arrived.load(Ordering::Relaxed) + 2500 {
                        queue.clear();
                        packets(&mut queue, &flow, 500, 1024);
                        sent += 500;
                        link.transmit(now(start), &queue).unwrap();
                    }
                    while link.receive(now(start), &mut |b| got += b.packets().count()).unwrap() > 0 {}
                    own_arrived.store(got, Ordering::Relaxed);
                }
                // The peer may still need packets in the backlog.
                finished_threads.fetch_add(1, Ordering::Relaxed);
                while finished_threads.load(Ordering::Relaxed) < 2 {
                    assert!(start.elapsed() < Duration::from_secs(60), "the peer's thread does not finish");
                    link.receive(now(start), &mut |_| {}).unwrap();
                }
                assert_eq!(link.counters(), Default::default());
            }
        };
        let threads = [std::thread::spawn(run(a, 1, 2)), std::thread::spawn(run(b, 2, 1))];
        threads.into_iter().for_each(|t| t.join().unwrap());
    }
}

#[test]
fn packets_beyond_backlog_of_slow_peer_are_dropped_and_counted() {
    let dir = Dir::new("slow");
    let (mut a, mut b) = pair(&dir, "dgram");
    let start = Clock::now();
    let ip = |n: u32| format!("10.77.0.{n}").parse().unwrap();
    // The neighbour is resolved first, because the queue for it is bounded.
    let mut queue = TxQueue::new(a.info().burst);
    packets(&mut queue, &Flow::new(ip(1), ip(2), 2), 1, 64);
    a.transmit(now(start), &queue).unwrap();
    for _ in 0..4 {
        a.receive(now(start), &mut |_| {}).unwrap();
        b.receive(now(start), &mut |_| {}).unwrap();
    }
    queue.clear();
    let flow = Flow::new(ip(1), ip(2), 1);
    packets(&mut queue, &flow, 2000, 4096);
    a.transmit(now(start), &queue).unwrap();
    assert!(start.elapsed() < Duration::from_secs(60), "transmit takes too long");
    let dropped = a.counters().tx_dropped;
    assert!(
        (500..1100).contains(&dropped),
        "the backlog must hold about 4 MiB; {dropped} packets were dropped"
    );
    // The queued packets arrive; the others are missing at the end.
    expect(&mut b, &mut a, start, &flow, 2000 - dropped as u32);
}

#[test]
fn answers_of_the_host_stack_beyond_the_backlog_of_a_peer_that_does_not_read_are_dropped() {
    let dir = Dir::new("deaf");
    let (mut a, peer) = with_socket(&dir);
    let ip = |n: u32| format!("10.77.0.{n}").parse().unwrap();
    // The peer sends echo requests with 4,000 bytes, and reads no answer.
    let request = echo_request(ip(2), ip(1), a.info().mac, &[7; 4000]);
    for _ in 0..3000 {
        peer.send(&request).unwrap();
        a.receive(Instant(0), &mut |_| {}).unwrap();
    }
    let dropped = a.counters().tx_dropped;
    assert!(
        (1700..2000).contains(&dropped),
        "the backlog must hold about 4 MiB; {dropped} answers were dropped"
    );
}

#[test]
fn packets_to_own_address_loop_back_and_unknown_neighbour_stays_unresolved() {
    let dir = Dir::new("self");
    let (mut a, _b) = pair(&dir, "dgram");
    let own = "10.77.0.1".parse().unwrap();
    let mut queue = TxQueue::new(a.info().burst);
    packets(&mut queue, &Flow::new(own, own, 9), 3, 100);
    packets(&mut queue, &Flow::new(own, "10.77.0.99".parse().unwrap(), 9), 2, 100);
    packets(&mut queue, &Flow::new(own, "10.77.0.2".parse().unwrap(), 9), 1, 4490);
    a.transmit(Instant(1), &queue).unwrap();
    assert_eq!(a.next_deadline(), Some(Instant(0)));
    let mut got = 0;
    a.receive(Instant(2), &mut |b| {
        for (i, data) in b.packets() {
            assert!(icrc::verify(&b.flow, b.ident, i, data));
            got += 1;
        }
    })
    .unwrap();
    assert_eq!(got, 3);
    while let Some(when) = a.next_deadline() {
        a.receive(when, &mut |_| {}).unwrap();
    }
    let c = a.counters();
    assert_eq!((c.tx_unresolved, c.tx_dropped), (2, 1));
}

#[test]
fn restarted_peer_is_reachable_again() {
    for wire in ["dgram", "stream"] {
        let dir = Dir::new(&format!("back-{wire}"));
        let (mut a, mut b) = pair(&dir, wire);
        let start = Clock::now();
        let ip = |n: u32| format!("10.77.0.{n}").parse().unwrap();
        let mut queue = TxQueue::new(a.info().burst);
        let flow = Flow::new(ip(2), ip(1), 1);
        packets(&mut queue, &flow, 5, 100);
        b.transmit(now(start), &queue).unwrap();
        expect(&mut a, &mut b, start, &flow, 5);
        drop(a);
        b.transmit(now(start), &queue).unwrap();
        for _ in 0..3 {
            b.receive(now(start), &mut |_| {}).unwrap();
        }
        assert!(b.counters().tx_dropped > 0, "{wire}");
        let side = if wire == "dgram" { "dgram:@/a,@/b" } else { "listen:@/s" };
        let mut a = dir.open(&format!("frames:{side},ip=10.77.0.1/24,ip=fd77::1/64"));
        std::thread::sleep(Duration::from_millis(250));
        for _ in 0..3 {
            b.receive(now(start), &mut |_| {}).unwrap();
            a.receive(now(start), &mut |_| {}).unwrap();
        }
        b.transmit(now(start), &queue).unwrap();
        expect(&mut a, &mut b, start, &flow, 5);
    }
}

/// Updates the IPv4 header checksum of a modified frame.
fn fix_checksum(frame: &mut [u8]) {
    let words = (frame[14] & 0xf) as usize * 2;
    frame[24..26].fill(0);
    let word = |i: usize| u32::from(u16::from_be_bytes([frame[14 + 2 * i], frame[15 + 2 * i]]));
    let sum: u32 = (0..words).map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) as u16 + (folded >> 16) as u16);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn each_kind_of_frame_error_increments_its_own_counter() {
    let dir = Dir::new("wrong");
    let mut a = dir.open("frames:dgram:@/a,@/b,ip=10.77.0.1/24,mtu=4500");
    let peer = std::os::unix::net::UnixDatagram::bind(dir.0.join("b")).unwrap();
    peer.connect(dir.0.join("a")).unwrap();
    // Ethernet, IPv4 without options, UDP without a checksum, a SEND Only packet with 8 bytes.
    let mut good = Vec::new();
    good.extend(a.info().mac);
    good.extend([2, 0, 0, 0, 0, 2, 8, 0]);
    good.extend([0x45, 0, 0, 52, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1]);
    good.extend([0xc0, 0, 0x12, 0xb7, 0, 32, 0, 0]);
    good.extend([4, 0, 0xff, 0xff, 0, 0, 0, 2, 0, 0, 0, 0]);
    good.extend([7; 12]);
    fix_checksum(&mut good);
    let mut clock = 0;
    let mut receive = |bytes: &[u8]| {
        peer.send(bytes).unwrap();
        let mut n = 0;
        clock += 1;
        a.receive(Instant(clock), &mut |burst| n += burst.packets().count()).unwrap();
        (n, a.counters())
    };
    assert_eq!(receive(&good).0, 1);
    for n in 14..good.len() {
        let (received, c) = receive(&good[..n]);
        assert_eq!((received, c.rx_truncated), (0, n as u64 - 13), "truncated to {n} bytes: {c:?}");
    }
    // IP options, first and later fragments, a wrong checksum, IPv6 under IPv4's EtherType, a short UDP
    // length.
    let mut options = good.clone();
    options.splice(34..34, [1, 1, 1, 1]);
    (options[14], options[17]) = (0x46, 56);
    fix_checksum(&mut options);
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        if at != 24 {
            fix_checksum(&mut bytes);
        }
        bytes
    };
    let (received, before) = receive(&options);
    assert_eq!((received, before.rx_ip_options), (0, 1));
    for (n, (at, byte)) in [(20, 0x20), (20, 0x60), (21, 1), (20, 0x1f)].into_iter().enumerate() {
        assert_eq!(receive(&changed(at, byte)).1.rx_fragments, n as u64 + 1);
    }
    assert_eq!(receive(&changed(24, good[24] ^ 1)).1.rx_bad_checksum, 1);
    assert_eq!(receive(&changed(41, 1)).1.rx_bad_checksum, 2);
    let short = receive(&changed(39, 7)).1;
    assert_eq!(short.rx_truncated, before.rx_truncated + 1);
    let mut version = good.clone();
    version[14] = 0x65;
    let (received, c) = receive(&version);
    assert_eq!((received, c.rx_malformed), (0, 1));
    assert_eq!(receive(&good).0, 1);
    let named: u64 = c.iter().filter(|(name, _)| name.starts_with("link_rx")).map(|(_, n)| n).sum();
    assert_eq!(named, (good.len() - 14) as u64 + 1 + 4 + 2 + 1 + 1, "{c:?}");
}
