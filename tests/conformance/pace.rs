//! The rate limit of a queue pair.

use std::time::Duration;

use urxe::transport::{QpAttr, QpState, QpType, SendFlags, Sge, WcOpcode, WcStatus, WrOp};
use urxe::wire::{LKey, RKey};

use crate::bench::{Bench, RQ, SQ, bad, flushed, ok};
use crate::pkt::*;

fn limit(b: &mut Bench, kbps: u32) {
    b.modify(0, QpAttr { rate_limit: Some(kbps), ..QpAttr::default() }).unwrap();
}

/// Packets that leave in so many steps of a microsecond; each may be the answer to a deadline only.
fn leaves(b: &mut Bench, micros: u32) -> usize {
    let mut n = 0;
    for _ in 0..micros {
        b.advance(Duration::from_micros(1));
        n += b.sent().len();
    }
    n
}

cases! {
    no_faster_than_the_limit => "pace.rate" {
        // A packet is 256 bytes of data, 16 of headers and ICRC: 272 bytes, 21.76 us at 100 Mbit/s.
        let mut b = Bench::new();
        limit(&mut b, 100_000);
        b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 256 * 200);
        // The first burst at once: what 100 us hold.
        assert_eq!(b.sent().len(), 4);
        let n = leaves(&mut b, 1000);
        assert!((44..=47).contains(&n), "{n} packets in a millisecond");
        let rest = leaves(&mut b, 10_000);
        assert_eq!(4 + n + rest, 200);
        b.peer(&[ack(SQ + 199, 1)]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 256 * 200)]);
    }

    every_service_has_it => "pace.rate" {
        for qp_type in [QpType::Uc, QpType::Ud] {
            let mut b = Bench::with(|s| s.qp_type = qp_type);
            limit(&mut b, 1000);
            (0..10).for_each(|i| b.post(i, WrOp::Send, 0, 200));
            assert_eq!(b.sent().len(), 1);
            // 200 bytes and headers at 1 Mbit/s take about 1.8 ms.
            let n = leaves(&mut b, 10_000);
            assert!((5..=6).contains(&n), "{n} packets of {qp_type:?} in 10 ms");
            b.sends(&(0..1 + n as u64).map(|i| ok(i, WcOpcode::Send, 200)).collect::<Vec<_>>());
            b.go(QpState::Reset);
        }
    }

    what_nobody_acknowledges_is_paced_by_itself => "pace.unacknowledged" {
        for (qp_type, op) in [(QpType::Uc, WrOp::Write { va: 0, rkey: RKey(7) }), (QpType::Ud, WrOp::Send)] {
            // A window of 64 KiB a millisecond: 6553 bytes at once, packets of 272 or 276 bytes of them.
            let mut b = Bench::with(|s| {
                (s.qp_type, s.tuning.window, s.tuning.pace_unacknowledged) = (qp_type, 64 * 1024, true);
            });
            (0..60).for_each(|i| b.post(i, op, 0, if qp_type == QpType::Uc { 256 * 10 } else { 256 }));
            let burst = b.sent().len();
            // What a datagram may have is the port's MTU, 1024: there is to be room for one.
            let (first, in_all) = if qp_type == QpType::Uc { (25, 600) } else { (20, 60) };
            assert_eq!(burst, first, "{qp_type:?}");
            let n = burst + leaves(&mut b, 1000);
            assert!((220..=275).contains(&n) || n == in_all, "{n} packets of {qp_type:?} in a millisecond");
            assert_eq!(n + leaves(&mut b, 3000), in_all);
            assert_eq!(b.sent_kinds().len(), 60);
        }
    }

    a_queue_that_has_stopped_waits_for_no_turn => "pace.rate" {
        // The second of these fails while the third waits: SQE, and ERR.
        for qp_type in [QpType::Uc, QpType::Rc] {
            let mut b = Bench::with(|s| s.qp_type = qp_type);
            limit(&mut b, 1000);
            b.post(1, WrOp::Send, 0, 200);
            let foreign = Sge { lkey: LKey(77), ..b.mr.sge(0, 200) };
            b.post_sges(2, WrOp::Send, &[foreign], SendFlags::SIGNALED).unwrap();
            b.post(3, WrOp::Send, 0, 200);
            assert_eq!(b.sent().len(), 1);
            b.peer(&[ack(SQ, 1)]);
            assert_eq!(leaves(&mut b, 10_000), 0);
            b.sends(&[ok(1, WcOpcode::Send, 200), bad(2, WcStatus::LocProtErr), flushed(3)]);
            b.state(if qp_type == QpType::Uc { QpState::Sqe } else { QpState::Err });
            b.advance(Duration::from_secs(1));
            b.peer(&[]);
        }
    }

    what_was_missed_is_made_up_for_but_not_for_long => "pace.rate" {
        let mut b = Bench::new();
        limit(&mut b, 100_000);
        b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 256 * 250);
        assert_eq!(b.sent().len(), 4);
        // Nobody looks for a second: a millisecond of it counts.
        b.advance(Duration::from_secs(1));
        let mut n = 0;
        loop {
            b.advance(Duration::ZERO);
            match b.sent().len() {
                0 => break,
                more => n += more,
            }
        }
        assert!((46..=56).contains(&n), "{n} packets at once");
        b.go(QpState::Reset);
    }

    a_deadline_that_is_noticed_late_is_over => "pace.rate" {
        let mut b = Bench::with(|s| s.qp_type = QpType::Uc);
        limit(&mut b, 1000);
        (0..3).for_each(|i| b.post(i, WrOp::Send, 0, 200));
        assert_eq!(b.sent().len(), 1);
        let due = b.nic.next_deadline().unwrap();
        b.now = due + Duration::from_micros(1);
        b.nic.handle_timeouts(b.now, &b.memory, &mut b.tx);
        assert_eq!(b.nic.next_deadline(), None);
        assert_eq!(b.sent().len(), 1);
        assert!(b.nic.next_deadline().is_some_and(|next| next > b.now));
        b.sends(&[ok(0, WcOpcode::Send, 200), ok(1, WcOpcode::Send, 200)]);
        b.go(QpState::Reset);
    }

    it_may_change => "pace.change" {
        let mut b = Bench::new();
        limit(&mut b, 1000);
        let rate = |b: &Bench| b.nic.query_qp(b.qpns[0]).unwrap().0.rate_limit;
        assert_eq!(rate(&b), Some(1000));
        b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 256 * 100);
        assert_eq!(b.sent().len(), 1);
        limit(&mut b, 0);
        assert_eq!(b.sent().len(), 99);
        b.peer(&[ack(SQ + 99, 1)]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 256 * 100)]);
        limit(&mut b, 1000);
        b.go(QpState::Reset);
        assert_eq!(rate(&b), Some(0));
    }

    answers_leave_at_once => "pace.answers" {
        let mut b = Bench::new();
        limit(&mut b, 1);
        let (from, d) = (b.remote(0, 2000), b.mr.read(0, 2000));
        b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 300);
        assert_eq!(b.sent().len(), 1);
        b.ask(&[read(RQ, from)], &message(256, &d, |p, n, d| resp(p, n, 1, d), RQ));
        b.go(QpState::Reset);
    }
}
