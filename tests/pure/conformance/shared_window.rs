//! Conformance cases: the per-peer window, shared by all queue pairs connected to one peer.

use std::collections::BTreeMap;
use std::net::IpAddr;

use urxe::transport::{
    EgressRoom, PeerChange, PeerWindow, QpAttr, QpState, SendFlags, SendWr, WcOpcode, WrOp,
};

use crate::bench::{Bench, SQ};
use crate::pkt::*;

/// Returns a bench with `qps` queue pairs connected to one peer. Six SENDs are posted to each, but the
/// per-peer window has room for only four short packets.
fn contending_qps(qps: usize) -> Bench {
    let mut b = Bench::with(|s| (s.qps, s.tuning.window) = (qps, 4 * 1024));
    for qp in 0..qps {
        for i in 0..6 {
            post(&mut b, qp, i, SendFlags::SIGNALED);
        }
    }
    b
}

fn post(b: &mut Bench, qp: usize, wr_id: u64, flags: SendFlags) {
    let wr = SendWr::new(wr_id, WrOp::Send, &[]).inline(b"short").flags(flags);
    b.post_on(qp, &wr).unwrap();
}

/// Returns (index, number of packets) for each queue pair that sent packets, in ascending order of the index.
fn packets_per_qp(packets: &[Pkt]) -> Vec<(usize, usize)> {
    let mut count = BTreeMap::new();
    packets.iter().for_each(|p| *count.entry(p.qp).or_insert(0) += 1);
    count.into_iter().collect()
}

fn set_window(b: &mut Bench, peer: IpAddr, window: PeerWindow) {
    b.nic.on_peer_change(PeerChange::Window(peer, window));
}

