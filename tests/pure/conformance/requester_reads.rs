//! Conformance cases: the requester's handling of READ and atomic responses that are lost, late, wrong or
//! duplicated.

use std::time::Duration;

use urxe::memory::AtomicOp;
use urxe::transport::{QpState, SendFlags, WcOpcode, WcStatus, WrOp};
use urxe::wire::RKey;

use crate::bench::{Bench, SQ, Setup, Wc, bad, flushed, ok};
use crate::pkt::*;

const ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
const VA: u64 = 0x1_0000_0000;
const KEY: RKey = RKey(0x4321);

/// Returns a bench with a READ of 900 bytes (PSNs SQ to SQ + 3) in flight, and the packets of its response.
fn read_in_flight(change: impl FnOnce(&mut Setup)) -> (Bench, Vec<Pkt>) {
    let mut b = Bench::with(change);
    b.post(1, WrOp::Read { va: VA, rkey: KEY }, 0, 900);
    b.expect(&[read(SQ, (VA, KEY, 900))]);
    (b, message(256, &data(), |p, n, d| resp(p, n, 1, d), SQ))
}

fn data() -> Vec<u8> {
    (0..900u32).map(|i| (i / 3) as u8 ^ 0xa5).collect()
}

/// Returns the READ request that resumes the READ at response packet `at`.
fn remainder(at: u32) -> Pkt {
    read(SQ + at, (VA + 256 * at as u64, KEY, 900 - 256 * at))
}

fn completed() -> Wc {
    ok(1, WcOpcode::RdmaRead, 900)
}

