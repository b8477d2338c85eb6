//! Lost, late and repeated packets.

use std::time::Duration;

use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::middleware::faults::{Action, Direction, Rule, When};
use urxe::transport::Congestion;
use urxe::verbs::*;
use urxe::wire::Operation;

use super::hosts::{LIMIT, Setup, SharedBytes, options, rules};
use super::shot::{Kind, Shot, tunnel};
use super::{Case, Container, ENDS, Source};

pub const CASES: &[Case] = &[
    Case {
        name: "request-lost",
        diagnosis: "request-lost",
        files: ENDS,
        source: Source::Computed(request_lost),
        shown: &[
            (0, |s| s.is_nak()),
            (0, |s| s.is_request() && s.again),
            (1, |s| s.gap > 0),
            (1, |s| s.is_nak()),
        ],
        text: "The fifth packet of a WRITE of 12 packets is lost between the hosts. The server's capture lacks its PSN \
               and shows a NAK with a PSN sequence error for it; the client then sends this packet and the seven behind \
               it again, which all had been sent before.",
    },
    Case {
        name: "request-lost-twice",
        diagnosis: "request-lost",
        files: &[("client", Container::PcapNanos)],
        source: Source::Computed(request_lost_twice),
        shown: &[(0, |s| s.is_nak()), (0, |s| s.is_request() && s.again)],
        text: "Two packets of a stream of WRITEs are lost, one in the middle of a message and the last one of another, \
               whose loss the message behind it reveals. Only the client's capture exists: each NAK with a PSN sequence error names the lost PSN, although \
               the client had sent it, and the client goes back to it each time. The packets are in VXLAN; the hosts are \
               the inner addresses.",
    },
    Case {
        name: "request-lost-commented",
        diagnosis: "request-lost",
        files: CLIENT_RAW,
        source: Source::File(request_lost_commented),
        shown: &[(0, |s| s.is_nak()), (0, |s| s.is_request() && s.again)],
        text: "A packet of a SEND over IPv6 is lost behind the client, which gets a NAK with a PSN sequence error and goes \
               back. The file is as urxe writes it with `--capture`: raw IP with the direction of each packet, and the \
               dropped packet with a comment that names the fault rule.",
    },
    Case {
        name: "ack-lost",
        diagnosis: "ack-lost",
        files: ENDS,
        source: Source::Computed(ack_lost),
        shown: &[
            (0, |s| s.is_request() && s.again),
            (1, |s| s.is_request() && s.again),
            (1, |s| s.is_ack() && s.again),
        ],
        text: "The ACK of the third SEND is lost. The server's capture shows that it was sent, the client's does not have \
               it: the client waits for its timer (code 10, about 4.2 ms), sends the request again although the server has \
               executed it, and gets a duplicate ACK. The clock of the server's capture is 1.7 s ahead.",
    },
    Case {
        name: "ack-lost-client-only",
        diagnosis: "ack-lost",
        files: &[("client", Container::PcapMicros)],
        source: Source::Computed(ack_lost_client_only),
        shown: &[(0, |s| s.is_request() && s.again), (0, |s| s.is_ack() && s.again)],
        text: "The ACK of a WRITE is lost, and only the client's capture exists. After the timer (code 12, about 16.8 ms) \
               the client sends all four packets again and gets four ACKs, one for each, which all have the PSN of the \
               last packet: the server had them all already, so the ACK was lost, not a request.",
    },
    Case {
        name: "tail-lost",
        diagnosis: "tail-lost",
        files: ENDS,
        source: Source::Computed(tail_lost),
        shown: &[
            (0, |s| s.is_request() && s.again && s.idle > Duration::from_millis(1)),
            (1, |s| s.idle > Duration::from_millis(1)),
        ],
        text: "The last packet of a WRITE of four packets is lost. No later packet makes the server notice the gap, so \
               there is no NAK, and the client waits for its timer of 4.096 µs · 2^10 = 4.2 ms before it sends the message \
               again. The server's capture has the last packet only once, after the wait.",
    },
    Case {
        name: "read-response-lost",
        diagnosis: "read-response-lost",
        files: ENDS,
        source: Source::Computed(read_response_lost),
        shown: &[(0, |s| s.gap > 0 && !s.is_request()), (1, |s| !s.is_request() && s.again)],
        text: "The third response of a READ of ten packets is lost. The server's capture shows that it was sent; in the \
               client's the PSNs of the responses jump by one. The client requests the rest of the READ again, from the \
               missing PSN on, and the server sends the responses behind the gap a second time.",
    },
    Case {
        name: "read-response-lost-rawip",
        diagnosis: "read-response-lost",
        files: CLIENT_RAW,
        source: Source::Computed(last_read_response_lost),
        shown: &[(0, |s| {
            s.opcode.row().operation == Operation::ReadRequest && s.idle > Duration::from_millis(1)
        })],
        text: "The last response of a READ over IPv6 is lost. Nothing follows it, so the client notices nothing until its \
               timer of 4.2 ms expires; then it requests the last packet again, and gets it.",
    },
    Case {
        name: "reordered",
        diagnosis: "reordered",
        files: ENDS,
        source: Source::Computed(reordered),
        shown: &[(0, |s| s.is_nak()), (1, |s| s.is_nak()), (1, |s| s.is_request() && s.again)],
        text: "The fourth packet of a WRITE takes a path that is 30 µs longer. The server sends a NAK for the gap and the \
               client goes back, but then the original arrives too, after its copy: the server's capture has the PSN \
               twice, and the NAK between the gap and the original. Nothing was lost.",
    },
    Case {
        name: "reordered-often",
        diagnosis: "reordered",
        files: &[("server", Container::Cooked)],
        source: Source::Computed(reordered_often),
        shown: &[(0, |s| s.is_nak()), (0, |s| s.is_request() && s.again)],
        text: "Every 16th packet of a stream of WRITEs is delayed by 25 µs and overtaken by those behind it, as with \
               per-packet load balancing. In the server's capture each NAK with a PSN sequence error is followed by both \
               the original and the copy of the packet that it names, so none was lost.",
    },
    Case {
        name: "timeout-bound",
        diagnosis: "timeout-bound",
        files: &[("client", Container::Cut(96)), ("server", Container::Cut(96))],
        source: Source::Computed(timeout_bound),
        shown: &[(0, |s| s.is_request() && s.idle > Duration::from_millis(1))],
        text: "A queue on the way to the server holds 2000 bytes, and each WRITE of ten packets arrives there as one burst. \
               The packets at its end overflow the queue; nothing follows them, so there is no NAK, and the client waits \
               for its timer of 4.2 ms, message after message. Nearly all of the time is spent in these waits: the queue \
               overflows, and a shorter timer would not help.",
    },
    Case {
        name: "mtu-black-hole",
        diagnosis: "mtu-black-hole",
        files: ENDS,
        source: Source::Computed(mtu_black_hole),
        shown: &[(0, |s| s.len == 4096), (1, |s| s.is_request() && s.len <= 1400)],
        text: "SENDs of 64 to 1400 bytes are acknowledged, but packets with 4096 bytes of payload never arrive: a switch on \
               the way drops frames above 1518 bytes without a word. The client sends the full packet eight times and gives \
               up; the server's capture contains none of them. The path MTU of 4096 needs IP packets of up to 4154 bytes.",
    },
    Case {
        name: "mtu-black-hole-icmp",
        diagnosis: "mtu-black-hole",
        files: &[("client", Container::PcapNg)],
        source: Source::Computed(mtu_black_hole_icmp),
        shown: &[(0, |s| s.kind == Kind::Icmp), (0, |s| s.len == 4096)],
        text: "Packets of a WRITE at path MTU 4096 exceed the 1500 bytes of a tunnel. The router answers each with an ICMP \
               message 'fragmentation needed' that names the MTU of 1500, which a RoCE NIC ignores: the small SENDs before \
               are acknowledged, the full packets are sent until the retries are exhausted.",
    },
    Case {
        name: "retry-exceeded",
        diagnosis: "retry-exceeded",
        files: ENDS,
        source: Source::Computed(retry_exceeded),
        shown: &[(0, |s| s.is_request() && s.again)],
        text: "After four acknowledged SENDs the path to the server fails. The client sends the fifth request, and three \
               times more at intervals of its timer of 4.2 ms (timeout code 10, three retries); then it stops, because the \
               retry budget is exhausted. The server's capture ends with the fourth SEND.",
    },
];

