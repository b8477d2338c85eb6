//! Requests that the responder refuses or postpones.

use std::time::Duration;

use urxe::transport::Congestion;
use urxe::verbs::*;

use super::hosts::{Hosts, Setup, options, rules};
use super::shot::Shot;
use super::{CLIENT, Case, Container, ENDS, Source};

pub const CASES: &[Case] = &[
    Case {
        name: "receiver-not-ready",
        diagnosis: "receiver-not-ready",
        files: ENDS,
        source: Source::Computed(not_ready),
        shown: &[(0, |s| s.is_rnr())],
        text: "The server's program posts its receives too late. Each of the first attempts to deliver the SEND is answered by \
               an RNR NAK with timer code 12 (0.64 ms), the client waits that long and tries again, until a receive is there.",
    },
    Case {
        name: "receiver-not-ready-exceeded",
        diagnosis: "receiver-not-ready",
        files: &[("", Container::Cooked)],
        source: Source::Computed(not_ready_exceeded),
        shown: &[(0, |s| s.is_rnr())],
        text: "The server consumes messages without posting new receives. After two SENDs it answers the third by RNR NAKs \
               with timer code 14 (1 ms); the client, whose RNR retry count is 3, tries four times and gives up.",
    },
    Case {
        name: "remote-access-length",
        diagnosis: "remote-access-error",
        files: CLIENT,
        source: Source::Computed(access_length),
        shown: &[
            (0, |s| s.is_nak()),
            (0, |s| s.is_request() && s.packet().is_some_and(|p| p.reth().is_some_and(|r| r.dma_len == 600))),
        ],
        text: "WRITEs of 512 bytes fill a region of 4096 bytes from its start to its end. The last WRITE has 600 bytes and \
               begins 512 bytes before the end, so that address plus length exceed the region by 88 bytes: NAK 'remote \
               access error', with the same key as the accepted ones.",
    },
    Case {
        name: "remote-access-lkey",
        diagnosis: "remote-access-error",
        files: ENDS,
        source: Source::Computed(access_lkey),
        shown: &[(0, |s| s.is_nak())],
        text: "The client's WRITE to the server carries the key of the client's own region: the server's READs from the client \
               show the same key in their RETH. The address is that of the server's region, to which an earlier WRITE with \
               the right key succeeded. NAK 'remote access error'.",
    },
    Case {
        name: "remote-access-swapped",
        diagnosis: "remote-access-error",
        files: &[("", Container::PcapNanos)],
        source: Source::Computed(access_swapped),
        shown: &[(0, |s| s.is_nak())],
        text: "The server sends the address and key of its region as network-order numbers in a SEND. The client converts the \
               key and forgets to convert the address: the address in the RETH of its WRITE is the advertised one with its \
               bytes in reverse order. NAK 'remote access error'.",
    },
    Case {
        name: "too-many-reads",
        diagnosis: "too-many-reads",
        files: CLIENT,
        source: Source::Computed(too_many_reads),
        shown: &[
            (0, |s| s.is_nak()),
            (0, |s| s.opcode.row().operation == urxe::wire::Operation::ReadRequest),
        ],
        text: "The server accepts two READs at a time (its `max_dest_rd_atomic`); at first the client keeps to it. Then it \
               posts six READs, all of which are outstanding before the first response: NAK 'invalid request' for the third.",
    },
    Case {
        name: "flushed",
        diagnosis: "flushed",
        files: ENDS,
        source: Source::Computed(flushed),
        shown: &[(0, |s| s.is_nak()), (0, |s| s.is_request() && s.psn.get() != 0)],
        text: "The client posts five WRITEs at once. The second has a wrong R_Key and gets a NAK 'remote access error', which \
               puts both queue pairs into the error state: the three WRITEs behind it have been sent, but are never \
               acknowledged, and the program sees them flushed (IBV_WC_WR_FLUSH_ERR). The first error is the second WRITE's.",
    },
    Case {
        name: "slow-receiver-ack",
        diagnosis: "slow-receiver",
        files: ENDS,
        source: Source::Computed(slow_acks),
        shown: &[(1, |s| s.sent && s.idle > Duration::from_millis(1))],
        text: "Each WRITE reaches the server at once (server's capture), but the server's ACK leaves 2 ms later. The network \
               takes 5 µs each way: the time passes in the receiver.",
    },
    Case {
        name: "slow-receiver-credits",
        diagnosis: "slow-receiver",
        files: CLIENT,
        source: Source::Computed(no_credits),
        shown: &[(0, |s| matches!(s.syndrome, Some(urxe::wire::Syndrome::Ack { credits: 0 })))],
        text: "The server takes messages more slowly than the client sends them. The end-to-end credits in its ACKs sink to 0, \
               and from then on the client sends one SEND at a time and waits for its ACK, although more are posted.",
    },
];

fn not_ready(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, y) = hosts.connect(&options());
    hosts.receives(&y, 1);
    hosts.send(&x, 600);
    hosts.done(1);
    hosts.send(&x, 200);
    hosts.micros(3300);
    hosts.receives(&y, 1);
    hosts.done(1);
    hosts.both()
}