cases! {
    read_responses_are_stored_in_order => "req.read" {
        let (mut b, a) = read_in_flight(|_| {});
        for (i, p) in a.iter().enumerate() {
            b.sends(&[]);
            assert_eq!(b.mr.read(256 * i, 1), [urxe_test_support::engine::pattern(256 * i as u64)]);
            b.exchange(std::slice::from_ref(p), &[]);
        }
        b.sends(&[completed()]);
        assert_eq!(b.mr.read(0, 900), data());
        assert_eq!(b.mr.read(900, 1), [urxe_test_support::engine::pattern(900)]);
        b.advance(10 * ACK_TIMEOUT);
    }

    read_responses_fill_several_sges => "req.read" {
        let mut b = Bench::new();
        let sges = [b.mr.sge(2000, 100), b.mr.sge(0, 0), b.mr.sge(4000, 500), b.mr.sge(1, 300)];
        b.post_sges(1, WrOp::Read { va: VA, rkey: KEY }, &sges, SendFlags::SIGNALED).unwrap();
        b.expect(&[read(SQ, (VA, KEY, 900))]);
        b.exchange(&message(256, &data(), |p, n, d| resp(p, n, 1, d), SQ), &[]);
        b.sends(&[completed()]);
        let got = [b.mr.read(2000, 100), b.mr.read(4000, 500), b.mr.read(1, 300)].concat();
        assert_eq!(got, data());
    }

    read_of_length_0_completes => "req.read" {
        let mut b = Bench::new();
        b.post(1, WrOp::Read { va: VA, rkey: KEY }, 0, 0);
        b.expect(&[read(SQ, (VA, KEY, 0))]);
        b.exchange(&[resp(Only, SQ, 1, &[])], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 0)]);
    }

    read_response_acknowledges_earlier_requests => "req.read.acks" {
        let mut b = Bench::new();
        b.post(1, WrOp::Send, 0, 300);
        b.post(2, WrOp::Read { va: VA, rkey: KEY }, 0, 8);
        b.post(3, WrOp::Send, 0, 1);
        b.post(4, WrOp::Atomic { va: VA, rkey: KEY, op: AtomicOp::FetchAdd(1) }, 8, 8);
        assert_eq!(b.sent().len(), 5);
        b.exchange(&[resp(Only, SQ + 2, 2, &[1; 8])], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 300), ok(2, WcOpcode::RdmaRead, 8)]);
        b.exchange(&[atomic_ack(SQ + 4, 4, 1)], &[]);
        b.sends(&[ok(3, WcOpcode::Send, 1), ok(4, WcOpcode::FetchAdd, 8)]);
    }

    missing_read_response_is_requested_again_only_once => "req.read.gap" {
        let (mut b, a) = read_in_flight(|_| {});
        b.exchange(&a[..1], &[]);
        b.exchange(&a[2..3], &[remainder(1)]);
        b.exchange(&a[3..], &[]);
        assert_eq!(b.count().implied_nak_seq_err, 1);
        b.sends(&[]);
        let rest = message(256, &data()[256..], |p, n, d| resp(p, n, 1, d), SQ + 1);
        b.exchange(&rest, &[]);
        b.sends(&[completed()]);
        assert_eq!(b.mr.read(0, 900), data());
    }

    gap_in_read_responses_that_was_already_requested_uses_up_no_retry => "req.nak.duplicate" {
        let (mut b, a) = read_in_flight(|s| s.retry_cnt = 1);
        b.advance(ACK_TIMEOUT);
        // The timeout has used the only retry; a response to the first request arrives before one to the
        // second.
        b.exchange(&a[1..2], &[remainder(0)]);
        b.exchange(&a, &[]);
        b.sends(&[completed()]);
    }

    retransmitted_read_uses_one_slot_of_max_rd_atomic => "req.depth" {
        let (mut b, a) = read_in_flight(|s| s.max_rd = 1);
        b.advance(ACK_TIMEOUT);
        b.expect(&[remainder(0)]);
        b.exchange(&a, &[]);
        b.sends(&[completed()]);
    }

    missing_first_read_response_triggers_retransmission_of_the_read => "req.read.gap" {
        let (mut b, a) = read_in_flight(|_| {});
        b.exchange(&a[1..2], &[remainder(0)]);
        b.exchange(&a, &[]);
        b.sends(&[completed()]);
    }

    ack_beyond_a_read_triggers_retransmission_of_the_read => "req.read.implied_nak" {
        let mut b = Bench::new();
        b.post(1, WrOp::Send, 0, 1);
        b.post(2, WrOp::Read { va: VA, rkey: KEY }, 8, 300);
        b.post(3, WrOp::Send, 0, 1);
        let all = b.sent();
        b.exchange(&[ack(SQ + 3, 3)], &all[1..]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
        assert_eq!(b.count().implied_nak_seq_err, 1);
        // A second one does not trigger another retransmission.
        b.exchange(&[ack(SQ + 3, 3)], &[]);
        let responses = message(256, &[1; 300], |p, n, d| resp(p, n, 2, d), SQ + 1);
        b.exchange(&responses, &[]);
        b.exchange(&[ack(SQ + 3, 3)], &[]);
        b.sends(&[ok(2, WcOpcode::RdmaRead, 300), ok(3, WcOpcode::Send, 1)]);
    }

    ack_beyond_an_atomic_triggers_retransmission_of_the_atomic => "req.read.implied_nak" {
        let mut b = Bench::with(|s| s.retry_cnt = 1);
        b.post(1, WrOp::Atomic { va: VA, rkey: KEY, op: AtomicOp::FetchAdd(1) }, 8, 8);
        b.post(2, WrOp::Send, 0, 1);
        let all = b.sent();
        b.exchange(&[ack(SQ + 1, 2)], &all);
        b.exchange(&[atomic_ack(SQ, 1, 7), ack(SQ + 1, 2)], &[]);
        b.sends(&[ok(1, WcOpcode::FetchAdd, 8), ok(2, WcOpcode::Send, 1)]);
        assert_eq!(b.mr.read(8, 8), 7u64.to_ne_bytes());
    }

    response_of_a_later_read_triggers_retransmission_of_the_earlier_one => "req.read.implied_nak" {
        let (mut b, a) = read_in_flight(|_| {});
        b.post(2, WrOp::Read { va: VA, rkey: KEY }, 1000, 8);
        let second = read(SQ + 4, (VA, KEY, 8));
        b.expect(std::slice::from_ref(&second));
        b.exchange(&a[..2], &[]);
        b.exchange(&[resp(Only, SQ + 4, 2, &[1; 8])], &[remainder(2), second]);
        let rest = message(256, &data()[512..], |p, n, d| resp(p, n, 1, d), SQ + 2);
        b.exchange(&rest, &[]);
        b.exchange(&[resp(Only, SQ + 4, 2, &[1; 8])], &[]);
        b.sends(&[completed(), ok(2, WcOpcode::RdmaRead, 8)]);
    }

    only_the_remainder_of_a_read_is_requested_after_the_ack_timeout => "req.read.remainder" {
        let (mut b, a) = read_in_flight(|_| {});
        b.exchange(&a[..1], &[]);
        b.advance(ACK_TIMEOUT);
        b.expect(&[remainder(1)]);
        // As in the specification: the response to a remainder is a message of its own and begins with FIRST.
        b.exchange(&message(256, &data()[256..], |p, n, d| resp(p, n, 1, d), SQ + 1), &[]);
        b.sends(&[completed()]);
        assert_eq!(b.mr.read(0, 900), data());
    }

    response_to_the_remainder_of_a_read_may_lack_a_first_packet => "req.read.middle_first" {
        // The response of rxe consists of MIDDLE and LAST.
        let (mut b, a) = read_in_flight(|_| {});
        b.exchange(&a[..1], &[]);
        b.advance(ACK_TIMEOUT);
        b.expect(&[remainder(1)]);
        b.exchange(&a[1..], &[]);
        b.sends(&[completed()]);
        assert_eq!(b.mr.read(0, 900), data());
    }

    each_read_response_restarts_ack_timeout_and_retry_count => "req.read.progress" {
        // The limit of the probe interval is raised, so that only the ACK timeout acts.
        let (mut b, a) = read_in_flight(|s| (s.retry_cnt, s.tuning.max_ack_silence) = (1, 9 * ACK_TIMEOUT));
        for i in 1..4 {
            b.exchange(&a[i - 1..i], &[]);
            b.advance(ACK_TIMEOUT - Duration::from_nanos(1));
            b.expect_nothing();
            b.advance(Duration::from_nanos(1));
            b.expect(&[remainder(i as u32)]);
        }
        b.exchange(&a[3..], &[]);
        b.sends(&[completed()]);
    }

    duplicate_read_responses_are_dropped => "req.read.dup" {
        let (mut b, a) = read_in_flight(|_| {});
        b.exchange(&a[..2], &[]);
        b.mr.write(0, &[0; 900]);
        b.exchange(&a[..2], &[]);
        assert_eq!(b.mr.read(0, 512), [0; 512]);
        assert_eq!(b.count().unexpected_response, 2);
        b.exchange(&a[2..], &[]);
        b.sends(&[completed()]);
    }

    read_response_of_wrong_length_fails_the_read => "req.read.length" {
        for (i, n) in [(0, 255), (0, 0), (0, 260), (3, 131), (3, 133), (3, 256)] {
            let (mut b, mut a) = read_in_flight(|_| {});
            b.post(2, WrOp::Send, 0, 1);
            assert_eq!(b.sent().len(), 1);
            a[i].data = vec![9; n];
            b.exchange(&a[..i + 1], &[]);
            b.sends(&[bad(1, WcStatus::BadRespErr), flushed(2)]);
            b.state(QpState::Err);
            assert_ne!(b.mr.read(256 * i, 4), [9; 4]);
        }
    }

    ack_without_read_response_does_not_complete_a_read => "req.read.ack_only" {
        let (mut b, a) = read_in_flight(|_| {});
        b.exchange(&[ack(SQ + 3, 1)], &[remainder(0)]);
        b.sends(&[]);
        b.exchange(&a, &[]);
        b.sends(&[completed()]);
    }

    local_buffer_of_a_read_is_checked_when_the_response_arrives => "req.read.protection" {
        let mut b = Bench::new();
        let r = b.region(urxe_test_support::engine::PD, 600, 0, urxe::memory::Access::ALL);
        let sge = [b.regions[r].sge(0, 600)];
        b.post_sges(1, WrOp::Read { va: VA, rkey: KEY }, &sge, SendFlags::SIGNALED).unwrap();
        assert_eq!(b.sent().len(), 1);
        b.exchange(&[resp(First, SQ, 1, &[1; 256])], &[]);
        b.memory.deregister(sge[0].lkey).unwrap();
        b.exchange(&[resp(Middle, SQ + 1, 1, &[1; 256])], &[]);
        b.sends(&[bad(1, WcStatus::LocProtErr)]);
        assert_eq!(b.regions[r].read(256, 1), [urxe_test_support::engine::pattern(256)]);
        // Read-only memory is no valid sink for READs and atomics.
        for op in
            [WrOp::Read { va: VA, rkey: KEY }, WrOp::Atomic { va: VA, rkey: KEY, op: AtomicOp::FetchAdd(1) }]
        {
            let mut b = Bench::new();
            let r = b.region(urxe_test_support::engine::PD, 8, 0, urxe::memory::Access::LOCAL_READ);
            let sge = [b.regions[r].sge(0, 8)];
            b.post_sges(1, op, &sge, SendFlags::SIGNALED).unwrap();
            assert_eq!(b.sent().len(), 1);
            let read = matches!(op, WrOp::Read { .. });
            b.exchange(&[if read { resp(Only, SQ, 1, &[1; 8]) } else { atomic_ack(SQ, 1, 1) }], &[]);
            b.sends(&[bad(1, WcStatus::LocProtErr)]);
            assert_eq!(b.regions[r].read(1, 1), [urxe_test_support::engine::pattern(1)]);
        }
    }
}
