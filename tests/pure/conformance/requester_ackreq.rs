//! Conformance cases: the requester's acknowledgement requests and probe timeouts. Packets of unsignaled work
//! requests are sent without AckReq; a later probe requests their acknowledgement.

use std::time::Duration;

use urxe::memory::AtomicOp;
use urxe::transport::{QpState, SendFlags, WcOpcode, WcStatus, WrOp};
use urxe::wire::{Mtu, NakCode, RKey};

use crate::bench::{Bench, SQ, Setup, Wc, bad, flushed, ok};
use crate::pkt::*;

/// Default time after which the requester probes for an acknowledgement.
const PROBE_TIMEOUT: Duration = Duration::from_millis(1);
const ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
const NS: Duration = Duration::from_nanos(1);
/// Probe timeout after RTT samples of 100 us and then [`PROBE_TIMEOUT`] (RFC 6298).
const NEXT_PROBE_TIMEOUT: Duration = Duration::from_nanos(1_262_500);
const UNSIGNALED: SendFlags = SendFlags { signaled: false, ..SendFlags::SIGNALED };

impl Bench {
    /// Posts an unsignaled work request of one byte.
    fn post_unsignaled(&mut self, wr_id: u64, op: WrOp) {
        let sge = [self.mr.sge(0, 1)];
        self.post_sges(wr_id, op, &sge, UNSIGNALED).unwrap();
    }

    /// Returns the SEND packet that [`post_unsignaled`](Self::post_unsignaled) produces.
    fn byte(&self, psn: u32) -> Pkt {
        send(Only, psn, &self.mr.read(0, 1))
    }
}

/// Returns a bench with `n` unsignaled SENDs in flight.
fn unsignaled_in_flight(n: u32, change: impl FnOnce(&mut Setup)) -> Bench {
    let mut b = Bench::with(change);
    for i in 0..n {
        b.post_unsignaled(i.into(), WrOp::Send);
        let packet = b.byte(SQ + i).ackreq(false);
        b.expect(&[packet]);
    }
    b
}

/// Returns a bench that has taken one RTT sample: the peer acknowledged a SEND after 100 us.
fn with_rtt_sample(change: impl FnOnce(&mut Setup)) -> Bench {
    let mut b = Bench::with(|s| {
        s.tuning.min_probe_timeout = PROBE_TIMEOUT;
        change(s);
    });
    b.post(0, WrOp::Send, 0, 1);
    b.sent();
    b.now = b.now + PROBE_TIMEOUT / 10;
    b.exchange(&[ack(SQ, 1)], &[]);
    b.sends(&[ok(0, WcOpcode::Send, 1)]);
    b
}

/// Returns a bench with an RTT sample (see [`with_rtt_sample`]) and `n` one-byte SENDs in flight, the first
/// with PSN `SQ + 1`, and their packets.
fn in_flight(n: u32, change: impl FnOnce(&mut Setup)) -> (Bench, Vec<Pkt>) {
    let mut b = with_rtt_sample(change);
    (1..=n).for_each(|i| b.post(i.into(), WrOp::Send, 0, 1));
    let all: Vec<Pkt> = (1..=n).map(|i| b.byte(SQ + i)).collect();
    b.expect(&all);
    (b, all)
}

/// Returns the successful completions expected for SENDs with the `wr_id`s `numbers`.
fn completed(numbers: std::ops::Range<u64>) -> Vec<Wc> {
    numbers.map(|i| ok(i, WcOpcode::Send, 1)).collect()
}

