//! Conformance cases: the rate limit of a queue pair.

use std::time::Duration;

use urxe::transport::{QpAttr, QpState, QpType, SendFlags, Sge, WcOpcode, WcStatus, WrOp};
use urxe::wire::{LKey, RKey};

use crate::bench::{Bench, RQ, SQ, bad, flushed, ok};
use crate::pkt::*;

fn set_rate_limit(b: &mut Bench, kbps: u32) {
    b.modify(0, QpAttr::default().rate_limit(kbps)).unwrap();
}

/// Advances the clock by `micros` microseconds in steps of one, lets the NIC transmit after each, and returns
/// the number of packets sent.
fn sent_within(b: &mut Bench, micros: u32) -> usize {
    let mut n = 0;
    for _ in 0..micros {
        b.advance(Duration::from_micros(1));
        n += b.sent().len();
    }
    n
}

cases! {
    packets_are_sent_no_faster_than_rate_limit => "pacer.rate" {
        // A packet has 256 bytes of data and 16 of headers and ICRC: 272 bytes, 21.76 us at 100 Mbit/s.
        let mut b = Bench::new();
        set_rate_limit(&mut b, 100_000);
        b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 256 * 200);
        // The first burst is sent at once: the data of 100 us.
        assert_eq!(b.sent().len(), 4);
        let n = sent_within(&mut b, 1000);
        assert!((44..=47).contains(&n), "{n} packets in a millisecond");
        let rest = sent_within(&mut b, 10_000);
        assert_eq!(4 + n + rest, 200);
        b.deliver(&[ack(SQ + 199, 1)]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 256 * 200)]);
    }

    rate_limit_applies_to_every_service => "pacer.rate" {
        for qp_type in [QpType::Uc, QpType::Ud] {
            let mut b = Bench::with(|s| s.qp_type = qp_type);
            set_rate_limit(&mut b, 1000);
            (0..10).for_each(|i| b.post(i, WrOp::Send, 0, 200));
            assert_eq!(b.sent().len(), 1);
            // 200 bytes and headers take about 1.8 ms at 1 Mbit/s.
            let n = sent_within(&mut b, 10_000);
            assert!((5..=6).contains(&n), "{n} packets of {qp_type:?} in 10 ms");
            b.sends(&(0..1 + n as u64).map(|i| ok(i, WcOpcode::Send, 200)).collect::<Vec<_>>());
            b.set_state(QpState::Reset);
        }
    }

    unacknowledged_services_are_paced_even_without_a_rate_limit => "pacer.unacknowledged" {
        for (qp_type, op) in [(QpType::Uc, WrOp::Write { va: 0, rkey: RKey(7) }), (QpType::Ud, WrOp::Send)] {
            // A window of 64 KiB per millisecond: a burst of 6553 bytes, in packets of 272 or 276 bytes.
            let mut b = Bench::with(|s| {
                (s.qp_type, s.tuning.window, s.tuning.pace_unacknowledged) = (qp_type, 64 * 1024, true);
            });
            (0..60).for_each(|i| b.post(i, op, 0, if qp_type == QpType::Uc { 256 * 10 } else { 256 }));
            let burst = b.sent().len();
            // A datagram is charged with the port's MTU, 1024, as the burst must have space for one.
            let (first, total) = if qp_type == QpType::Uc { (25, 600) } else { (20, 60) };
            assert_eq!(burst, first, "{qp_type:?}");
            let n = burst + sent_within(&mut b, 1000);
            assert!((220..=275).contains(&n) || n == total, "{n} packets of {qp_type:?} in a millisecond");
            assert_eq!(n + sent_within(&mut b, 3000), total);
            assert_eq!(b.sent_opcodes().len(), 60);
        }
    }

    rate_below_a_packet_per_ack_silence_causes_no_probe => "pacer.rate" {
        // A packet takes 2.2 ms, but 1 ms after one without AckReq a probe is due, which the next packet replaces.
        let mut b = Bench::with(|s| s.timeout = 20);
        set_rate_limit(&mut b, 1000);
        b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 256 * 10);
        let mut sent = b.sent();
        for _ in 0..25_000 {
            b.advance(Duration::from_micros(1));
            sent.extend(b.sent());
        }
        let sent: Vec<_> = sent.iter().map(|p| (p.h.bth.psn.get(), p.h.bth.ack_req)).collect();
        let expected: Vec<_> = (0..10).map(|n| (SQ + n, n % 2 == 1)).collect();
        assert_eq!(sent, expected);
        assert_eq!((b.count().ack_probe, b.count().retransmitted_pkts), (0, 0));
        b.deliver(&[ack(SQ + 9, 1)]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 256 * 10)]);
    }

    paced_packets_are_sent_while_packets_keep_arriving => "pacer.rate" {
        let mut b = Bench::with(|s| s.qp_type = QpType::Uc);
        set_rate_limit(&mut b, 1000);
        (0..2).for_each(|i| b.post(i, WrOp::Send, 0, 200));
        assert_eq!(b.sent().len(), 1);
        b.now = b.nic.next_deadline().unwrap();
        b.nic.handle_timeouts_unless_deferred(b.now, true, &b.memory, &mut b.tx);
        assert_eq!(b.sent().len(), 1);
        b.sends(&[ok(0, WcOpcode::Send, 200), ok(1, WcOpcode::Send, 200)]);
        b.set_state(QpState::Reset);
    }

    failed_send_queue_is_flushed_without_waiting_for_the_pacer => "pacer.rate" {
        // The second request fails while the third waits for the pacer: the QP enters SQE (UC) or ERR (RC).
        for qp_type in [QpType::Uc, QpType::Rc] {
            let mut b = Bench::with(|s| s.qp_type = qp_type);
            set_rate_limit(&mut b, 1000);
            b.post(1, WrOp::Send, 0, 200);
            let invalid = Sge { lkey: LKey(77), ..b.mr.sge(0, 200) };
            b.post_sges(2, WrOp::Send, &[invalid], SendFlags::SIGNALED).unwrap();
            b.post(3, WrOp::Send, 0, 200);
            assert_eq!(b.sent().len(), 1);
            b.deliver(&[ack(SQ, 1)]);
            assert_eq!(sent_within(&mut b, 10_000), 0);
            b.sends(&[ok(1, WcOpcode::Send, 200), bad(2, WcStatus::LocProtErr), flushed(3)]);
            b.state(if qp_type == QpType::Uc { QpState::Sqe } else { QpState::Err });
            b.advance(Duration::from_secs(1));
            b.deliver(&[]);
        }
    }

    pacer_catches_up_on_at_most_a_millisecond_of_missed_send_time => "pacer.rate" {
        let mut b = Bench::new();
        set_rate_limit(&mut b, 100_000);
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
        assert!((46..=56).contains(&n), "{n} packets in one burst");
        b.set_state(QpState::Reset);
    }

    pacing_deadline_is_cleared_even_if_it_is_served_late => "pacer.rate" {
        let mut b = Bench::with(|s| s.qp_type = QpType::Uc);
        set_rate_limit(&mut b, 1000);
        (0..3).for_each(|i| b.post(i, WrOp::Send, 0, 200));
        assert_eq!(b.sent().len(), 1);
        let due = b.nic.next_deadline().unwrap();
        b.now = due + Duration::from_micros(1);
        b.nic.handle_timeouts(b.now, &b.memory, &mut b.tx);
        assert_eq!(b.nic.next_deadline(), None);
        assert_eq!(b.sent().len(), 1);
        assert!(b.nic.next_deadline().is_some_and(|next| next > b.now));
        b.sends(&[ok(0, WcOpcode::Send, 200), ok(1, WcOpcode::Send, 200)]);
        b.set_state(QpState::Reset);
    }

    changed_rate_limit_takes_effect_and_0_lifts_it => "pacer.change" {
        let mut b = Bench::new();
        set_rate_limit(&mut b, 1000);
        let rate = |b: &Bench| b.nic.query_qp(b.qpns[0]).unwrap().0.rate_limit;
        assert_eq!(rate(&b), Some(1000));
        b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 256 * 100);
        assert_eq!(b.sent().len(), 1);
        set_rate_limit(&mut b, 0);
        assert_eq!(b.sent().len(), 99);
        b.deliver(&[ack(SQ + 99, 1)]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 256 * 100)]);
        set_rate_limit(&mut b, 1000);
        b.set_state(QpState::Reset);
        assert_eq!(rate(&b), Some(0));
    }

    responses_are_not_rate_limited => "pacer.responses" {
        let mut b = Bench::new();
        set_rate_limit(&mut b, 1);
        let (from, d) = (b.remote(0, 2000), b.mr.read(0, 2000));
        b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 300);
        assert_eq!(b.sent().len(), 1);
        b.exchange(&[read(RQ, from)], &message(256, &d, |p, n, d| resp(p, n, 1, d), RQ));
        b.set_state(QpState::Reset);
    }
}
