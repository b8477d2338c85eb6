//! Captures that look suspicious and in which nothing is wrong.

use std::time::Duration;

use urxe::transport::Congestion;
use urxe::verbs::*;

use super::hosts::{Setup, options};
use super::shot::{Shot, tunnel};
use super::{CLIENT, Case, Container, ENDS, Source};

pub const CASES: &[Case] = &[
    Case {
        name: "healthy-coalesced-acks",
        diagnosis: "none",
        files: &[("client", Container::Gzip)],
        source: Source::Computed(coalesced),
        shown: &[],
        text: "Many WRITEs carry AckReq, and few ACKs come back: each ACK acknowledges all requests up to its PSN. No request is \
               sent twice, and the last ACK covers the last request, so nothing was lost.",
    },
    Case {
        name: "healthy-solicited",
        diagnosis: "none",
        files: CLIENT,
        source: Source::Computed(solicited),
        shown: &[],
        text: "SENDs in which the solicited event bit of the BTH is set now and then, with pauses of up to 30 ms: the programs \
               have nothing to say meanwhile. No pause is followed by a packet that was sent before.",
    },
    Case {
        name: "healthy-psn-wrap",
        diagnosis: "none",
        files: ENDS,
        source: Source::Computed(wraps),
        shown: &[],
        text: "The PSNs of the client run from 0xfffffa through 0xffffff to 0: they have 24 bits. The jump is no gap, and the \
               READ whose responses cross it is complete.",
    },
    Case {
        name: "healthy-long-read",
        diagnosis: "none",
        files: &[("", Container::Cut(96))],
        source: Source::Computed(long_read),
        shown: &[],
        text: "A READ of 32 KiB at path MTU 256 in a capture cut to 96 bytes a packet: one request takes 128 PSNs, one for each \
               response, so that the PSN of the next request is 128 higher. Lengths must be taken from the IP header, because \
               payloads and ICRCs are missing from the file.",
    },
    Case {
        name: "healthy-uc-stream",
        diagnosis: "none",
        files: &[("server", Container::PcapMicros)],
        source: Source::Computed(uc_stream),
        shown: &[],
        text: "A stream of UC SENDs and WRITEs, for which no ACKs exist. The PSNs are contiguous, each message has its First and \
               Last, and none is missing.",
    },
    Case {
        name: "healthy-vxlan",
        diagnosis: "none",
        files: CLIENT,
        source: Source::Computed(tunnelled),
        shown: &[],
        text: "RoCEv2 in VXLAN: the outer addresses 192.0.2.1 and 192.0.2.2 are tunnel endpoints, the inner ones 10.77.0.1 and \
               10.77.0.2 the hosts. WRITEs, READs and atomics, all of which succeed.",
    },
    Case {
        name: "healthy-reads-back-to-back",
        diagnosis: "none",
        files: CLIENT,
        source: Source::Computed(reads),
        shown: &[],
        text: "Sixteen READs are outstanding, as many as granted, and WRITEs posted behind them are sent before their responses \
               arrive. The PSNs of the requests jump by the number of responses of each READ, and an ACK of a WRITE comes only \
               behind the responses of the READs before it.",
    },
];

/// Hosts whose requesters have no congestion window.
fn unlimited(seed: u64) -> Setup {
    let mut setup = Setup::new(seed);
    for options in &mut setup.options {
        *options = options.clone().congestion(Congestion::NONE);
    }
    setup
}

fn coalesced(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = unlimited(seed).open();
    let (x, _y) = hosts.connect(&options());
    for _ in 0..3 {
        (0..24).for_each(|_| hosts.write(&x, 64));
        hosts.done(24);
        hosts.micros(70);
    }
    hosts.client()
}

fn solicited(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, y) = hosts.connect(&options());
    hosts.receives(&y, 40);
    for n in 0..10 {
        let sges = [hosts.a.mr.sge(0..40 + 30 * n)];
        let wr = SendWr::send(1, &sges);
        hosts.post(&x, &if n % 3 == 0 { wr.solicited() } else { wr });
        hosts.done(1);
        hosts.pass(Duration::from_millis(if n == 6 { 30 } else { n as u64 }));
    }
    hosts.client()
}

fn wraps(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, y) = (hosts.a.qp(QpType::Rc), hosts.b.qp(QpType::Rc));
    let start = Psn::new(0xff_fffa);
    x.enter_init(Access::ALL).expect("a new queue pair");
    x.enter_rtr(&y.endpoint(), &options()).expect("an initialized queue pair");
    let rts = QpAttr::new(QpState::Rts).sq_psn(start).timeout(AckTimeout::new(10)).retry_cnt(7).rnr_retry(7);
    x.modify(&rts.max_rd_atomic(4)).expect("a queue pair in RTR");
    y.connect(&Endpoint { psn: start, ..x.endpoint() }, &options()).expect("a new queue pair");
    hosts.receives(&y, 40);
    hosts.send(&x, 600);
    hosts.done(1);
    hosts.micros(30);
    hosts.read(&x, 1500);
    hosts.done(1);
    hosts.micros(30);
    hosts.write(&x, 1000);
    hosts.send(&x, 100);
    hosts.done(2);
    hosts.both()
}

fn long_read(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = unlimited(seed).open();
    let (x, _y) = hosts.connect(&options());
    hosts.read(&x, 32 << 10);
    hosts.done(1);
    hosts.micros(20);
    hosts.write(&x, 700);
    hosts.done(1);
    hosts.client()
}

fn uc_stream(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, y) = (hosts.a.qp(QpType::Uc), hosts.b.qp(QpType::Uc));
    x.connect(&y.endpoint(), &options()).expect("a new queue pair");
    y.connect(&x.endpoint(), &options()).expect("a new queue pair");
    hosts.receives(&y, 40);
    for n in 0..6 {
        hosts.send(&x, 100 + 250 * n);
        hosts.write(&x, 700 - 100 * n);
        hosts.done(2);
        hosts.micros(90);
    }
    hosts.server()
}

fn tunnelled(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, _y) = hosts.connect(&options());
    for n in 0..3 {
        hosts.write(&x, 500);
        hosts.read(&x, 300);
        hosts.done(2);
        let word = [hosts.a.mr.sge(0..8)];
        hosts.post(&x, &SendWr::fetch_add(1, &word, hosts.b.mr.remote(64), n));
        hosts.done(1);
        hosts.micros(40);
    }
    let mut client = hosts.client().remove(0);
    tunnel(&mut client, 4242);
    vec![client]
}

fn reads(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = unlimited(seed).v6().open();
    let (x, _y) = hosts.connect(&options());
    for n in 0..16 {
        hosts.read(&x, 100 + 40 * n);
    }
    (0..3).for_each(|_| hosts.write(&x, 300));
    hosts.done(19);
    hosts.client()
}
