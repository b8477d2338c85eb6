//! Conformance cases: personalities, which differ, for example, in the work requests that they reject. Each
//! row of the table of differences is tested.

use std::fs::File;
use std::time::Duration;

use pcap_file::pcap::PcapReader;
use urxe::memory::{AtomicOp, PdId};
use urxe::nic::Personality;
use urxe::transport::QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use urxe::transport::{
    CongestionParameter, Destination, PostError, QpAttr, QpState, QpType, Quirks, SendFlags, SendWr,
    WcOpcode, WcStatus, WrOp,
};
use urxe::verbs::{
    self, Access, ConnectOptions, Context, ContextOptions, Fabric, FabricConfig, QpOptions, TestEndpoint,
};
use urxe::wire::frame::{self, Checksums, Content};
use urxe::wire::{Ecn, Opcode, Packet, RKey};

use crate::bench::{Bench, QKEY, RQ, SQ, Setup, bad, flushed, ok};
use crate::notification_point;
use crate::pkt::*;
use crate::properties::properties;
use urxe_test_support::engine;

fn bench(p: Personality, change: impl FnOnce(&mut Setup)) -> Bench {
    Bench::with(|s| {
        s.quirks = p.quirks;
        change(s);
    })
}

/// Returns a bench with the personality `mlx5`, but with end-to-end credits disabled.
fn mlx5(state: QpState) -> Bench {
    let quirks = Quirks { credits: false, ..Personality::MLX5.quirks };
    Bench::with(|s| (s.state, s.quirks) = (state, quirks))
}

/// Moves the QP from `state` to RTS.
fn to_rts(b: &mut Bench, state: QpState) {
    for step in [Init, Rtr, Rts].into_iter().filter(|step| *step as u32 > state as u32) {
        let attr = b.attr(0, step);
        b.modify(0, attr).unwrap();
    }
}

/// Posts a work request of 8 bytes with an address handle from protection domain `pd`.
fn post_with_handle(b: &mut Bench, wr_id: u64, op: WrOp, pd: PdId) -> Result<(), PostError> {
    let Destination::Qp { av, qpn, qkey, .. } = b.to(QKEY) else {
        panic!("the destination of a datagram is a QP")
    };
    let (sges, to) = ([b.mr.sge(0, 8)], Some(Destination::Qp { pd, av, qpn, qkey }));
    b.post_on(0, &SendWr::new(wr_id, op, &sges).to(to))
}

/// Local ACK timeout of the bench (14).
const ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
const FETCH_ADD: AtomicOp = AtomicOp::FetchAdd(1);

