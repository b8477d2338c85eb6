//! Conformance cases: the per-peer window, which all queue pairs connected to one peer share.

use std::collections::BTreeMap;

use urxe::transport::{QpAttr, QpState, SendFlags, SendWr, WcOpcode, WrData, WrOp};

use crate::bench::{Bench, SQ};
use crate::pkt::*;

/// Returns a bench with `qps` queue pairs to one peer whose window is four short packets, each with six SENDs
/// posted, one after the other.
fn crowd(qps: usize) -> Bench {
    let mut b = Bench::with(|s| (s.qps, s.tuning.window) = (qps, 4 * 1024));
    for qp in 0..qps {
        for i in 0..6 {
            post(&mut b, qp, i, SendFlags::SIGNALED);
        }
    }
    b
}

fn post(b: &mut Bench, qp: usize, wr_id: u64, flags: SendFlags) {
    let wr = SendWr { wr_id, op: WrOp::Send, data: WrData::Inline(b"short"), flags, to: None };
    b.post_on(qp, &wr).unwrap();
}

/// Returns the number of packets of each queue pair, in the order of their indices.
fn of(packets: &[Pkt]) -> Vec<(usize, usize)> {
    let mut count = BTreeMap::new();
    packets.iter().for_each(|p| *count.entry(p.qp).or_insert(0) += 1);
    count.into_iter().collect()
}

/// Destroys the queue pairs, whose remaining packets and completions are not checked.
fn end(mut b: Bench) {
    for qpn in b.qpns.clone() {
        b.nic.destroy_qp(qpn);
    }
    b.sent_kinds();
}

cases! {
    packets_in_flight_to_one_peer_are_limited_in_total => "req.window.shared" {
        let mut b = crowd(3);
        assert_eq!(of(&b.sent()), [(0, 4)]);
        // A waiting queue pair is served before the one whose packets were acknowledged.
        b.peer(&[ack(SQ + 1, 2)]);
        assert_eq!(of(&b.sent()), [(1, 2)]);
        b.peer(&[ack(SQ + 3, 4)]);
        assert_eq!(of(&b.sent()), [(2, 2)]);
        b.peer(&[ack(SQ + 1, 2).qp(2)]);
        assert_eq!(of(&b.sent()), [(1, 2)]);
        b.peer(&[ack(SQ + 3, 4).qp(1)]);
        assert_eq!(of(&b.sent()), [(0, 2), (2, 2)]);
        end(b);
    }

    all_qps_complete_under_a_full_shared_window => "req.window.shared" {
        let mut b = crowd(3);
        let (mut done, mut rounds) = ([0u32; 3], 0);
        while done != [6; 3] {
            let packets = b.sent();
            assert!((1..=4).contains(&packets.len()), "{} packets at once, done {done:?}", packets.len());
            for p in packets {
                done[p.qp] += 1;
                b.peer(&[ack(p.h.bth.psn.get(), done[p.qp]).qp(p.qp)]);
            }
            rounds += 1;
        }
        assert_eq!(rounds, 5, "18 packets, four at a time");
        let completed = b.sent_kinds();
        assert_eq!(completed, [WcOpcode::Send; 18]);
    }

    destroyed_or_failed_qp_frees_its_share_of_the_window => "req.window.shared" {
        // By an error, by a reset and by destruction.
        let leave: [fn(&mut Bench); 3] = [
            |b| b.modify(0, QpAttr { state: Some(QpState::Err), ..QpAttr::default() }).unwrap(),
            |b| b.modify(0, QpAttr { state: Some(QpState::Reset), ..QpAttr::default() }).unwrap(),
            |b| drop(b.nic.destroy_qp(b.qpns[0]).unwrap()),
        ];
        for leave in leave {
            let mut b = crowd(2);
            assert_eq!(of(&b.sent()), [(0, 4)]);
            leave(&mut b);
            assert_eq!(of(&b.sent()), [(1, 4)]);
            end(b);
        }
        // A waiting queue pair that is destroyed gives up its turn.
        let mut b = crowd(3);
        assert_eq!(of(&b.sent()), [(0, 4)]);
        b.nic.destroy_qp(b.qpns[1]).unwrap();
        b.peer(&[ack(SQ + 3, 4)]);
        assert_eq!(of(&b.sent()), [(2, 4)]);
        end(b);
    }

    last_packet_that_fits_shared_window_sets_ackreq => "req.window.shared" {
        // Unsignaled: no other packet would request an acknowledgement soon.
        let mut b = Bench::with(|s| (s.qps, s.tuning.window) = (2, 16 * 1024));
        for (qp, messages) in [(0, 15), (1, 3)] {
            (0..messages).for_each(|i| post(&mut b, qp, i, SendFlags::default()));
        }
        let sent = b.sent();
        assert_eq!(of(&sent), [(0, 15), (1, 1)]);
        assert!(!sent[14].h.bth.ack_req && sent[15].h.bth.ack_req);
        end(b);
    }
}