cases! {
    signaled_sends_carry_ackreq_and_unsignaled_sends_do_not => "req.ackreq.unsignaled" {
        let mut b = unsignaled_in_flight(2, |_| {});
        b.post(7, WrOp::Send, 0, 1);
        let packet = b.byte(SQ + 2);
        b.expect(&[packet]);
        b.exchange(&[ack(SQ + 2, 3)], &[]);
        b.sends(&[ok(7, WcOpcode::Send, 1)]);
        b.advance(20 * ACK_TIMEOUT);
        assert_eq!(b.count().ack_probe, 0);
    }

    ackreq_is_always_set_if_all_requests_are_signaled => "req.ackreq.unsignaled" {
        let mut b = Bench::with(|s| s.signal_all = true);
        b.post_unsignaled(1, WrOp::Send);
        let packet = b.byte(SQ);
        b.expect(&[packet]);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
    }

    ackreq_is_set_once_per_quarter_of_the_send_queue => "req.ackreq.unsignaled" {
        // The queue holds 64 work requests; the number of packets alone would not set AckReq.
        let mut b = Bench::with(|s| s.mtu = Mtu::Mtu1024);
        for i in 0..40 {
            b.post_unsignaled(i, WrOp::Send);
        }
        let with_ackreq: Vec<u32> =
            b.sent().iter().filter(|p| p.h.bth.ack_req).map(|p| p.h.bth.psn.get() - SQ).collect();
        assert_eq!(with_ackreq, [15, 31]);
        b.exchange(&[ack(SQ + 39, 40)], &[]);
        b.sends(&[]);
    }

    probe_with_ackreq_is_sent_for_the_last_packet_after_the_probe_interval => "req.ackreq.probe" {
        let mut b = unsignaled_in_flight(3, |_| {});
        b.advance(PROBE_TIMEOUT - NS);
        b.expect_nothing();
        b.advance(NS);
        let probe = b.byte(SQ + 2);
        b.expect(&[probe]);
        assert_eq!((b.count().ack_probe, b.count().requester_retry), (1, 0));
        b.exchange(&[ack(SQ + 2, 3)], &[]);
        b.sends(&[]);
        b.advance(20 * ACK_TIMEOUT);
        b.expect_nothing();
        // A later SEND starts its own interval.
        b.post_unsignaled(9, WrOp::Send);
        let (first, probe) = (b.byte(SQ + 3).ackreq(false), b.byte(SQ + 3));
        b.expect(&[first]);
        b.advance(PROBE_TIMEOUT);
        b.expect(&[probe]);
        b.exchange(&[ack(SQ + 3, 4)], &[]);
    }

    probe_of_a_long_message_contains_only_its_last_packet => "req.ackreq.probe" {
        let mut b = Bench::new();
        let remote = (64, RKey(9), 600);
        let sge = [b.mr.sge(0, 600)];
        b.post_sges(1, WrOp::Write { va: 64, rkey: RKey(9) }, &sge, UNSIGNALED).unwrap();
        let d = b.mr.read(0, 600);
        let mut packets = message(256, &d, |p, n, d| write(p, n, remote, d), SQ);
        let probe = packets.pop().unwrap();
        packets.push(probe.clone().ackreq(false));
        b.expect(&packets);
        b.advance(PROBE_TIMEOUT);
        b.expect(&[probe]);
        b.exchange(&[ack(SQ + 2, 1)], &[]);
    }

    lost_packet_is_detected_by_the_probe => "req.ackreq.probe" {
        let mut b = unsignaled_in_flight(3, |_| {});
        b.advance(PROBE_TIMEOUT);
        let retransmitted: Vec<Pkt> = (1..3).map(|i| b.byte(SQ + i)).collect();
        b.expect(&retransmitted[1..]);
        // Retransmitted messages set AckReq.
        b.exchange(&[nak(SQ + 1, 1, NakCode::PsnSequenceError)], &retransmitted);
        b.exchange(&[ack(SQ + 2, 3)], &[]);
        b.advance(20 * ACK_TIMEOUT);
        b.expect_nothing();
    }

    lost_probe_is_recovered_by_the_ack_timeout => "req.ackreq.probe" {
        let mut b = unsignaled_in_flight(2, |s| s.retry_cnt = 1);
        b.advance(PROBE_TIMEOUT);
        let retransmitted: Vec<Pkt> = (0..2).map(|i| b.byte(SQ + i)).collect();
        b.expect(&retransmitted[1..]);
        b.advance(ACK_TIMEOUT - PROBE_TIMEOUT - NS);
        b.expect_nothing();
        b.advance(NS);
        b.expect(&retransmitted);
        b.advance(2 * ACK_TIMEOUT);
        b.expect_nothing();
        b.sends(&[bad(0, WcStatus::RetryExcErr), flushed(1)]);
        b.state(QpState::Err);
        b.advance(20 * ACK_TIMEOUT);
    }

    probes_for_a_late_ack_are_sent_with_backoff => "req.ackreq.rtt" {
        let mut b = with_rtt_sample(|_| {});
        b.post(2, WrOp::Send, 0, 1);
        let last = b.byte(SQ + 1);
        b.expect(std::slice::from_ref(&last));
        // The probe is sent once, then after twice the interval, and so on; this neither changes the ACK
        // timeout nor uses a retry.
        for (n, wait) in (1..).zip([1, 2, 4, 8]) {
            b.advance(wait * PROBE_TIMEOUT - NS);
            b.expect_nothing();
            b.advance(NS);
            b.expect(std::slice::from_ref(&last));
            assert_eq!((b.count().ack_probe, b.count().requester_retry), (n, 0));
        }
        assert_eq!(b.count().local_ack_timeout_err, 0);
        b.exchange(&[ack(SQ + 1, 2)], &[]);
        b.sends(&[ok(2, WcOpcode::Send, 1)]);
        b.advance(20 * ACK_TIMEOUT);
        b.expect_nothing();
    }

    oldest_and_last_packet_are_sent_as_probes_while_the_ack_is_late => "req.ackreq.rtt" {
        let (mut b, all) = in_flight(20, |s| s.retry_cnt = 0);
        for wait in [1, 2, 4, 8] {
            b.advance(wait * PROBE_TIMEOUT - NS);
            b.expect_nothing();
            b.advance(NS);
            b.expect(&[all[0].clone(), all[19].clone()]);
        }
        // The peer was only slow, and acknowledges the retransmitted packets too, which count as unexpected
        // responses.
        let responses: Vec<Pkt> =
            (1..21).map(|i| ack(SQ + i, i + 1)).chain([ack(SQ + 20, 21), ack(SQ + 20, 21)]).collect();
        b.exchange(&responses, &[]);
        assert_eq!((b.count().requester_retry, b.count().unexpected_response), (0, 2));
        b.sends(&completed(1..21));
        b.advance(20 * ACK_TIMEOUT);
    }

    lost_acks_are_recovered_by_the_probe => "req.ackreq.rtt" {
        let (mut b, all) = in_flight(3, |_| {});
        b.advance(PROBE_TIMEOUT);
        b.expect(&[all[0].clone(), all[2].clone()]);
        b.exchange(&[ack(SQ + 3, 4), ack(SQ + 3, 4)], &[]);
        b.sends(&completed(1..4));
        b.advance(20 * ACK_TIMEOUT);
    }

    tail_loss_is_detected_by_the_probe => "req.ackreq.rtt" {
        let (mut b, all) = in_flight(3, |_| {});
        b.advance(PROBE_TIMEOUT);
        b.expect(&[all[0].clone(), all[2].clone()]);
        // The first packet has arrived, the others have not.
        b.exchange(&[ack(SQ + 1, 2), nak(SQ + 2, 2, NakCode::PsnSequenceError)], &all[1..]);
        b.sends(&completed(1..2));
        // Karn's algorithm: the acknowledgement of a retransmitted packet yields no round-trip time.
        b.now = b.now + 60 * PROBE_TIMEOUT;
        b.exchange(&[ack(SQ + 2, 3)], &[]);
        b.sends(&completed(2..3));
        b.advance(NEXT_PROBE_TIMEOUT);
        b.expect(&all[2..]);
        b.exchange(&[ack(SQ + 3, 4)], &[]);
        b.sends(&completed(3..4));
    }

    probe_elicits_another_nak_after_the_first_nak_is_lost => "req.ackreq.rtt" {
        // The peer has sent one NAK for the first packet, which was lost, and sends no other.
        let (mut b, all) = in_flight(4, |s| s.retry_cnt = 1);
        b.advance(PROBE_TIMEOUT);
        b.expect(&[all[0].clone(), all[3].clone()]);
        // The probe delivers the first packet, and the last one makes the peer NAK the second: all are
        // retransmitted at once.
        b.exchange(&[ack(SQ + 1, 2), nak(SQ + 2, 2, NakCode::PsnSequenceError)], &all[1..]);
        b.sends(&completed(1..2));
        // That used one retry, which progress restores. The probe has not postponed the ACK timeout.
        assert_eq!(b.count().requester_retry, 1);
        b.exchange(&[ack(SQ + 2, 3)], &[]);
        b.sends(&completed(2..3));
        for (elapsed, expiries) in [(ACK_TIMEOUT, 1), (ACK_TIMEOUT * 3 / 2, 2)] {
            b.advance(elapsed - NS);
            b.sent();
            assert_eq!(b.count().local_ack_timeout_err, expiries - 1);
            b.advance(NS);
            b.sent();
        }
        b.sends(&[bad(3, WcStatus::RetryExcErr), flushed(4)]);
        b.state(QpState::Err);
    }

    loss_without_repeated_nak_is_recovered_by_next_timeout => "req.ackreq.rtt" {
        let (mut b, all) = in_flight(4, |_| {});
        b.advance(PROBE_TIMEOUT);
        b.expect(&[all[0].clone(), all[3].clone()]);
        // The peer has received two packets and has already sent its NAK for the third.
        b.exchange(&[ack(SQ + 2, 3)], &[]);
        b.sends(&completed(1..3));
        b.advance(NEXT_PROBE_TIMEOUT - NS);
        b.expect_nothing();
        b.advance(NS);
        b.expect(&all[2..]);
        b.exchange(&[ack(SQ + 4, 5)], &[]);
        b.sends(&completed(3..5));
    }

    unsignaled_send_after_a_probe_timeout_is_probed_alone_until_the_next_one => "req.ackreq.rtt" {
        let (mut b, all) = in_flight(2, |_| {});
        b.advance(PROBE_TIMEOUT);
        b.expect(&all);
        // An unsignaled SEND: only the probe of the last packet is sent until the next probe timeout.
        b.post_unsignaled(3, WrOp::Send);
        let packet = b.byte(SQ + 3);
        b.expect(&[packet.clone().ackreq(false)]);
        b.advance(PROBE_TIMEOUT);
        b.expect(std::slice::from_ref(&packet));
        b.advance(PROBE_TIMEOUT - NS);
        b.expect_nothing();
        b.advance(NS);
        b.expect(&[all[0].clone(), packet]);
        b.exchange(&[ack(SQ + 3, 4)], &[]);
        b.sends(&completed(1..3));
    }

    probe_is_sent_while_an_ack_in_the_middle_of_a_message_is_late => "req.ackreq.rtt" {
        let mut b = with_rtt_sample(|s| s.tuning.window = 4 * 1024);
        b.post(1, WrOp::Send, 0, 8 * 256);
        let sent = b.sent();
        assert_eq!(sent.len(), 4);
        b.deliver(&[ack(SQ + 1, 1)]);
        let next = b.sent();
        assert_eq!(next.len(), 1);
        b.advance(PROBE_TIMEOUT);
        b.expect(&[sent[1].clone().ackreq(true), next[0].clone()]);
        // A loss has reduced the congestion window to two packets.
        let retransmitted = [sent[2].clone(), sent[3].clone().ackreq(true)];
        b.exchange(&[ack(SQ + 2, 1), nak(SQ + 3, 1, NakCode::PsnSequenceError)], &retransmitted);
        let mut last = SQ + 4;
        while last < SQ + 8 {
            b.deliver(&[ack(last, 1)]);
            last += b.sent().len() as u32;
        }
        b.exchange(&[ack(SQ + 8, 2)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 8 * 256)]);
    }

    read_with_late_response_is_retransmitted_from_the_first_missing_packet => "req.ackreq.rtt" {
        let mut b = with_rtt_sample(|_| {});
        let (va, rkey) = (64, RKey(9));
        b.post(2, WrOp::Read { va, rkey }, 0, 600);
        b.expect(&[read(SQ + 1, (va, rkey, 600))]);
        // The request was lost.
        b.advance(PROBE_TIMEOUT);
        b.expect(&[read(SQ + 1, (va, rkey, 600))]);
        assert_eq!((b.count().ack_probe, b.count().requester_retry), (0, 1));
        // The last responses were lost: the retransmitted request begins at the first missing packet and
        // never later.
        let data: Vec<u8> = (0..600).map(|i| i as u8).collect();
        b.exchange(&[resp(First, SQ + 1, 2, &data[..256])], &[]);
        b.advance(PROBE_TIMEOUT);
        b.expect(&[read(SQ + 2, (va + 256, rkey, 344))]);
        b.exchange(&[resp(First, SQ + 2, 2, &data[256..512])], &[]);
        b.advance(PROBE_TIMEOUT);
        b.expect(&[read(SQ + 3, (va + 512, rkey, 88))]);
        b.exchange(&[resp(Only, SQ + 3, 2, &data[512..])], &[]);
        b.sends(&[ok(2, WcOpcode::RdmaRead, 600)]);
        assert_eq!(b.mr.read(0, 600), data);
    }

    all_reads_and_atomics_with_late_responses_are_retransmitted => "req.ackreq.rtt" {
        let mut b = with_rtt_sample(|_| {});
        let (va, rkey) = (64, RKey(9));
        b.post(1, WrOp::Read { va, rkey }, 0, 8);
        b.post(2, WrOp::Atomic { va, rkey, op: AtomicOp::FetchAdd(1) }, 8, 8);
        let all = [read(SQ + 1, (va, rkey, 8)), fetch_add(SQ + 2, (va, rkey), 1)];
        b.expect(&all);
        b.advance(PROBE_TIMEOUT);
        b.expect(&all);
        b.advance(2 * PROBE_TIMEOUT);
        b.expect(&all);
        b.exchange(&[resp(Only, SQ + 1, 2, &[7; 8]), atomic_ack(SQ + 2, 3, 5)], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 8), ok(2, WcOpcode::FetchAdd, 8)]);
    }

    last_packet_before_a_read_is_sent_as_a_probe_instead_of_the_read => "req.ackreq.rtt" {
        // A READ out of order would make rxe discard the READs before it.
        let (mut b, all) = in_flight(2, |_| {});
        let (va, rkey) = (64, RKey(9));
        b.post(3, WrOp::Read { va, rkey }, 0, 8);
        let request = read(SQ + 3, (va, rkey, 8));
        b.expect(std::slice::from_ref(&request));
        b.advance(PROBE_TIMEOUT);
        b.expect(&all);
        // Only the READ was lost.
        b.exchange(&[ack(SQ + 2, 3), ack(SQ + 2, 3)], &[]);
        b.sends(&completed(1..3));
        b.advance(NEXT_PROBE_TIMEOUT);
        b.expect(&[request]);
        b.exchange(&[resp(Only, SQ + 3, 4, &[7; 8])], &[]);
        b.sends(&[ok(3, WcOpcode::RdmaRead, 8)]);
    }

    oldest_read_with_late_response_is_retransmitted_with_the_last_packet => "req.ackreq.rtt" {
        // The READ is split into parts of 512 bytes, of which the first has received part of its response.
        let mut b = with_rtt_sample(|s| s.tuning.read_chunk = 512);
        let (va, rkey) = (64, RKey(9));
        b.post(1, WrOp::Read { va, rkey }, 1000, 1024);
        b.post(2, WrOp::Send, 0, 1);
        let parts = [read(SQ + 1, (va, rkey, 512)), read(SQ + 3, (va + 512, rkey, 512))];
        let last = b.byte(SQ + 5);
        b.expect(&[parts[0].clone(), parts[1].clone(), last.clone()]);
        b.exchange(&[resp(First, SQ + 1, 2, &[7; 256])], &[]);
        b.advance(PROBE_TIMEOUT);
        let rest = read(SQ + 2, (va + 256, rkey, 256));
        b.expect(&[rest, last]);
        b.exchange(&[resp(Only, SQ + 2, 2, &[7; 256])], &[]);
        let responses = [resp(First, SQ + 3, 2, &[7; 256]), resp(Last, SQ + 4, 2, &[7; 256]), ack(SQ + 5, 3)];
        b.exchange(&responses, &[]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 1024), ok(2, WcOpcode::Send, 1)]);
    }

    request_whose_probe_needs_deregistered_memory_fails_in_order => "req.local" {
        let mut b = with_rtt_sample(|_| {});
        let r = b.region(urxe_test_support::engine::PD, 8, 0, urxe::memory::Access::ALL);
        b.post(1, WrOp::Send, 0, 1);
        let sge = [b.regions[r].sge(0, 8)];
        b.post_sges(2, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        let first = b.sent().remove(0);
        b.memory.deregister(sge[0].lkey).unwrap();
        b.advance(PROBE_TIMEOUT);
        b.expect(&[first]);
        b.sends(&[]);
        b.deliver(&[ack(SQ + 1, 2)]);
        b.sends(&[ok(1, WcOpcode::Send, 1), bad(2, WcStatus::LocProtErr)]);
        b.state(QpState::Err);
    }

    probe_timeout_follows_measured_round_trip_time => "req.ackreq.rtt" {
        // The round-trip time is 20 ms: the timeout is the mean plus four times half of it.
        let mut b = Bench::with(|s| s.tuning.min_probe_timeout = PROBE_TIMEOUT);
        b.post(1, WrOp::Send, 0, 1);
        b.sent();
        b.now = b.now + 20 * PROBE_TIMEOUT;
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
        b.post(2, WrOp::Send, 0, 1);
        let last = b.byte(SQ + 1);
        b.expect(std::slice::from_ref(&last));
        b.advance(60 * PROBE_TIMEOUT - NS);
        b.expect_nothing();
        b.advance(NS);
        b.expect(&[last]);
        b.exchange(&[ack(SQ + 1, 2)], &[]);
        b.sends(&[ok(2, WcOpcode::Send, 1)]);
    }

    probe_interval_is_at_most_a_quarter_of_ack_timeout => "req.ackreq.probe" {
        // 4.096 us << 9 is 2.1 ms.
        let mut b = unsignaled_in_flight(1, |s| s.timeout = 9);
        let quarter = Duration::from_nanos(4096 << 7);
        b.advance(quarter - NS);
        b.expect_nothing();
        b.advance(NS);
        let probe = b.byte(SQ);
        b.expect(&[probe]);
        b.exchange(&[ack(SQ, 1)], &[]);
        // The probe is also sent if the ACK timeout is disabled.
        let mut b = unsignaled_in_flight(1, |s| s.timeout = 0);
        b.advance(PROBE_TIMEOUT);
        let probe = b.byte(SQ);
        b.expect(&[probe]);
        b.exchange(&[ack(SQ, 1)], &[]);
    }

    packet_sent_half_a_millisecond_after_one_without_ackreq_carries_ackreq => "req.ackreq.probe" {
        let mut b = Bench::new();
        for i in 0..10 {
            b.post_unsignaled(i.into(), WrOp::Send);
            // Packets at 0, 300, 600, ... us: the first packet sent half a millisecond after one without
            // AckReq carries AckReq.
            let packet = b.byte(SQ + i).ackreq(i % 3 == 2);
            b.expect(&[packet]);
            b.advance(Duration::from_micros(300));
        }
        assert_eq!(b.count().ack_probe, 0);
        b.exchange(&[ack(SQ + 9, 10)], &[]);
    }

    no_probe_is_sent_if_the_last_request_in_flight_is_a_read_or_atomic => "req.ackreq.probe" {
        let (va, rkey) = (0, RKey(3));
        for atomic in [false, true] {
            let mut b = unsignaled_in_flight(1, |_| {});
            let sge = [b.mr.sge(0, 8)];
            let op = if atomic {
                WrOp::Atomic { va, rkey, op: AtomicOp::FetchAdd(1) }
            } else {
                WrOp::Read { va, rkey }
            };
            b.post_sges(1, op, &sge, UNSIGNALED).unwrap();
            b.expect(&[if atomic { fetch_add(SQ + 1, (va, rkey), 1) } else { read(SQ + 1, (va, rkey, 8)) }]);
            b.advance(ACK_TIMEOUT - NS);
            b.expect_nothing();
            b.exchange(
                &[if atomic { atomic_ack(SQ + 1, 2, 5) } else { resp(Only, SQ + 1, 2, &[1; 8]) }],
                &[],
            );
            b.sends(&[]);
            b.advance(20 * ACK_TIMEOUT);
        }
    }

    probe_is_sent_in_state_sqd => "req.ackreq.probe" {
        let mut b = unsignaled_in_flight(1, |_| {});
        b.set_state(QpState::Sqd);
        b.post_unsignaled(1, WrOp::Send);
        b.expect_nothing();
        b.advance(PROBE_TIMEOUT);
        let probe = b.byte(SQ);
        b.expect(&[probe]);
        b.exchange(&[ack(SQ, 1)], &[]);
    }

    request_with_local_error_completes_after_the_probe_is_acked => "req.ackreq.probe" {
        let mut b = unsignaled_in_flight(1, |_| {});
        let sge = [urxe::transport::Sge { addr: 0, length: 1, lkey: urxe::wire::LKey(0xbad) }];
        b.post_sges(1, WrOp::Send, &sge, UNSIGNALED).unwrap();
        b.expect_nothing();
        b.advance(PROBE_TIMEOUT);
        let probe = b.byte(SQ);
        b.expect(&[probe]);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[bad(1, WcStatus::LocProtErr)]);
        b.state(QpState::Err);
    }

    ack_before_the_probe_cancels_it => "req.ackreq.probe" {
        let mut b = unsignaled_in_flight(2, |_| {});
        b.exchange(&[ack(SQ + 1, 2)], &[]);
        b.advance(20 * ACK_TIMEOUT);
        b.expect_nothing();
        // An acknowledgement of only the first does not.
        let mut b = unsignaled_in_flight(2, |_| {});
        b.exchange(&[ack(SQ, 1)], &[]);
        b.advance(PROBE_TIMEOUT);
        let probe = b.byte(SQ + 1);
        b.expect(&[probe]);
        b.exchange(&[ack(SQ + 1, 2)], &[]);
    }

    loss_reduces_the_window_and_delivery_restores_it => "req.window.loss" {
        let mut b = Bench::with(|s| {
            (s.tuning.window, s.tuning.max_ack_silence, s.retry_cnt) = (16 * 1024, 9 * ACK_TIMEOUT, 7);
        });
        b.post(1, WrOp::Send, 0, 80 * 256);
        assert_eq!(b.sent().len(), 16);
        b.deliver(&[nak(SQ, 0, NakCode::PsnSequenceError)]);
        let retransmitted = b.sent();
        assert_eq!(retransmitted.len(), 8);
        // The packet that fills the window has AckReq; without it nothing would reopen the window.
        assert!(retransmitted[7].h.bth.ack_req);
        b.deliver(&[ack(SQ + 3, 0)]);
        assert_eq!(b.sent().len(), 4);
        b.deliver(&[ack(SQ + 11, 0)]);
        assert_eq!(b.sent().len(), 8);
        // The window never drops below two packets, and a timeout counts as a loss too.
        for (elapsed, packets) in [
            (ACK_TIMEOUT, 6),
            (ACK_TIMEOUT * 3 / 2, 3),
            (ACK_TIMEOUT * 3 / 2, 2),
            (ACK_TIMEOUT * 3 / 2, 2),
            (ACK_TIMEOUT * 3 / 2, 2),
        ] {
            b.advance(elapsed);
            let retransmitted = b.sent();
            assert_eq!(retransmitted.len(), packets);
            assert!(retransmitted[packets - 1].h.bth.ack_req);
        }
        // The window grows as more data is delivered.
        let (mut next, mut max_sent) = (SQ + 14, 0);
        while next < SQ + 80 {
            b.deliver(&[ack(next - 1, 0)]);
            let sent = b.sent().len() as u32;
            (next, max_sent) = (next + sent, max_sent.max(sent));
        }
        assert!((3..8).contains(&max_sent), "{max_sent} packets");
        b.exchange(&[ack(SQ + 79, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 80 * 256)]);
    }

    sequence_nak_after_rnr_nak_does_not_reduce_the_window => "req.window.loss" {
        let mut b = Bench::with(|s| s.tuning.window = 16 * 1024);
        b.post(1, WrOp::Send, 0, 8 * 256);
        assert_eq!(b.sent().len(), 8);
        b.exchange(&[rnr(SQ, 0, 1)], &[]);
        b.advance(Duration::from_micros(10));
        assert_eq!(b.sent().len(), 8);
        for _ in 0..3 {
            b.deliver(&[nak(SQ, 0, NakCode::PsnSequenceError)]);
            assert_eq!(b.sent().len(), 8);
        }
        b.exchange(&[ack(SQ + 7, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 8 * 256)]);
    }
}
