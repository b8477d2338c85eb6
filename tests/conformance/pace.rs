//! Conformance cases: the rate limit of a queue pair.

use std::time::Duration;

use urxe::transport::{QpAttr, QpState, QpType, SendFlags, Sge, WcOpcode, WcStatus, WrOp};
use urxe::wire::{LKey, RKey};

use crate::bench::{Bench, RQ, SQ, bad, flushed, ok};
use crate::pkt::*;

fn limit(b: &mut Bench, kbps: u32) {
    b.modify(0, QpAttr { rate_limit: Some(kbps), ..QpAttr::default() }).unwrap();
}

/// Returns the number of packets sent in `micros` steps of one microsecond; the NIC may send only in response
/// to an expired deadline.
fn leaves(b: &mut Bench, micros: u32) -> usize {
    let mut n = 0;
    for _ in 0..micros {
        b.advance(Duration::from_micros(1));
        n += b.sent().len();
    }
    n
}

cases! {
    packets_are_sent_no_faster_than_rate_limit => "pace.rate" {
        // A packet has 256 bytes of data and 16 of headers and ICRC: 272 bytes, 21.76 us at 100 Mbit/s.
        let mut b = Bench::new();
        limit(&mut b, 100_000);
        b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 256 * 200);
        // The first burst is sent at once: the data of 100 us.
        assert_eq!(b.sent().len(), 4);
        let n = leaves(&mut b, 1000);
        assert!((44..=47).contains(&n), "{n} packets in a millisecond");
        let rest = leaves(&mut b, 10_000);
        assert_eq!(4 + n + rest, 200);
        b.peer(&[ack(SQ + 199, 1)]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 256 * 200)]);
    }

    rate_limit_applies_to_every_service => "pace.rate" {
        for qp_type in [QpType::Uc, QpType::Ud] {
            let mut b = Bench::with(|s| s.qp_type = qp_type);
            limit(&mut b, 1000);
            (0..10).for_each(|i| b.post(i, WrOp::Send, 0, 200));
            assert_eq!(b.sent().len(), 1);
            // 200 bytes and headers take about 1.8 ms at 1 Mbit/s.
            let n = leaves(&mut b, 10_000);
            assert!((5..=6).contains(&n), "{n} packets of {qp_type:?} in 10 ms");
            b.sends(&(0..1 + n as u64).map(|i| ok(i, WcOpcode::Send, 200)).collect::<Vec<_>>());
            b.go(QpState::Reset);
        }
    }

    unacknowledged_services_are_paced_without_rate_limit => "pace.unacknowledged" {
        for (qp_type, op) in [(QpType::Uc, WrOp::Write { va: 0, rkey: RKey(7) }), (QpType::Ud, WrOp::Send)] {
            // A window of 64 KiB per millisecond: a burst of 6553 bytes, in packets of 272 or 276 bytes.
            let mut b = Bench::with(|s| {
                (s.qp_type, s.tuning.window, s.tuning.pace_unacknowledged) = (qp_type, 64 * 1024, true);
            });
            (0..60).for_each(|i| b.post(i, op, 0, if qp_type == QpType::Uc { 256 * 10 } else { 256 }));
            let burst = b.sent().len();
            // A datagram is accounted with the port's MTU, 1024, since there must be room for one.
            let (first, in_all) = if qp_type == QpType::Uc { (25, 600) } else { (20, 60) };
            assert_eq!(burst, first, "{qp_type:?}");
            let n = burst + leaves(&mut b, 1000);
            assert!((220..=275).contains(&n) || n == in_all, "{n} packets of {qp_type:?} in a millisecond");
            assert_eq!(n + leaves(&mut b, 3000), in_all);
            assert_eq!(b.sent_kinds().len(), 60);
        }
    }

    stopped_send_queue_does_not_wait_for_the_pacer => "pace.rate" {
        // The second request fails while the third waits for the pacer: the QP goes to SQE (UC) or ERR (RC).
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

    missed_send_time_is_made_up_for_at_most_a_millisecond => "pace.rate" {
        let mut b = Bench::new();
        limit(&mut b, 100_000);
        b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 256 * 250);
        assert_eq!(b.sent().len(), 4);
        // The NIC is not served for a second, of which at most a millisecond counts.
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

    pacing_deadline_served_late_is_cleared => "pace.rate" {
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

    changed_rate_limit_takes_effect_and_0_lifts_it => "pace.change" {
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

    responses_are_not_rate_limited => "pace.answers" {
        let mut b = Bench::new();
        limit(&mut b, 1);
        let (from, d) = (b.remote(0, 2000), b.mr.read(0, 2000));
        b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 300);
        assert_eq!(b.sent().len(), 1);
        b.ask(&[read(RQ, from)], &message(256, &d, |p, n, d| resp(p, n, 1, d), RQ));
        b.go(QpState::Reset);
    }
}