cases! {
    operation_unsupported_on_ud_is_accepted_and_fails_in_order => "lenient.deferred_error" {
        let (va, rkey, own_pd) = (0, RKey(1), engine::PD);
        for (op, pd) in [
            (WrOp::Write { va, rkey }, own_pd),
            (WrOp::Read { va, rkey }, own_pd),
            (WrOp::Atomic { va, rkey, op: FETCH_ADD }, own_pd),
            (WrOp::LocalInv(rkey), own_pd),
            (WrOp::Send, PdId(99)),
        ] {
            let mut b = bench(Personality::DEFAULT, |s| s.qp_type = QpType::Ud);
            if op.is_local() {
                let to = Some(b.to(QKEY));
                b.post(1, WrOp::Send, 0, 8);
                b.post_on(
                    0,
                    &SendWr::new(2, op, &[]).signaled(false).to(to),
                )
                .unwrap();
            } else {
                // In SQD a work request that will fail waits like any other.
                b.post(1, WrOp::Send, 0, 8);
                b.set_state(Sqd);
                post_with_handle(&mut b, 2, op, pd).unwrap();
                b.expect_nothing();
                b.sends(&[]);
                b.state(Sqd);
                b.set_state(Rts);
            }
            b.post(3, WrOp::Send, 0, 8);
            assert_eq!(b.sent().len(), 1, "{op:?}");
            b.sends(&[ok(1, WcOpcode::Send, 8), bad(2, WcStatus::LocQpOpErr), flushed(3)]);
            b.state(Sqe);
            b.modify(0, QpAttr::new(Rts).cur_state(Sqe)).unwrap();
            b.post(4, WrOp::Send, 0, 8);
            assert_eq!(b.sent().len(), 1);
            b.sends(&[ok(4, WcOpcode::Send, 8)]);
        }
    }

    operation_unsupported_on_uc_is_accepted_and_fails_in_order => "lenient.deferred_error" {
        for (p, state) in [(Personality::DEFAULT, Sqe), (Personality::RXE, Error)] {
            let mut b = bench(p, |s| s.qp_type = QpType::Uc);
            b.post(1, WrOp::Send, 0, 8);
            b.post(2, WrOp::Read { va: 0, rkey: RKey(1) }, 0, 8);
            assert_eq!(b.sent().len(), 1);
            b.sends(&[ok(1, WcOpcode::Send, 8), bad(2, WcStatus::LocQpOpErr)]);
            b.state(state);
        }
    }

    post_with_excess_sges_or_on_an_xrc_target_fails_with_every_personality => "lenient.deferred_error" {
        for p in Personality::ALL {
            let mut b = bench(p, |s| s.qp_type = QpType::Ud);
            let sges = [b.mr.sge(0, 8); 5];
            let error = b.post_sges(1, WrOp::Read { va: 0, rkey: RKey(1) }, &sges, SendFlags::SIGNALED);
            let lenient = PostError::TooManySges { got: 5, max: 4 };
            let strict = PostError::Unsupported(QpType::Ud, WcOpcode::RdmaRead);
            assert_eq!(error, Err(if p.quirks.late_refusals { lenient } else { strict }));
            let mut b = bench(p, |s| s.qp_type = QpType::XrcRecv);
            let sge = [b.mr.sge(0, 8)];
            let error = b.post_sges(1, WrOp::Send, &sge, SendFlags::SIGNALED);
            assert_eq!(error, Err(PostError::Unsupported(QpType::XrcRecv, WcOpcode::Send)));
        }
    }

    atomic_result_fills_only_the_first_8_bytes_of_longer_sges => "lenient.atomics" {
        let quirks = Quirks { credits: false, ..Personality::DEFAULT.quirks };
        let mut b = Bench::with(|s| s.quirks = quirks);
        let (va, rkey) = (64, RKey(5));
        let before = b.mr.read(0, 64);
        for (n, sges) in
            [vec![b.mr.sge(0, 24)], vec![b.mr.sge(0, 3), b.mr.sge(3, 40)]].into_iter().enumerate()
        {
            let (n, old) = (n as u32, 0x0102_0304_0506_0708 + n as u64);
            b.post_sges(n.into(), WrOp::Atomic { va, rkey, op: FETCH_ADD }, &sges, SendFlags::SIGNALED)
                .unwrap();
            b.expect(&[fetch_add(SQ + n, (va, rkey), 1)]);
            b.exchange(&[atomic_ack(SQ + n, n + 1, old)], &[]);
            b.sends(&[ok(n.into(), WcOpcode::FetchAdd, 8)]);
            assert_eq!(b.mr.read(0, 8), old.to_ne_bytes());
            assert_eq!(b.mr.read(8, 56), before[8..]);
        }
        let seven = [b.mr.sge(0, 7)];
        let error = b.post_sges(9, WrOp::Atomic { va, rkey, op: FETCH_ADD }, &seven, SendFlags::SIGNALED);
        assert_eq!(error, Err(PostError::AtomicLength(7)));
    }

    sends_posted_before_rts_are_sent_with_the_next_post => "early.sends" {
        for state in [Reset, Init, Rtr] {
            let mut b = mlx5(state);
            let (to, d) = (b.remote(2000, 0), b.mr.read(0, 600));
            b.post(1, WrOp::Send, 0, 600);
            b.post(2, WrOp::Write { va: to.0, rkey: to.1 }, 0, 1);
            b.expect_nothing();
            to_rts(&mut b, state);
            b.expect_nothing();
            b.advance(Duration::from_secs(100));
            b.expect_nothing();
            b.post(3, WrOp::Send, 0, 1);
            // The PSNs and the path MTU are those of the connection, as if the work requests had been posted
            // in RTS.
            let mut all = message(256, &d, send, SQ);
            all.push(write(Only, SQ + 3, (to.0, to.1, 1), &d[..1]));
            all.push(send(Only, SQ + 4, &d[..1]));
            let plain = |p: &Pkt| p.clone().ackreq(false);
            assert_eq!(
                b.sent().iter().map(plain).collect::<Vec<_>>(),
                all.iter().map(plain).collect::<Vec<_>>()
            );
            b.exchange(&[ack(SQ + 4, 3)], &[]);
            b.sends(&[ok(1, WcOpcode::Send, 600), ok(2, WcOpcode::RdmaWrite, 1), ok(3, WcOpcode::Send, 1)]);
        }
    }

    sends_posted_before_rts_are_dropped_by_reset_and_flushed_by_err => "early.sends" {
        let mut b = mlx5(Init);
        b.post(1, WrOp::Send, 0, 600);
        b.set_state(Reset);
        b.sends(&[]);
        to_rts(&mut b, Reset);
        b.post(2, WrOp::Send, 0, 1);
        let d = b.mr.read(0, 1);
        b.expect(&[send(Only, SQ, &d)]);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(2, WcOpcode::Send, 1)]);
        let mut b = mlx5(Rtr);
        b.post(1, WrOp::Send, 0, 600);
        b.set_state(Error);
        b.sends(&[flushed(1)]);
    }

    read_posted_before_rts_with_max_rd_atomic_0_fails_in_order => "early.sends" {
        let quirks = Quirks { credits: false, ..Personality::MLX5.quirks };
        let mut b = Bench::with(|s| (s.state, s.quirks, s.max_rd) = (Init, quirks, 0));
        b.post(1, WrOp::Send, 0, 1);
        b.post(2, WrOp::Read { va: 0, rkey: RKey(1) }, 0, 8);
        b.post(3, WrOp::Send, 0, 1);
        to_rts(&mut b, Init);
        b.post(4, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 1);
        b.sends(&[]);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1), bad(2, WcStatus::LocQpOpErr), flushed(3), flushed(4)]);
        b.state(Error);
    }

    rxe_transmits_a_send_whose_post_failed_with_the_next_post => "early.sends" {
        let mut b = bench(Personality::RXE, |s| s.state = Init);
        let sge = [b.mr.sge(0, 1)];
        assert_eq!(b.post_sges(1, WrOp::Send, &sge, SendFlags::SIGNALED), Err(PostError::State(Init)));
        to_rts(&mut b, Init);
        b.expect_nothing();
        b.post(2, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 2);
        b.exchange(&[ack(SQ + 1, 2)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1), ok(2, WcOpcode::Send, 1)]);
    }

    receives_posted_in_reset_are_used_from_rtr_on => "early.receives" {
        let mut b = mlx5(Reset);
        b.recv(1, 0, 10);
        to_rts(&mut b, Reset);
        b.exchange(&[send(Only, RQ, &[1])], &[ack(RQ, 1)]);
        b.recvs(&[ok(1, WcOpcode::Recv, 1)]);
    }

    tables_in_documentation_match_personality_data => "personality.rows" {
        let all = Personality::ALL.map(|p| properties(&p));
        let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
        let names = Personality::ALL.map(|p| p.name);
        let mut table = line(&[&["what"], &names[..]].concat()) + &line(&["---"; 1 + Personality::ALL.len()]);
        for (row, (name, _)) in all[0].iter().enumerate() {
            let cells = all.each_ref().map(|rows| rows[row].1.as_str());
            if cells.iter().any(|cell| *cell != cells[0]) {
                table += &line(&[&[*name], &cells[..]].concat());
            }
        }
        let documented = include_str!("../../../src/nic/personality.md");
        assert!(
            documented == table,
            "src/nic/personality.md differs from the personality data; replace it with:\n{table}"
        );
        assert!(
            include_str!("../../../docs/guide/personalities.md").contains(&table),
            "docs/guide/personalities.md lacks the personality table; insert:\n{table}"
        );
    }

    full_send_queue_of_mlx5_has_room_when_a_completion_is_polled_and_none_before => "personality.send_slots" {
        for p in [Personality::MLX5, Personality::STRICT] {
            let fabric = virtual_fabric();
            let (a, b) = pair(&fabric, p);
            let mr = b.pd.reg_mr(8, Access::ALL).unwrap();
            let slots = QpOptions::default().send.max_wr;
            let signaled = |wr_id| SendWr::write(wr_id, &[], mr.remote(0));
            (1..slots).for_each(|i| a.qp.post_send(&signaled(i.into()).flags(UNSIGNALED)).unwrap());
            a.qp.post_send(&signaled(77)).unwrap();
            fabric.advance(Duration::from_secs(2));
            let is_full = || matches!(a.qp.post_send(&signaled(1)), Err(PostError::QueueFull(_)));
            assert!(is_full(), "acknowledged, but not polled");
            assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 77);
            fill_with_unsignaled(&a, &mr, &fabric);
            assert!(is_full());
            // The queue is empty after RESET, and its slots are free.
            [&a, &b].iter().for_each(|end| end.qp.modify(&QpAttr::new(Reset)).unwrap());
            urxe_test_support::nic::connect_with(&a.qp, &b.qp, &ConnectOptions::default());
            a.qp.post_send(&signaled(2)).unwrap();
        }
    }

    lost_unsignaled_send_is_repaired_after_the_ack_timeout_without_probes => "personality.no_probes" {
        for p in [Personality::MLX5, Personality::RXE, Personality::STRICT] {
            let quirks = Quirks { credits: false, ..p.quirks };
            let mut b = Bench::with(|s| (s.quirks, s.tuning.min_probe_timeout) = (quirks, Duration::from_millis(1)));
            post_unsignaled(&mut b, 1, 1);
            assert_eq!(b.sent().len(), 1);
            b.advance(ACK_TIMEOUT - Duration::from_nanos(1));
            b.expect_nothing();
            b.advance(Duration::from_nanos(1));
            let again = b.sent().iter().map(|p| (p.h.bth.psn.get(), p.h.bth.ack_req)).collect::<Vec<_>>();
            assert_eq!(again, [(SQ, true)]);
            assert_eq!((b.count().ack_probe, b.count().local_ack_timeout_err), (0, 1), "{}", p.name);
            b.exchange(&[ack(SQ, 1)], &[]);
            b.advance(20 * ACK_TIMEOUT);
            b.expect_nothing();
        }
    }

    packets_of_a_write_that_request_an_acknowledgement_are_those_of_a_captured_rxe => "personality.no_probes" {
        let captured = ack_requests_of_captured_write();
        assert_eq!(captured.len(), 71);
        let mut b = bench(Personality::RXE, |_| {});
        let sge = [b.mr.sge(0, 71 * 256)];
        b.post_sges(1, WrOp::Write { va: 0, rkey: RKey(1) }, &sge, UNSIGNALED).unwrap();
        let sent: Vec<_> = b.sent().iter().map(|p| p.h.bth.ack_req).collect();
        discard(b);
        assert_eq!(sent, captured);
    }

    acknowledgement_not_requested_before_sqd_is_requested_after_the_ack_timeout => "personality.no_probes" {
        let mut b = bench(Personality::MLX5, |s| (s.quirks.credits, s.max_rd) = (false, 1));
        let op = WrOp::Read { va: 0, rkey: RKey(1) };
        b.post(1, op, 0, 4);
        post_unsignaled(&mut b, 2, 1);
        b.post(3, op, 0, 4);
        let (from, byte) = ((0, RKey(1), 4), send(Only, SQ + 1, &b.mr.read(0, 1)));
        b.expect(&[read(SQ, from), byte.clone().ackreq(false)]);
        b.set_state(Sqd);
        b.exchange(&[resp(Only, SQ, 1, &[0; 4])], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 4)]);
        b.advance(ACK_TIMEOUT);
        b.expect(&[byte]);
        assert_eq!((b.count().ack_probe, b.count().local_ack_timeout_err), (1, 0));
        b.exchange(&[ack(SQ + 1, 2)], &[]);
        b.sends(&[]);
        b.advance(20 * ACK_TIMEOUT);
        b.expect_nothing();
    }

    observed_result_matches_every_row_of_the_personality_table => "personality.rows" {
        for (row, (name, _)) in properties(&Personality::STRICT).iter().enumerate() {
            let all = Personality::ALL.map(|p| (properties(&p).swap_remove(row).1, observe(name, p)));
            for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
                assert_eq!(a.0 == b.0, a.1 == b.1, "{name}: {all:?}");
            }
        }
    }
}