/// One capture of raw IP packets.
const CLIENT_RAW: &[(&str, Container)] = &[("", Container::RawIp)];

fn request_lost(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &["drop=7"], &[]).open();
    let (x, _y) = hosts.connect(&options());
    hosts.write(&x, 300);
    hosts.done(1);
    hosts.micros(40);
    hosts.write(&x, 3000);
    hosts.done(1);
    hosts.micros(40);
    hosts.write(&x, 100);
    hosts.done(1);
    hosts.both()
}

fn request_lost_twice(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &["drop=4", "drop=21"], &[]).open();
    let (x, _y) = hosts.connect(&options());
    for _ in 0..6 {
        hosts.write(&x, 1500);
        hosts.micros(15);
    }
    hosts.done(6);
    let mut client = hosts.client();
    tunnel(&mut client[0], 100);
    client
}

fn request_lost_commented(seed: u64) -> Vec<u8> {
    let setup = Setup::new(seed).v6();
    let addresses = [1, 2].map(|n| setup.address(n));
    let fabric = Fabric::virtual_time(setup.config.clone()).expect("a valid configuration");
    let bytes = SharedBytes::default();
    let file = CaptureFile::to_writer(bytes.clone(), Timestamps::Virtual).expect("memory takes every write");
    let [client, server] = setup.options;
    let client = client.faults(rules(&["drop=3"])).capture(&file, "client");
    let [a, b] = [(0, client), (1, server)].map(|(n, options)| {
        let port = fabric.port(&[addresses[n]]).expect("a free address");
        TestEndpoint::new(Context::on_port(port, &options, |port| Box::new(port)).expect("a NIC"))
            .expect("room")
    });
    a.connect(&b, &options()).expect("new queue pairs");
    let (source, target) = (a.pd.reg_mr(2048, Access::ALL), b.pd.reg_mr(2048, Access::ALL));
    let (source, target) = (source.expect("room"), target.expect("room"));
    for _ in 0..20 {
        b.qp.post_recv(&RecvWr::new(1, &[target.sge(0..2048)])).expect("room for the receive");
    }
    for len in [1200, 20] {
        a.qp.post_send(&SendWr::send(1, &[source.sge(0..len)])).expect("room for the SEND");
        a.cq.wait(LIMIT).expect("success");
    }
    drop((a, b, source, target, fabric));
    file.flush().expect("memory takes every write");
    bytes.take()
}