cases! {
    packets_in_flight_to_one_peer_are_limited_in_total => "req.window.shared" {
        let mut b = contending_qps(3);
        assert_eq!(packets_per_qp(&b.sent()), [(0, 4)]);
        // A waiting queue pair is served before the one whose packets were acknowledged.
        b.deliver(&[ack(SQ + 1, 2)]);
        assert_eq!(packets_per_qp(&b.sent()), [(1, 2)]);
        b.deliver(&[ack(SQ + 3, 4)]);
        assert_eq!(packets_per_qp(&b.sent()), [(2, 2)]);
        b.deliver(&[ack(SQ + 1, 2).qp(2)]);
        assert_eq!(packets_per_qp(&b.sent()), [(1, 2)]);
        b.deliver(&[ack(SQ + 3, 4).qp(1)]);
        assert_eq!(packets_per_qp(&b.sent()), [(0, 2), (2, 2)]);
        b.discard();
    }

    all_qps_complete_under_a_full_shared_window => "req.window.shared" {
        let mut b = contending_qps(3);
        let (mut completed, mut rounds) = ([0u32; 3], 0);
        while completed != [6; 3] {
            let packets = b.sent();
            assert!(
                (1..=4).contains(&packets.len()),
                "{} packets in flight, completed {completed:?}",
                packets.len()
            );
            for p in packets {
                completed[p.qp] += 1;
                b.deliver(&[ack(p.h.bth.psn.get(), completed[p.qp]).qp(p.qp)]);
            }
            rounds += 1;
        }
        assert_eq!(rounds, 5, "rounds of four packets for 18 packets");
        let completed = b.sent_opcodes();
        assert_eq!(completed, [WcOpcode::Send; 18]);
    }

    paused_window_waiter_leaves_the_window_to_the_next => "req.window.shared" {
        // The priority of the second and third queue pair is paused while they wait for the window.
        let mut b = Bench::with(|s| (s.qps, s.tuning.window, s.state) = (4, 4 * 1024, QpState::Reset));
        for qp in 0..4 {
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                let mut attr = b.attr(qp, state);
                if let Some(av) = attr.av.as_mut().filter(|_| qp == 1 || qp == 2) {
                    av.traffic_class = 3 << 5;
                }
                b.modify(qp, attr).unwrap();
            }
            (0..4).for_each(|i| post(&mut b, qp, i, SendFlags::SIGNALED));
        }
        assert_eq!(packets_per_qp(&b.sent()), [(0, 4)]);
        b.deliver(&[ack(SQ + 3, 4)]);
        assert_eq!(packets_per_qp(&b.turn_within(EgressRoom::with_pauses(|p| p == 3))), [(3, 4)]);
        b.deliver(&[ack(SQ + 3, 4).qp(3)]);
        assert_eq!(packets_per_qp(&b.turn_within(EgressRoom::UNLIMITED)), [(1, 4)]);
        b.discard();
    }

    share_of_the_window_is_freed_when_a_qp_fails_or_is_destroyed => "req.window.shared" {
        // By an error, by a reset and by destruction.
        let releases: [fn(&mut Bench); 3] = [
            |b| b.modify(0, QpAttr::new(QpState::Err)).unwrap(),
            |b| b.modify(0, QpAttr::new(QpState::Reset)).unwrap(),
            |b| assert!(b.nic.destroy_qp(b.qpns[0]).is_some()),
        ];
        for release in releases {
            let mut b = contending_qps(2);
            assert_eq!(packets_per_qp(&b.sent()), [(0, 4)]);
            release(&mut b);
            assert_eq!(packets_per_qp(&b.sent()), [(1, 4)]);
            b.discard();
        }
        // A waiting queue pair that is destroyed is skipped.
        let mut b = contending_qps(3);
        assert_eq!(packets_per_qp(&b.sent()), [(0, 4)]);
        b.nic.destroy_qp(b.qpns[1]).unwrap();
        b.deliver(&[ack(SQ + 3, 4)]);
        assert_eq!(packets_per_qp(&b.sent()), [(2, 4)]);
        b.discard();
    }

    window_of_one_peer_replaces_that_of_the_link => "req.window.shared" {
        let mut b = contending_qps(3);
        let peer = b.flow().src;
        assert_eq!(packets_per_qp(&b.sent()), [(0, 4)]);
        set_window(&mut b, "192.0.2.99".parse().unwrap(), PeerWindow::Bytes(64 * 1024));
        b.expect_nothing();
        // A larger window lets the window waiters send.
        set_window(&mut b, peer, PeerWindow::Bytes(8 * 1024));
        assert_eq!(packets_per_qp(&b.sent()), [(1, 4)]);
        // A smaller one takes effect as packets are acknowledged.
        set_window(&mut b, peer, PeerWindow::AtMost(2 * 1024));
        b.deliver(&[ack(SQ + 3, 4)]);
        b.expect_nothing();
        b.deliver(&[ack(SQ + 2, 3).qp(1)]);
        assert_eq!(packets_per_qp(&b.sent()), [(2, 1)]);
        set_window(&mut b, peer, PeerWindow::OfLink);
        assert_eq!(packets_per_qp(&b.sent()), [(1, 2)]);
        b.discard();

        // The window is set before there is a queue pair, and kept while there is none.
        let mut b = Bench::with(|s| (s.tuning.window, s.tuning.max_peer_window, s.state) = (4 * 1024, 2 * 1024, QpState::Reset));
        set_window(&mut b, peer, PeerWindow::Bytes(64 * 1024));
        for _ in 0..2 {
            b.connect(0, QpState::Rts);
            (0..6).for_each(|i| post(&mut b, 0, i, SendFlags::SIGNALED));
            assert_eq!(packets_per_qp(&b.sent()), [(0, 2)], "the bound of the configuration");
            b.set_state(QpState::Reset);
        }
        b.discard();
    }

    last_packet_that_fits_the_shared_window_carries_ackreq => "req.window.shared" {
        // Unsignaled: no other packet would request an acknowledgement soon.
        let mut b = Bench::with(|s| (s.qps, s.tuning.window) = (2, 16 * 1024));
        for (qp, messages) in [(0, 15), (1, 3)] {
            (0..messages).for_each(|i| post(&mut b, qp, i, SendFlags::default()));
        }
        let sent = b.sent();
        assert_eq!(packets_per_qp(&sent), [(0, 15), (1, 1)]);
        assert!(!sent[14].h.bth.ack_req && sent[15].h.bth.ack_req);
        b.discard();
    }
}