/// Runs the experiment for `row` of the table of differences with personality `p`, and returns its result in
/// the table's words.
fn observe(row: &str, p: Personality) -> String {
    match row {
        "least ACK timeout" => format!("{}", time_to_failure(p) >= Duration::from_millis(500)),
        "speed of the port" => {
            let port = context(&virtual_fabric(), p).query_port();
            format!("{:?}", (port.active_width, port.active_speed))
        }
        "end-to-end credits" => format!("{:?}", response(p, &[1]).h.aeth.syndrome),
        "MigReq in packets" => format!("{}", response(p, &[1]).h.bth.mig_req),
        "NAK of a message longer than its receive" => format!("{:?}", response(p, &[1; 5]).h.aeth.syndrome),
        "ACK for several requests" => {
            responses_to(p, |b| (0..2).map(|i| write(Only, RQ + i, b.remote(0, 1), &[1])).collect())
                .0
                .to_string()
        }
        "SEND with a packet of the wrong length" => {
            responses_to(p, |_| vec![send(First, RQ, &[1; 100]), send(Last, RQ + 1, &[1])]).1.to_string()
        }
        "READs beyond max_dest_rd_atomic" => {
            responses_to(p, |b| (0..6).map(|i| read(RQ + i, b.remote(0, 4))).collect()).1.to_string()
        }
        "ICRC of a FLUSH covers its headers" => format!("{:?}", flush_status_with_strict_peer(p)),
        "IBV_WC_GRH" => {
            let mut b = bench(p, |_| {});
            b.recv(1, 0, 4);
            b.deliver(&[send(Only, RQ, &[1])]);
            let grh = b.raw_recv().grh;
            discard(b);
            grh.to_string()
        }
        // Affects only the drop-in library: `tests/programs/personalities.rs`.
        "ibv_req_notify_cq behind a completion" => p.quirks.reports_missed_completions.to_string(),
        "region of length 0 at a page boundary" => {
            let pd = context(&virtual_fabric(), p).alloc_pd().unwrap();
            pd.reg_mr(0, Access::LOCAL_WRITE).is_ok().to_string()
        }
        "atomic with more than 8 bytes of SGEs" => {
            let mut b = bench(p, |_| {});
            let (sge, op) = ([b.mr.sge(0, 16)], WrOp::Atomic { va: 0, rkey: RKey(1), op: FETCH_ADD });
            let accepted = b.post_sges(1, op, &sge, SendFlags::SIGNALED).is_ok();
            discard(b);
            accepted.to_string()
        }
        "operation that the service lacks (READ on UD, ...), AH of another PD" => {
            let failures = [(WrOp::Read { va: 0, rkey: RKey(1) }, engine::PD), (WrOp::Send, PdId(99))].map(
                |(op, pd)| {
                    let mut b = bench(p, |s| s.qp_type = QpType::Ud);
                    let accepted = post_with_handle(&mut b, 1, op, pd).is_ok();
                    discard(b);
                    accepted
                },
            );
            format!("{failures:?}")
        }
        "send posted in RESET, INIT, RTR" => {
            let results = [Reset, Init, Rtr].map(|state| {
                let mut b = bench(p, |s| s.state = state);
                let sge = [b.mr.sge(0, 8)];
                let accepted = b.post_sges(1, WrOp::Send, &sge, SendFlags::SIGNALED).is_ok();
                to_rts(&mut b, state);
                let before_post = b.sent().len();
                b.post(2, WrOp::Send, 0, 8);
                let after_post = b.sent().len();
                discard(b);
                (accepted, before_post, after_post)
            });
            format!("{results:?}")
        }
        "receive posted in RESET" => {
            let mut b = bench(p, |s| s.state = Reset);
            let accepted = b.recv_sges(1, &[]).is_ok();
            discard(b);
            accepted.to_string()
        }
        "failed send of UC or UD: state" => {
            let states = [QpType::Uc, QpType::Ud].map(|qp_type| {
                let mut b = bench(p, |s| s.qp_type = qp_type);
                // A key without an object.
                let sge = [verbs::Sge { length: 8, ..verbs::Sge::default() }];
                b.post_sges(1, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
                b.expect_nothing();
                let state = b.nic.qp_state(b.qpns[0]);
                discard(b);
                state
            });
            format!("{states:?}")
        }
        "last packet is lost: sent again after" => sends_probe(p).to_string(),
        "AckReq at the end of a message" => {
            let mut b = bench(p, |_| {});
            // The second is posted behind the first before either is sent.
            (1..3).for_each(|i| post_unsignaled(&mut b, i, 1));
            let requests: Vec<_> = b.sent().iter().map(|p| p.h.bth.ack_req).collect();
            discard(b);
            format!("{requests:?}")
        }
        "AckReq within a message" => {
            let mut b = bench(p, |_| {});
            post_unsignaled(&mut b, 1, 200 * 256);
            let packets = b.sent();
            let requests = packets.iter().enumerate().filter(|(_, p)| p.h.bth.ack_req).map(|(i, _)| i);
            let requests: Vec<_> = requests.filter(|i| i + 1 < packets.len()).collect();
            discard(b);
            format!("{requests:?}")
        }
        "slot of an unsignaled work request is free" => {
            let fabric = virtual_fabric();
            let (a, b) = pair(&fabric, p);
            let mr = b.pd.reg_mr(8, Access::ALL).unwrap();
            fill_with_unsignaled(&a, &mr, &fabric);
            a.qp.post_send(&SendWr::write(1, &[], mr.remote(0))).is_ok().to_string()
        }
        "least time between CNPs applies to" => {
            let mut b = bench(p, |s| {
                s.qps = 2;
                notification_point::set(s, CongestionParameter::MinTimeBetweenCnps, 1000);
            });
            b.traffic_class = Ecn::Ce as u8;
            let to = b.remote(0, 1);
            (0..2).for_each(|qp| b.deliver(&[write(Only, RQ, to, &[1]).qp(qp)]));
            let cnps = b.sent().iter().filter(|p| p.h.bth.opcode == Opcode::CNP).count();
            discard(b);
            cnps.to_string()
        }
        "requests behind a lost one" => {
            let mut b = bench(p, |_| {});
            let (last, first) = (b.remote(0, 1), b.remote(1, 1));
            b.deliver(&[write(Only, RQ + 1, last, &[7]), write(Only, RQ, first, &[7])]);
            let stored = b.mr.read(0, 2).iter().filter(|byte| **byte == 7).count();
            discard(b);
            stored.to_string()
        }
        "packets of a long WRITE" => {
            let (va, rkey) = (0, RKey(1));
            format!("{:?}", opcodes_of(p, WrOp::Write { va, rkey }))
        }
        "requests of a READ of 8 packets" => {
            let (va, rkey) = (0, RKey(1));
            opcodes_of(p, WrOp::Read { va, rkey }).len().to_string()
        }
        // The limits that the device reports.
        _ => {
            let limits = context(&virtual_fabric(), p).query_device().limits;
            let reported = properties(&p.limits(limits));
            reported.into_iter().find(|(name, _)| *name == row).expect("each other row is a limit").1
        }
    }
}

/// Discards the remaining packets, completions and events, which the bench would report as unexpected on
/// drop.
fn discard(mut b: Bench) {
    b.sent();
    let mut done = Vec::new();
    b.send_cq.poll(usize::MAX, &mut done).unwrap();
    b.recv_cq.poll(usize::MAX, &mut done).unwrap();
    while b.next_event().is_some() {}
}

/// Returns AckReq of each packet of the first message in a capture of rxe, a WRITE.
fn ack_requests_of_captured_write() -> Vec<bool> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/pcaps/rc_long.pcap");
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let (mut flags, mut opcode) = (Vec::new(), Opcode::RC_WRITE_MIDDLE);
    while opcode.row().position != Last
        && let Some(packet) = reader.next_packet()
    {
        let bytes = packet.unwrap().data.into_owned();
        let Content::Roce(roce) = frame::parse(&bytes, Checksums::Verify).unwrap().content else { continue };
        let bth = Packet::parse(&bytes[roce.payload]).unwrap().bth();
        (opcode, _) = (bth.opcode, flags.push(bth.ack_req));
    }
    flags
}