fn ack_lost(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &[], &["drop=3"]).open();
    let (x, y) = hosts.connect(&options());
    hosts.receives(&y, 40);
    for _ in 0..5 {
        hosts.send(&x, 200);
        hosts.done(1);
        hosts.micros(50);
    }
    let mut both = hosts.both();
    both[1].iter_mut().for_each(|shot| shot.time += Duration::from_millis(1700));
    both
}

fn ack_lost_client_only(seed: u64) -> Vec<Vec<Shot>> {
    let mut setup = Setup::wire(seed, &[], &["drop=2"]);
    // The packets of a burst arrive one after the other, so that each duplicate gets its ACK.
    setup.config = setup.config.bandwidth(1_000_000_000);
    let hosts = setup.open();
    let (x, _y) = hosts.connect(&options().timeout(AckTimeout::new(12)));
    for _ in 0..3 {
        hosts.write(&x, 1000);
        hosts.done(1);
        hosts.micros(120);
    }
    hosts.client()
}

fn tail_lost(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &["drop=8"], &[]).open();
    let (x, _y) = hosts.connect(&options());
    for _ in 0..3 {
        hosts.write(&x, 1000);
        hosts.done(1);
        hosts.micros(30);
    }
    hosts.both()
}

fn read_response_lost(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &[], &["drop=3"]).open();
    let (x, _y) = hosts.connect(&options());
    hosts.read(&x, 2500);
    hosts.done(1);
    hosts.micros(100);
    hosts.read(&x, 500);
    hosts.done(1);
    hosts.both()
}

