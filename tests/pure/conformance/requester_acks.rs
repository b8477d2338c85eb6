//! Conformance cases: the requester's handling of acknowledgements, its window, retransmission timers and
//! go-back-N.

use std::time::Duration;

use urxe::transport::{QpState, SendFlags, WcOpcode, WcStatus, WrOp};
use urxe::wire::{NakCode, Position::Only, RKey, RnrTimer, Syndrome};

use crate::bench::{Bench, SQ, Setup, bad, flushed, ok};
use crate::pkt::*;

const ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
const NS: Duration = Duration::from_nanos(1);

/// Returns a bench with three SENDs of 300, 1 and 600 bytes (PSNs SQ to SQ + 5) in flight, and their packets.
fn three_in_flight(change: impl FnOnce(&mut Setup)) -> (Bench, Vec<Pkt>) {
    let mut b = Bench::with(change);
    let (psn, mut all) = (b.first_psn(), Vec::new());
    for (i, (n, at)) in [(300, 0), (1, 2), (600, 3)].into_iter().enumerate() {
        let offset = 1000 * i;
        b.post(i as u64 + 1, WrOp::Send, offset, n);
        let d = b.mr.read(offset, n as usize);
        all.extend(message(256, &d, send, (psn + at) & 0xff_ffff));
    }
    b.expect(&all);
    (b, all)
}

const SENDS: [(u64, u32); 3] = [(1, 300), (2, 1), (3, 600)];

fn completed(i: usize) -> crate::bench::Wc {
    ok(SENDS[i].0, WcOpcode::Send, SENDS[i].1)
}