/// Posts an unsignaled SEND.
fn post_unsignaled(b: &mut Bench, wr_id: u64, len: u32) {
    let sge = [b.mr.sge(0, len)];
    b.post_sges(wr_id, WrOp::Send, &sge, UNSIGNALED).unwrap();
}

const UNSIGNALED: SendFlags = SendFlags { signaled: false, ..SendFlags::SIGNALED };

/// Reports whether a NIC with personality `p` sends a SEND again 10 ms after the peer has acknowledged one in
/// 0.1 ms, with an ACK timeout of 67 ms.
fn sends_probe(p: Personality) -> bool {
    let mut b = bench(p, |s| s.tuning.min_probe_timeout = Duration::from_millis(1));
    b.post(0, WrOp::Send, 0, 1);
    b.sent();
    b.advance(Duration::from_micros(100));
    b.deliver(&[ack(SQ, 1)]);
    b.post(1, WrOp::Send, 0, 1);
    b.sent();
    b.advance(Duration::from_millis(10));
    let sent = b.sent().len();
    discard(b);
    sent > 0
}

/// Returns two connected endpoints with personality `p`.
fn pair(fabric: &Fabric, p: Personality) -> (TestEndpoint, TestEndpoint) {
    let [a, b] = [(); 2].map(|()| TestEndpoint::new(context(fabric, p)).unwrap());
    urxe_test_support::nic::connect_with(&a.qp, &b.qp, &ConnectOptions::default());
    (a, b)
}