fn last_read_response_lost(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &[], &["drop=6"]).v6().open();
    let (x, _y) = hosts.connect(&options());
    for _ in 0..3 {
        hosts.read(&x, 700);
        hosts.done(1);
        hosts.micros(60);
    }
    hosts.client()
}

fn reordered(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &["delay=4,by=30us"], &[]).open();
    let (x, _y) = hosts.connect(&options());
    hosts.write(&x, 2000);
    hosts.done(1);
    hosts.micros(100);
    hosts.write(&x, 400);
    hosts.done(1);
    hosts.both()
}

fn reordered_often(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &["delay=every:16,by=25us"], &[]).open();
    let (x, _y) = hosts.connect(&options());
    for _ in 0..8 {
        hosts.write(&x, 1500);
        hosts.micros(60);
    }
    hosts.done(8);
    hosts.micros(100);
    hosts.server()
}

fn timeout_bound(seed: u64) -> Vec<Vec<Shot>> {
    let mut setup = Setup::new(seed);
    setup.config = setup.config.bandwidth(1_000_000_000).queue_bytes(2000);
    for options in &mut setup.options {
        *options = options.clone().congestion(Congestion::NONE);
    }
    let hosts = setup.open();
    let (x, _y) = hosts.connect(&options());
    for _ in 0..6 {
        hosts.write(&x, 2500);
        hosts.done(1);
    }
    hosts.both()
}

/// Drops packets of the client that are longer than an interface MTU of 1500 allows.
fn small_path(seed: u64) -> Setup {
    let rule = Rule::new(Direction::Tx, Action::Drop, When::Range { first: 1, last: None });
    let wire = [vec![rule.only(|packet| packet.wire_len() + 28 > 1500)], Vec::new()];
    Setup { wire, ..Setup::new(seed) }
}

fn black_hole(setup: Setup) -> super::hosts::Hosts {
    let hosts = setup.open();
    let (x, y) = hosts.connect(&options().mtu(Mtu::Mtu4096).timeout(AckTimeout::new(9)));
    hosts.receives(&y, 40);
    for len in [64, 1000, 1400] {
        hosts.send(&x, len);
        hosts.done(1);
        hosts.micros(80);
    }
    hosts.write(&x, 4200);
    hosts.fails(WcStatus::RetryExcErr);
    hosts
}

fn mtu_black_hole(seed: u64) -> Vec<Vec<Shot>> {
    black_hole(small_path(seed)).both()
}

fn mtu_black_hole_icmp(seed: u64) -> Vec<Vec<Shot>> {
    let setup = small_path(seed);
    let mut client = black_hole(setup).client().remove(0);
    let large: Vec<Shot> =
        client.iter().filter(|shot| shot.sent && shot.frame.len() > 1514).cloned().collect();
    for shot in large {
        super::shot::insert(&mut client, too_long(&shot));
    }
    vec![client]
}

/// Returns the ICMP message of a router, 10.77.0.254, for a packet that exceeds 1500 bytes.
fn too_long(shot: &Shot) -> Shot {
    let own: [u8; 4] = shot.frame[26..30].try_into().expect("an address");
    let quoted = &shot.frame[14..14 + 28];
    let mut ip = Vec::new();
    etherparse::PacketBuilder::ipv4([10, 77, 0, 254], own, 64)
        .icmpv4_raw(3, 4, [0, 0, (1500u16 >> 8) as u8, (1500u16 & 0xff) as u8])
        .write(&mut ip, quoted)
        .expect("the packet is short enough");
    let time = shot.time + Duration::from_micros(3);
    Shot { time, sent: false, frame: super::shot::ethernet(&ip) }
}

fn retry_exceeded(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &["drop=5.."], &[]).open();
    let (x, y) = hosts.connect(&options().retry_cnt(3));
    hosts.receives(&y, 40);
    for _ in 0..4 {
        hosts.send(&x, 200);
        hosts.done(1);
        hosts.micros(200);
    }
    hosts.send(&x, 200);
    hosts.fails(WcStatus::RetryExcErr);
    hosts.both()
}