cases! {
    ack_completes_all_requests_up_to_its_psn => "req.ack.cumulative" {
        let (mut b, _) = three_in_flight(|_| {});
        b.exchange(&[ack(SQ + 2, 2)], &[]);
        b.sends(&[completed(0), completed(1)]);
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(2)]);
        b.advance(10 * ACK_TIMEOUT);
    }

    ack_psn_wraps_at_24_bits => "req.ack.cumulative" {
        let (mut b, _) = three_in_flight(|s| s.sq_psn = 0xff_fffd);
        b.exchange(&[ack(0xff_ffff, 2)], &[]);
        b.sends(&[completed(0), completed(1)]);
        b.exchange(&[ack(2, 3)], &[]);
        b.sends(&[completed(2)]);
    }

    ack_inside_a_message_advances_oldest_unacknowledged_psn => "req.ack.partial" {
        let (mut b, all) = three_in_flight(|_| {});
        b.exchange(&[ack(SQ + 4, 2)], &[]);
        b.sends(&[completed(0), completed(1)]);
        // Only the unacknowledged rest is retransmitted.
        b.advance(ACK_TIMEOUT);
        b.expect(&all[5..]);
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(2)]);
    }

    credits_and_msn_of_ack_are_ignored => "req.ack.fields" {
        let (mut b, _) = three_in_flight(|_| {});
        b.exchange(&[aeth(SQ + 1, 77, Syndrome::Ack { credits: 0 })], &[]);
        b.exchange(&[aeth(SQ + 2, 0, Syndrome::Ack { credits: 9 })], &[]);
        b.sends(&[completed(0), completed(1)]);
        b.exchange(&[ack(SQ + 5, 0)], &[]);
        b.sends(&[completed(2)]);
    }

    acks_of_unsent_and_acknowledged_psns_are_dropped => "req.ack.unsent" {
        let (mut b, _) = three_in_flight(|_| {});
        b.post(4, WrOp::Send, 0, 1);
        // PSNs that were never sent: one beyond, far beyond, half the space away. (The fourth SEND is posted
        // but not sent yet.)
        for psn in [SQ + 6, SQ + 1000, SQ + (1 << 23), SQ - 1] {
            b.deliver(&[ack(psn, 1)]);
        }
        b.sends(&[]);
        assert_eq!(b.count().unexpected_response, 4);
        assert_eq!(b.sent().len(), 1);
        b.exchange(&[ack(SQ + 2, 1)], &[]);
        b.sends(&[completed(0), completed(1)]);
        // Stale acknowledgements of every kind.
        let stale = [
            ack(SQ, 1),
            nak(SQ + 1, 1, NakCode::PsnSequenceError),
            nak(SQ + 2, 1, NakCode::RemoteAccessError),
            rnr(SQ + 2, 1, 1),
            resp(Only, SQ, 1, &[]),
            atomic_ack(SQ, 1, 1),
        ];
        b.exchange(&stale, &[]);
        b.state(QpState::Rts);
        b.exchange(&[ack(SQ + 6, 4)], &[]);
        b.sends(&[completed(2), ok(4, WcOpcode::Send, 1)]);
    }

    responses_with_reserved_syndromes_are_dropped => "req.ack.reserved" {
        let (mut b, _) = three_in_flight(|_| {});
        for low in [0, 1, 31] {
            b.exchange(&[aeth(SQ + 5, 3, Syndrome::Reserved(low))], &[]);
        }
        b.sends(&[]);
        b.exchange(&[nak(SQ, 3, NakCode::Reserved(5))], &[]);
        b.state(QpState::Rts);
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(0), completed(1), completed(2)]);
    }

    reserved_nak_code_acknowledges_nothing => "req.ack.reserved" {
        let (mut b, _) = three_in_flight(|_| {});
        b.exchange(&[nak(SQ + 5, 3, NakCode::Reserved(5))], &[]);
        b.sends(&[]);
        assert_eq!(b.count().unexpected_response, 1);
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(0), completed(1), completed(2)]);
    }

    response_of_the_wrong_kind_does_not_complete_the_request => "req.ack.kind" {
        let mut b = Bench::new();
        b.post(1, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 1);
        b.exchange(&[resp(Only, SQ, 1, &[1]), atomic_ack(SQ, 1, 5)], &[]);
        b.sends(&[]);
        assert_eq!(b.count().unexpected_response, 2);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
    }

    ackreq_is_set_on_last_packet_and_once_per_quarter_of_the_window => "req.ackreq" {
        // Each packet is charged as 1024 bytes, like all short packets; a quarter of the window is two of
        // them.
        let mut b = Bench::with(|s| s.tuning.window = 8 * 1024);
        b.post(1, WrOp::Send, 0, 12 * 256);
        let ackreqs = |p: &[Pkt]| p.iter().map(|p| p.h.bth.ack_req as u8).collect::<Vec<_>>();
        let first = b.sent();
        assert_eq!(ackreqs(&first), [0, 1, 0, 1, 0, 1, 0, 1]);
        b.deliver(&[ack(SQ + 7, 0)]);
        assert_eq!(ackreqs(&b.sent()), [0, 1, 0, 1]);
        b.exchange(&[ack(SQ + 11, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 12 * 256)]);
    }

    packet_that_fills_the_window_carries_ackreq => "req.ackreq" {
        // 70 packets: AckReq is on every 16th and on the last one that fits, and on no other.
        let mut b = Bench::with(|s| s.tuning.window = 70 * 1024);
        b.post(1, WrOp::Send, 0, 100 * 256);
        let ackreqs =
            |p: &[Pkt]| (0..).zip(p).filter(|(_, p)| p.h.bth.ack_req).map(|(i, _)| i).collect::<Vec<_>>();
        let first = b.sent();
        assert_eq!((first.len(), ackreqs(&first)), (70, vec![15, 31, 47, 63, 69]));
        b.deliver(&[ack(SQ + 69, 0)]);
        assert_eq!(ackreqs(&b.sent()), [9, 25, 29]);
        b.exchange(&[ack(SQ + 99, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 100 * 256)]);
    }

    unexpected_responses_and_completed_messages_are_counted => "req.ack.reserved" {
        let mut b = Bench::new();
        (0..3).for_each(|i| b.post(i, WrOp::Send, 0, 1));
        b.sent();
        let unexpected = [
            aeth(SQ, 0, Syndrome::Reserved(3)),
            nak(SQ, 0, NakCode::Reserved(9)),
            atomic_ack(SQ, 0, 7),
            resp(Only, SQ, 0, &[1]),
            ack(SQ + 3, 9),
            ack(SQ - 1, 9),
        ];
        for (n, packet) in (1..).zip(unexpected) {
            b.exchange(&[packet], &[]);
            assert_eq!((b.count().unexpected_response, b.count().rdma_sends), (n, 0));
        }
        b.exchange(&[ack(SQ + 1, 2)], &[]);
        assert_eq!(b.count().rdma_sends, 2);
        b.exchange(&[ack(SQ + 2, 3)], &[]);
        b.sends(&(0..3).map(|i| ok(i, WcOpcode::Send, 1)).collect::<Vec<_>>());
        assert_eq!((b.count().rdma_sends, b.count().unexpected_response), (3, 6));
    }

    full_window_blocks_sending_until_packets_are_acked => "req.window" {
        let mut b = Bench::with(|s| s.tuning.window = 3 * 1024);
        for i in 0..5 {
            b.post(i, WrOp::Send, 0, 256);
        }
        assert_eq!(b.sent().len(), 3);
        b.deliver(&[ack(SQ, 1)]);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack(SQ + 3, 4)]);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack(SQ + 4, 5)]);
        b.sends(&(0..5).map(|i| ok(i, WcOpcode::Send, 256)).collect::<Vec<_>>());
        // READs are charged with the length of their response; one that exceeds the window is sent alone.
        let (va, rkey) = (0, RKey(1));
        b.post(1, WrOp::Read { va, rkey }, 0, 256 * 4);
        b.post(2, WrOp::Send, 0, 1);
        b.expect(&[read(SQ + 5, (va, rkey, 1024))]);
        let responses = message(256, &[1; 1024], |p, n, d| resp(p, n, 6, d), SQ + 5);
        b.exchange(&responses[..1], &[]);
        b.deliver(&responses[1..]);
        assert_eq!(b.sent().len(), 1);
        b.exchange(&[ack(SQ + 9, 7)], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 1024), ok(2, WcOpcode::Send, 1)]);
    }

    ack_timeout_expires_on_time_and_triggers_go_back_n_from_the_oldest_packet => "req.timeout" {
        let (mut b, all) = three_in_flight(|s| s.retry_cnt = 7);
        b.advance(ACK_TIMEOUT - NS);
        b.expect_nothing();
        b.advance(NS);
        b.expect(&all);
        assert_eq!(b.count().local_ack_timeout_err, 1);
        // After the first timeout the interval is half as long again.
        for _ in 0..3 {
            b.advance(ACK_TIMEOUT * 3 / 2 - NS);
            b.expect_nothing();
            b.advance(NS);
            b.expect(&all);
        }
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(0), completed(1), completed(2)]);
        b.advance(20 * ACK_TIMEOUT);
    }

    progress_restarts_the_ack_timeout => "req.timeout" {
        let (mut b, all) = three_in_flight(|_| {});
        b.advance(ACK_TIMEOUT - NS);
        b.exchange(&[ack(SQ + 2, 2)], &[]);
        b.advance(ACK_TIMEOUT - NS);
        b.expect_nothing();
        b.advance(NS);
        b.expect(&all[3..]);
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(0), completed(1), completed(2)]);
    }

    ack_timeout_0_never_expires => "req.timeout" {
        let (mut b, _) = three_in_flight(|s| s.timeout = 0);
        b.advance(Duration::from_secs(10_000));
        b.expect_nothing();
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(0), completed(1), completed(2)]);
    }

    request_fails_after_the_last_retry => "req.retry.exceeded" {
        for retries in [0, 1, 3, 7] {
            // The window holds all packets however often it is reduced.
            let (mut b, all) = three_in_flight(|s| (s.retry_cnt, s.tuning.window) = (retries, 8 << 20));
            let time = |expiries: u32| if expiries == 0 { ACK_TIMEOUT } else { ACK_TIMEOUT * 3 / 2 };
            for expiries in 0..retries {
                b.advance(time(expiries.into()));
                b.expect(&all);
            }
            b.advance(time(retries.into()) - NS);
            b.sends(&[]);
            b.state(QpState::Rts);
            b.advance(NS);
            b.expect_nothing();
            b.sends(&[bad(1, WcStatus::RetryExcErr), flushed(2), flushed(3)]);
            b.state(QpState::Err);
            assert_eq!(b.count().retry_exceeded_err, 1);
            b.advance(20 * ACK_TIMEOUT);
        }
    }

    retry_exhaustion_takes_at_most_one_and_a_half_times_the_nominal_time => "req.retry.exceeded" {
        for retries in [0, 1, 2, 5, 7] {
            let (mut b, _) = three_in_flight(|s| s.retry_cnt = retries);
            // In eighths of the timeout: the nominal time is timeout × (retries + 1).
            let nominal = 8 * (u32::from(retries) + 1);
            for elapsed in 1..=nominal * 3 / 2 {
                b.advance(ACK_TIMEOUT / 8);
                b.sent();
                if elapsed == nominal - 1 {
                    b.state(QpState::Rts);
                }
            }
            b.state(QpState::Err);
            b.sends(&[bad(1, WcStatus::RetryExcErr), flushed(2), flushed(3)]);
        }
    }

    progress_restores_transport_retries => "req.retry.reset" {
        let (mut b, all) = three_in_flight(|s| s.retry_cnt = 1);
        b.advance(ACK_TIMEOUT);
        b.expect(&all);
        b.exchange(&[ack(SQ, 0)], &[]);
        b.advance(ACK_TIMEOUT);
        b.expect(&all[1..]);
        // An acknowledgement without progress: the retries are used up.
        b.exchange(&[ack(SQ, 0)], &[]);
        b.advance(2 * ACK_TIMEOUT);
        b.sends(&[bad(1, WcStatus::RetryExcErr), flushed(2), flushed(3)]);
    }

    sequence_nak_triggers_retransmission_from_its_psn => "req.nak.sequence" {
        let (mut b, all) = three_in_flight(|_| {});
        b.exchange(&[nak(SQ + 3, 2, NakCode::PsnSequenceError)], &all[3..]);
        b.sends(&[completed(0), completed(1)]);
        b.exchange(&[nak(SQ + 4, 2, NakCode::PsnSequenceError)], &all[4..]);
        assert_eq!((b.count().rcvd_seq_err, b.count().requester_retry), (2, 2));
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(2)]);
    }

    sequence_naks_without_progress_use_up_retries => "req.nak.sequence" {
        let (mut b, all) = three_in_flight(|s| s.retry_cnt = 2);
        for _ in 0..2 {
            b.exchange(&[nak(SQ, 0, NakCode::PsnSequenceError)], &all);
        }
        b.exchange(&[nak(SQ, 0, NakCode::PsnSequenceError)], &[]);
        b.sends(&[bad(1, WcStatus::RetryExcErr), flushed(2), flushed(3)]);
    }

    duplicated_sequence_nak_uses_up_one_retry => "req.nak.duplicate" {
        let (mut b, all) = three_in_flight(|s| s.retry_cnt = 1);
        let n = nak(SQ, 0, NakCode::PsnSequenceError);
        b.exchange(&[n.clone(), n.clone(), n], &all);
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(0), completed(1), completed(2)]);
    }

    acks_of_first_transmission_are_accepted_after_go_back_n => "req.ack.retransmission" {
        let (mut b, all) = three_in_flight(|s| s.tuning.turn = 1);
        b.deliver(&[nak(SQ, 0, NakCode::PsnSequenceError)]);
        // Acknowledgements of the first transmission arrive before the retransmission: part of it has
        // arrived.
        b.exchange(&[ack(SQ + 3, 2)], &all[4..]);
        b.sends(&[completed(0), completed(1)]);
        b.advance(ACK_TIMEOUT);
        // All of it has arrived: nothing is left to retransmit.
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(2)]);
        b.advance(ACK_TIMEOUT);
    }

    rnr_nak_triggers_retransmission_from_its_psn_after_the_rnr_timer => "req.rnr" {
        for code in [1, 12, 31, 0] {
            let (mut b, all) = three_in_flight(|s| s.timeout = 0);
            b.exchange(&[rnr(SQ + 2, 1, code)], &[]);
            b.sends(&[completed(0)]);
            b.post(4, WrOp::Send, 0, 1);
            b.expect_nothing();
            let wait = RnrTimer::new(code).duration();
            b.advance(wait - NS);
            b.expect_nothing();
            b.advance(NS);
            // Only the RNR-NAKed message is sent, as a probe; the rest follows once the peer has acknowledged
            // it.
            b.expect(&all[2..3]);
            b.advance(NS);
            b.expect_nothing();
            let mut rest = all[3..].to_vec();
            rest.push(send(Only, SQ + 6, &b.mr.read(0, 1)));
            b.exchange(&[ack(SQ + 2, 2)], &rest);
            b.exchange(&[ack(SQ + 6, 4)], &[]);
            b.sends(&[completed(1), completed(2), ok(4, WcOpcode::Send, 1)]);
        }
    }

    ack_timeout_is_stopped_during_rnr_wait => "req.rnr" {
        let (mut b, all) = three_in_flight(|s| (s.timeout, s.retry_cnt) = (1, 0));
        b.exchange(&[rnr(SQ, 0, 31)], &[]);
        b.advance(RnrTimer::new(31).duration());
        b.expect(&all[..2]);
        b.exchange(&[ack(SQ + 1, 1)], &all[2..]);
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(0), completed(1), completed(2)]);
    }

    request_fails_after_the_last_rnr_retry => "req.rnr.exceeded" {
        for retries in [0, 1, 6] {
            let (mut b, all) = three_in_flight(|s| (s.rnr_retry, s.retry_cnt) = (retries, 0));
            for _ in 0..retries {
                b.exchange(&[rnr(SQ, 0, 1)], &[]);
                b.advance(Duration::from_micros(10));
                b.expect(&all[..2]);
            }
            b.exchange(&[rnr(SQ, 0, 1)], &[]);
            b.sends(&[bad(1, WcStatus::RnrRetryExcErr), flushed(2), flushed(3)]);
            assert_eq!(b.count().rcvd_rnr_err, u64::from(retries) + 1);
            b.state(QpState::Err);
            assert_eq!(b.count().retry_rnr_exceeded_err, 1);
        }
    }

    rnr_retry_count_7_means_unlimited_retries => "req.rnr.unlimited" {
        let (mut b, all) = three_in_flight(|s| (s.rnr_retry, s.retry_cnt) = (7, 0));
        for _ in 0..100 {
            b.exchange(&[rnr(SQ, 0, 1)], &[]);
            b.advance(Duration::from_micros(10));
            b.expect(&all[..2]);
        }
        b.exchange(&[ack(SQ + 1, 1)], &all[2..]);
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(0), completed(1), completed(2)]);
    }

    one_message_is_sent_per_rnr_wait => "req.rnr.unlimited" {
        let mut b = Bench::with(|s| s.rnr_retry = 7);
        for id in 0..16 {
            b.post(id, WrOp::Send, 0, 1024);
        }
        assert_eq!(b.sent().len(), 64);
        for _ in 0..50 {
            b.deliver(&[rnr(SQ, 0, 1)]);
            b.advance(Duration::from_micros(10));
            assert_eq!(b.sent().len(), 4);
        }
        // The peer is ready for one message: the rest follows, and the next one that is RNR-NAKed becomes the
        // next probe.
        b.deliver(&[ack(SQ + 3, 1)]);
        assert_eq!(b.sent().len(), 60);
        b.deliver(&[rnr(SQ + 4, 1, 1)]);
        b.advance(Duration::from_micros(10));
        assert_eq!(b.sent().len(), 4);
        b.deliver(&[ack(SQ + 7, 2)]);
        assert_eq!(b.sent().len(), 56);
        b.exchange(&[ack(SQ + 63, 16)], &[]);
        b.sends(&(0..16).map(|id| ok(id, WcOpcode::Send, 1024)).collect::<Vec<_>>());
    }

    rnr_nak_restores_transport_retries => "req.rnr.retries" {
        let (mut b, all) = three_in_flight(|s| (s.rnr_retry, s.retry_cnt) = (7, 1));
        for _ in 0..20 {
            b.exchange(&[rnr(SQ, 0, 1)], &[]);
            b.advance(Duration::from_micros(10));
            b.expect(&all[..2]);
            // A sequence NAK for the packets after the RNR-NAKed one: rxe sends it after the RNR NAK.
            b.exchange(&[nak(SQ, 0, NakCode::PsnSequenceError)], &all[..2]);
        }
        b.exchange(&[ack(SQ + 1, 1)], &all[2..]);
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(0), completed(1), completed(2)]);
    }

    progress_restores_rnr_retries => "req.rnr.reset" {
        let (mut b, all) = three_in_flight(|s| s.rnr_retry = 1);
        for (i, message) in [(0, 0..2), (2, 2..3), (3, 3..6)] {
            b.exchange(&[rnr(SQ + i, 0, 1)], &[]);
            b.advance(Duration::from_micros(10));
            b.expect(&all[message]);
        }
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(0), completed(1), completed(2)]);
    }

    naks_during_rnr_wait_are_ignored => "req.nak.duplicate" {
        // After the RNR NAK of a long SEND, rxe sends a sequence NAK for the packets that follow.
        let (mut b, all) = three_in_flight(|s| (s.rnr_retry, s.retry_cnt) = (1, 0));
        let seq = nak(SQ, 0, NakCode::PsnSequenceError);
        b.exchange(&[rnr(SQ, 0, 1), seq.clone(), rnr(SQ, 0, 1), seq], &[]);
        b.advance(Duration::from_micros(10));
        b.expect(&all[..2]);
        b.exchange(&[ack(SQ + 1, 1)], &all[2..]);
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(0), completed(1), completed(2)]);
    }

    ack_during_rnr_wait_completes_requests => "req.ack.retransmission" {
        let (mut b, all) = three_in_flight(|_| {});
        b.exchange(&[rnr(SQ, 0, 12), ack(SQ + 2, 2)], &[]);
        b.sends(&[completed(0), completed(1)]);
        b.advance(RnrTimer::new(12).duration());
        b.expect(&all[3..]);
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(2)]);
    }

    ack_during_rnr_wait_does_not_start_the_ack_timeout => "req.rnr" {
        let (mut b, all) = three_in_flight(|s| (s.timeout, s.retry_cnt) = (1, 0));
        b.exchange(&[rnr(SQ, 0, 31), ack(SQ + 2, 2)], &[]);
        b.sends(&[completed(0), completed(1)]);
        b.advance(RnrTimer::new(31).duration());
        b.expect(&all[3..]);
        b.exchange(&[ack(SQ + 5, 3)], &[]);
        b.sends(&[completed(2)]);
    }

    rnr_waits_do_not_accumulate_timers => "req.rnr" {
        let mut b = Bench::with(|s| s.rnr_retry = 7);
        let sge = [b.mr.sge(0, 1)];
        b.post_sges(1, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        assert_eq!(b.sent().len(), 1);
        for _ in 0..50 {
            b.exchange(&[rnr(SQ, 0, 1)], &[]);
            b.advance(Duration::from_micros(10));
            assert_eq!(b.sent().len(), 1);
        }
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
        b.advance(ACK_TIMEOUT);
        assert_eq!(b.nic.next_deadline(), None);
    }
}