fn not_ready_exceeded(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).v6().open();
    let (x, y) = hosts.connect(&options().rnr_retry(3).min_rnr_timer(RnrTimer::new(14)));
    hosts.receives(&y, 2);
    for _ in 0..2 {
        hosts.send(&x, 100);
        hosts.done(1);
        hosts.micros(100);
    }
    hosts.send(&x, 100);
    hosts.fails(WcStatus::RnrRetryExcErr);
    hosts.client()
}

fn access_length(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, _y) = hosts.connect(&options());
    let small = hosts.b.pd.reg_mr(4096, Access::ALL).expect("room");
    let write = |offset: usize, len: usize| {
        hosts.post(&x, &SendWr::write(1, &[hosts.a.mr.sge(0..len)], small.remote(offset)));
    };
    for n in 0..8 {
        write(n * 512, 512);
        hosts.done(1);
        hosts.micros(20);
    }
    write(7 * 512, 600);
    hosts.fails(WcStatus::RemAccessErr);
    drop(small);
    hosts.client()
}

fn access_lkey(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, y) = hosts.connect(&options());
    let (ours, theirs) = (hosts.a.mr.remote(0), hosts.b.mr.remote(0));
    assert_ne!(ours.rkey, theirs.rkey);
    hosts.write(&x, 100);
    hosts.done(1);
    for n in 0..2 {
        let from = RemoteAddr { va: ours.va + 4096 * n, ..ours };
        hosts.post(&y, &SendWr::read(1, &[hosts.b.mr.sge(8192..8192 + 200)], from));
        hosts.b.cq.wait(super::hosts::LIMIT).expect("success");
        hosts.micros(50);
    }
    let wrong = RemoteAddr { rkey: ours.rkey, ..theirs };
    hosts.post(&x, &SendWr::write(1, &[hosts.a.mr.sge(0..100)], wrong));
    hosts.fails(WcStatus::RemAccessErr);
    hosts.both()
}

fn access_swapped(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, y) = hosts.connect(&options());
    let at = hosts.b.mr.remote(0);
    x.post_recv(&RecvWr::new(1, &[hosts.a.mr.sge(0..64)])).expect("room for the receive");
    let mut advertised = at.va.to_be_bytes().to_vec();
    advertised.extend_from_slice(&at.rkey.0.to_be_bytes());
    hosts.post(&y, &SendWr::send(1, &[]).inline(&advertised));
    hosts.done(1);
    hosts.micros(80);
    let wrong = RemoteAddr { va: at.va.swap_bytes(), ..at };
    hosts.post(&x, &SendWr::write(1, &[hosts.a.mr.sge(0..300)], wrong));
    hosts.fails(WcStatus::RemAccessErr);
    hosts.client()
}

fn too_many_reads(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, _y) = hosts.connect_each([&options().max_rd_atomic(16), &options().max_dest_rd_atomic(2)]);
    for _ in 0..2 {
        (0..2).for_each(|_| hosts.read(&x, 400));
        hosts.done(2);
        hosts.micros(50);
    }
    (0..6).for_each(|_| hosts.read(&x, 400));
    hosts.done(2);
    hosts.fails(WcStatus::RemInvReqErr);
    hosts.client()
}

fn flushed(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, _y) = hosts.connect(&options());
    let at = hosts.b.mr.remote(0);
    let wrong = RemoteAddr { rkey: RKey(at.rkey.0 ^ 0x100), ..at };
    for n in 0..5 {
        let to = if n == 1 { wrong } else { at };
        hosts.post(&x, &SendWr::write(n, &[hosts.a.mr.sge(0..100)], to));
    }
    hosts.done(1);
    hosts.fails(WcStatus::RemAccessErr);
    (0..3).for_each(|_| hosts.fails(WcStatus::WrFlushErr));
    hosts.both()
}

fn slow_acks(seed: u64) -> Vec<Vec<Shot>> {
    let nic = [Vec::new(), rules(&["delay=1..,by=2ms,opcode=ack"])];
    let hosts = Setup { nic, ..Setup::new(seed) }.open();
    let (x, _y) = hosts.connect(&options());
    for _ in 0..8 {
        hosts.write(&x, 400);
        hosts.done(1);
        hosts.micros(10);
    }
    hosts.both()
}

fn no_credits(seed: u64) -> Vec<Vec<Shot>> {
    let mut setup = Setup::new(seed);
    for options in &mut setup.options {
        *options = options.clone().congestion(Congestion::NONE);
    }
    let hosts: Hosts = setup.open();
    let (x, y) = hosts.connect(&options().timeout(AckTimeout::new(14)));
    hosts.receives(&y, 4);
    hosts.send(&x, 200);
    hosts.done(1);
    hosts.micros(20);
    (0..11).for_each(|_| hosts.send(&x, 200));
    // The program posts a receive behind each message, a little before the next one arrives.
    hosts.micros(8);
    for _ in 0..10 {
        hosts.receives(&y, 1);
        hosts.micros(10);
    }
    hosts.done(11);
    hosts.client()
}