/// Fills a send queue with unsignaled WRITEs, and lets two seconds pass, in which the peer acknowledges them.
fn fill_with_unsignaled(a: &TestEndpoint, mr: &verbs::Mr, fabric: &Fabric) {
    let slots = QpOptions::default().send.max_wr;
    for i in 0..slots {
        a.qp.post_send(&SendWr::write(i.into(), &[], mr.remote(0)).flags(UNSIGNALED)).unwrap();
    }
    fabric.advance(Duration::from_secs(2));
}

/// Returns the response of a NIC with personality `p` to a SEND of `data` that consumes a receive of 4 bytes.
fn response(p: Personality, data: &[u8]) -> Pkt {
    let mut b = bench(p, |_| {});
    b.recv(1, 0, 4);
    b.deliver(&[send(Only, RQ, data)]);
    let got = b.sent().remove(0);
    discard(b);
    got
}

/// Delivers `requests`, and returns the number of response packets and the QP state afterwards.
fn responses_to(p: Personality, requests: impl FnOnce(&Bench) -> Vec<Pkt>) -> (usize, QpState) {
    let mut b = bench(p, |_| {});
    b.recv(1, 0, 600);
    let requests = requests(&b);
    b.deliver(&requests);
    let (count, state) = (b.sent().len(), b.nic.qp_state(b.qpns[0]).unwrap());
    discard(b);
    (count, state)
}

