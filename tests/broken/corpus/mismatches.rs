//! Ends that do not agree on queue pair numbers, path MTU or start PSNs, and peers that are not there.

use std::net::Ipv6Addr;
use std::time::Duration;

use urxe::verbs::*;
use urxe::wire::Operation;

use super::hosts::{Setup, options};
use super::shot::Shot;
use super::{CLIENT, Case, ENDS, Source};

pub const CASES: &[Case] = &[
    Case {
        name: "peer-silent",
        diagnosis: "peer-silent",
        files: CLIENT,
        source: Source::Computed(peer_silent),
        shown: &[(0, |s| s.is_request())],
        text: "The client sends a SEND to 10.77.0.2 and repeats it seven times at intervals of its timer. Not a single \
               packet comes back from that address, so nothing shows that the peer exists.",
    },
    Case {
        name: "peer-silent-link-local",
        diagnosis: "peer-silent",
        files: CLIENT,
        source: Source::Computed(link_local),
        shown: &[(0, |s| s.is_request())],
        text: "The queue pair uses GID 0, the link-local address fe80::1, as programs with a default GID index do. The peer \
               is in another network, where a link-local address leads nowhere: all requests from fe80::1 to fe80::2 stay \
               unanswered.",
    },
    Case {
        name: "unknown-qp-restarted",
        diagnosis: "unknown-qp",
        files: ENDS,
        source: Source::Computed(restarted),
        shown: &[(1, |s| s.is_request() && s.again), (0, |s| s.is_request() && s.again)],
        text: "The server process is restarted while the client keeps its connection: its queue pair is gone, and requests to \
               it reach the server (see the server's capture) without any answer. The restarted server answers another \
               client process on a new queue pair number at the same time, so the path works.",
    },
    Case {
        name: "unknown-qp-swapped",
        diagnosis: "unknown-qp",
        files: ENDS,
        source: Source::Computed(swapped),
        shown: &[(1, |s| s.is_request() && !s.sent && s.opcode.row().operation == Operation::Send)],
        text: "The client has connected its queue pair to its own number instead of the server's. The server's requests show \
               the client's number as their destination, and the client's SENDs carry the same number; they arrive at the \
               server, which has no such queue pair and ignores them. The client's ACKs \
               of the server's WRITE carry the wrong number too, so that the server repeats its WRITE.",
    },
    Case {
        name: "path-mtu-differs",
        diagnosis: "path-mtu-differs",
        files: ENDS,
        source: Source::Computed(path_mtu),
        shown: &[
            (0, |s| s.is_nak()),
            (0, |s| s.is_request() && s.len == 1024),
            (0, |s| s.is_request() && s.len == 512),
        ],
        text: "The client's queue pair has a path MTU of 1024, the server's 512. SENDs of up to 512 bytes succeed. Then both send \
               a long WRITE: the First packet of the client has 1024 bytes, that of the server 512, and each refuses the \
               other's with a NAK 'invalid request'.",
    },
    Case {
        name: "start-psn-differs",
        diagnosis: "start-psn-differs",
        files: ENDS,
        source: Source::Computed(start_psn),
        shown: &[(0, |s| s.is_nak()), (1, |s| s.is_nak())],
        text: "The server was told another start PSN than the client uses, as if the two had exchanged a stale value. The very \
               first request is answered by a NAK with a PSN sequence error, which names the PSN that the server expects; \
               the client has never sent that PSN, so it ignores the NAK and repeats its request until it gives up.",
    },
];

fn peer_silent(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &["drop=1.."], &[]).open();
    let (x, _y) = hosts.connect(&options());
    hosts.send(&x, 64);
    hosts.fails(WcStatus::RetryExcErr);
    hosts.client()
}

fn link_local(seed: u64) -> Vec<Vec<Shot>> {
    let setup = Setup::wire(seed, &["drop=1.."], &[]);
    let addresses = [1, 2].map(|n| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, n).into());
    let hosts = setup.open_at(addresses);
    let (x, _y) = hosts.connect(&options().timeout(AckTimeout::new(14)));
    hosts.write(&x, 600);
    hosts.fails(WcStatus::RetryExcErr);
    hosts.client()
}

fn restarted(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, y) = hosts.connect(&options());
    hosts.receives(&y, 40);
    for _ in 0..3 {
        hosts.send(&x, 100);
        hosts.done(1);
        hosts.micros(100);
    }
    drop(y);
    hosts.pass(Duration::from_millis(2));
    let (other, new) = hosts.connect(&options());
    hosts.receives(&new, 40);
    hosts.send(&x, 100);
    for _ in 0..5 {
        hosts.send(&other, 80);
        hosts.pass(Duration::from_millis(7));
    }
    hosts.done(5);
    hosts.fails(WcStatus::RetryExcErr);
    hosts.both()
}

fn swapped(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, y) = (hosts.a.qp(QpType::Rc), hosts.b.qp(QpType::Rc));
    let wrong = Endpoint { qpn: x.qpn(), ..y.endpoint() };
    x.connect(&wrong, &options()).expect("a new queue pair");
    y.connect(&x.endpoint(), &options()).expect("a new queue pair");
    assert_ne!(x.qpn(), y.qpn());
    hosts.post(&y, &SendWr::write(1, &[hosts.b.mr.sge(0..32)], hosts.a.mr.remote(0)));
    hosts.micros(300);
    hosts.send(&x, 100);
    hosts.fails(WcStatus::RetryExcErr);
    hosts.both()
}

fn path_mtu(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let [ours, theirs] = [Mtu::Mtu1024, Mtu::Mtu512].map(|mtu| options().mtu(mtu));
    let (x, y) = hosts.connect_each([&ours, &theirs]);
    hosts.receives(&y, 40);
    hosts.send(&x, 64);
    hosts.done(1);
    hosts.send(&x, 500);
    hosts.done(1);
    hosts.micros(100);
    // At the same time, so that each end sees packets of both sizes.
    hosts.post(&y, &SendWr::write(1, &[hosts.b.mr.sge(0..1100)], hosts.a.mr.remote(0)));
    hosts.write(&x, 2500);
    // Its own NAK puts the client's queue pair into the error state.
    hosts.fails(WcStatus::WrFlushErr);
    hosts.micros(100);
    hosts.both()
}

fn start_psn(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).v6().open();
    let (x, y) = (hosts.a.qp(QpType::Rc), hosts.b.qp(QpType::Rc));
    let stale = Psn::new(x.endpoint().psn.get().wrapping_sub(82));
    x.connect(&y.endpoint(), &options().retry_cnt(3)).expect("a new queue pair");
    y.connect(&Endpoint { psn: stale, ..x.endpoint() }, &options()).expect("a new queue pair");
    hosts.receives(&y, 40);
    hosts.send(&x, 100);
    hosts.fails(WcStatus::RetryExcErr);
    hosts.both()
}