/// Returns the opcodes of the packets with which a NIC with personality `p` requests an operation with 8
/// packets of data.
fn opcodes_of(p: Personality, op: WrOp) -> Vec<Opcode> {
    let mut b = bench(p, |_| {});
    b.post(1, op, 0, 8 * 256);
    let opcodes = b.sent().iter().map(|packet| packet.h.bth.opcode).collect();
    discard(b);
    opcodes
}

fn virtual_fabric() -> Fabric {
    Fabric::virtual_time(FabricConfig::default()).unwrap()
}

fn context(fabric: &Fabric, personality: Personality) -> Context {
    fabric.open(&ContextOptions::default().personality(personality)).unwrap()
}

/// Returns connection options with the shortest ACK timeout and no retries.
fn no_retries() -> ConnectOptions {
    ConnectOptions::default().timeout(verbs::AckTimeout::new(1)).retry_cnt(0)
}

/// Returns the virtual time after which a SEND to an unreachable peer fails.
fn time_to_failure(p: Personality) -> Duration {
    let fabric = virtual_fabric();
    let node = TestEndpoint::new(context(&fabric, p)).unwrap();
    let gid = "10.9.9.9".parse::<std::net::IpAddr>().unwrap().into();
    node.qp.connect(&verbs::Endpoint { gid, ..node.qp.endpoint() }, &no_retries()).unwrap();
    let begin = fabric.now();
    node.qp.post_send(&SendWr::send(1, &[])).unwrap();
    assert_eq!(node.cq.wait_any(TIMEOUT).unwrap().status, WcStatus::RetryExcErr);
    fabric.now().since(begin)
}

const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the completion status of a FLUSH from a NIC with personality `p` to one with the personality
/// `strict`.
fn flush_status_with_strict_peer(p: Personality) -> WcStatus {
    let fabric = virtual_fabric();
    let [a, b] = [p, Personality::STRICT].map(|p| TestEndpoint::new(context(&fabric, p)).unwrap());
    let access = Access::ALL | Access::FLUSH_GLOBAL;
    let options = no_retries().access(access);
    urxe_test_support::nic::connect_with(&a.qp, &b.qp, &options);
    let mr = b.pd.reg_mr(64, access).unwrap();
    let placement = verbs::Placement::GLOBAL;
    a.qp.post_send(&SendWr::flush(1, mr.remote(0), 64, placement)).unwrap();
    a.cq.wait_any(TIMEOUT).unwrap().status
}
