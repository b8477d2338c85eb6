//! The requester: what is not waited for goes without AckReq, and is asked for in time all the same.

use std::time::Duration;

use urxe::memory::AtomicOp;
use urxe::transport::{QpState, SendFlags, WcOpcode, WcStatus, WrOp};
use urxe::wire::{Mtu, NakCode, Position::*, RKey};

use crate::bench::{Bench, SQ, Setup, Wc, bad, flushed, ok};
use crate::pkt::*;

/// How long a requester waits before it asks, by default.
const QUIET: Duration = Duration::from_millis(1);
const T: Duration = Duration::from_nanos(4096 << 14);
const NS: Duration = Duration::from_nanos(1);
/// How long it waits for an answer where one took 100 us and the next [`QUIET`] (RFC 6298).
const SLOWER: Duration = Duration::from_nanos(1_262_500);
const UNSIGNALED: SendFlags = SendFlags { signaled: false, ..SendFlags::SIGNALED };

impl Bench {
    /// Posts one byte, which nobody waits for.
    fn quiet(&mut self, wr_id: u64, op: WrOp) {
        let sge = [self.mr.sge(0, 1)];
        self.post_sges(wr_id, op, &sge, UNSIGNALED).unwrap();
    }

    /// A SEND of that byte as it goes out.
    fn byte(&self, psn: u32) -> Pkt {
        send(Only, psn, &self.mr.read(0, 1))
    }
}

/// `n` SENDs that nobody waits for, on the wire.
fn quiet(n: u32, change: impl FnOnce(&mut Setup)) -> Bench {
    let mut b = Bench::with(change);
    for i in 0..n {
        b.quiet(i.into(), WrOp::Send);
        let packet = b.byte(SQ + i).ask(false);
        b.expect(&[packet]);
    }
    b
}

/// A peer that has answered once, within 100 us.
fn measured(change: impl FnOnce(&mut Setup)) -> Bench {
    let mut b = Bench::with(|s| {
        s.tuning.min_patience = QUIET;
        change(s);
    });
    b.post(0, WrOp::Send, 0, 1);
    b.sent();
    b.now = b.now + QUIET / 10;
    b.ask(&[ack(SQ, 1)], &[]);
    b.sends(&[ok(0, WcOpcode::Send, 1)]);
    b
}

/// So many SENDs of one byte to such a peer, all on the wire; the first is at `SQ + 1` and is number 1.
fn burst(n: u32, change: impl FnOnce(&mut Setup)) -> (Bench, Vec<Pkt>) {
    let mut b = measured(change);
    (1..=n).for_each(|i| b.post(i.into(), WrOp::Send, 0, 1));
    let all: Vec<Pkt> = (1..=n).map(|i| b.byte(SQ + i)).collect();
    b.expect(&all);
    (b, all)
}

/// They are complete.
fn done(numbers: std::ops::Range<u64>) -> Vec<Wc> {
    numbers.map(|i| ok(i, WcOpcode::Send, 1)).collect()
}

cases! {
    what_is_signaled_asks_and_what_is_not_does_not => "req.ackreq.unsignaled" {
        let mut b = quiet(2, |_| {});
        b.post(7, WrOp::Send, 0, 1);
        let asking = b.byte(SQ + 2);
        b.expect(&[asking]);
        b.ask(&[ack(SQ + 2, 3)], &[]);
        b.sends(&[ok(7, WcOpcode::Send, 1)]);
        b.advance(20 * T);
        assert_eq!(b.count().ack_probe, 0);
    }

    a_queue_whose_work_is_all_signaled_asks_always => "req.ackreq.unsignaled" {
        let mut b = Bench::with(|s| s.signal_all = true);
        b.quiet(1, WrOp::Send);
        let asking = b.byte(SQ);
        b.expect(&[asking]);
        b.ask(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
    }

    every_quarter_of_the_send_queue_asks => "req.ackreq.unsignaled" {
        // It holds 64; so many packets alone would not ask.
        let mut b = Bench::with(|s| s.mtu = Mtu::Mtu1024);
        for i in 0..40 {
            b.quiet(i, WrOp::Send);
        }
        let asking: Vec<u32> = b.sent().iter().filter(|p| p.h.bth.ack_req).map(|p| p.h.bth.psn.get() - SQ).collect();
        assert_eq!(asking, [15, 31]);
        b.ask(&[ack(SQ + 39, 40)], &[]);
        b.sends(&[]);
    }

    after_silence_the_last_packet_asks => "req.ackreq.probe" {
        let mut b = quiet(3, |_| {});
        b.advance(QUIET - NS);
        b.silence();
        b.advance(NS);
        let probe = b.byte(SQ + 2);
        b.expect(&[probe]);
        assert_eq!((b.count().ack_probe, b.count().requester_retry), (1, 0));
        b.ask(&[ack(SQ + 2, 3)], &[]);
        b.sends(&[]);
        b.advance(20 * T);
        b.silence();
        // What comes later has its own silence.
        b.quiet(9, WrOp::Send);
        let (first, probe) = (b.byte(SQ + 3).ask(false), b.byte(SQ + 3));
        b.expect(&[first]);
        b.advance(QUIET);
        b.expect(&[probe]);
        b.ask(&[ack(SQ + 3, 4)], &[]);
    }

    the_last_packet_of_a_long_message_asks_alone => "req.ackreq.probe" {
        let mut b = Bench::new();
        let remote = (64, RKey(9), 600);
        let sge = [b.mr.sge(0, 600)];
        b.post_sges(1, WrOp::Write { va: 64, rkey: RKey(9) }, &sge, UNSIGNALED).unwrap();
        let d = b.mr.read(0, 600);
        let mut packets = message(256, &d, |p, n, d| write(p, n, remote, d), SQ);
        let probe = packets.pop().unwrap();
        packets.push(probe.clone().ask(false));
        b.expect(&packets);
        b.advance(QUIET);
        b.expect(&[probe]);
        b.ask(&[ack(SQ + 2, 1)], &[]);
    }

    a_lost_packet_shows_by_the_probe => "req.ackreq.probe" {
        let mut b = quiet(3, |_| {});
        b.advance(QUIET);
        let again: Vec<Pkt> = (1..3).map(|i| b.byte(SQ + i)).collect();
        b.expect(&again[1..]);
        // Sent again, messages ask.
        b.ask(&[nak(SQ + 1, 1, NakCode::PsnSequenceError)], &again);
        b.ask(&[ack(SQ + 2, 3)], &[]);
        b.advance(20 * T);
        b.silence();
    }

    a_lost_probe_is_the_timeouts_business => "req.ackreq.probe" {
        let mut b = quiet(2, |s| s.retry_cnt = 1);
        b.advance(QUIET);
        let again: Vec<Pkt> = (0..2).map(|i| b.byte(SQ + i)).collect();
        b.expect(&again[1..]);
        b.advance(T - QUIET - NS);
        b.silence();
        b.advance(NS);
        b.expect(&again);
        b.advance(2 * T);
        b.silence();
        b.sends(&[bad(0, WcStatus::RetryExcErr), flushed(1)]);
        b.state(QpState::Err);
        b.advance(20 * T);
    }

    an_answer_that_is_late_is_asked_for_again => "req.ackreq.rtt" {
        let mut b = measured(|_| {});
        b.post(2, WrOp::Send, 0, 1);
        let last = b.byte(SQ + 1);
        b.expect(std::slice::from_ref(&last));
        // Once, then after twice as long and so on: the timeout is no sooner for it, and no retry is spent.
        for (n, wait) in (1..).zip([1, 2, 4, 8]) {
            b.advance(wait * QUIET - NS);
            b.silence();
            b.advance(NS);
            b.expect(std::slice::from_ref(&last));
            assert_eq!((b.count().ack_probe, b.count().requester_retry), (n, 0));
        }
        assert_eq!(b.count().local_ack_timeout_err, 0);
        b.ask(&[ack(SQ + 1, 2)], &[]);
        b.sends(&[ok(2, WcOpcode::Send, 1)]);
        b.advance(20 * T);
        b.silence();
    }

    a_slow_peer_is_sent_the_oldest_and_the_last_again => "req.ackreq.rtt" {
        let (mut b, all) = burst(20, |s| s.retry_cnt = 0);
        for wait in [1, 2, 4, 8] {
            b.advance(wait * QUIET - NS);
            b.silence();
            b.advance(NS);
            b.expect(&[all[0].clone(), all[19].clone()]);
        }
        // It was only slow, and answers what it was sent again too: old news.
        let answers: Vec<Pkt> = (1..21).map(|i| ack(SQ + i, i + 1)).chain([ack(SQ + 20, 21), ack(SQ + 20, 21)]).collect();
        b.ask(&answers, &[]);
        assert_eq!((b.count().requester_retry, b.count().unexpected_response), (0, 2));
        b.sends(&done(1..21));
        b.advance(20 * T);
    }

    lost_acknowledgements_come_again => "req.ackreq.rtt" {
        let (mut b, all) = burst(3, |_| {});
        b.advance(QUIET);
        b.expect(&[all[0].clone(), all[2].clone()]);
        b.ask(&[ack(SQ + 3, 4), ack(SQ + 3, 4)], &[]);
        b.sends(&done(1..4));
        b.advance(20 * T);
    }

    what_was_lost_with_nothing_behind_it_shows => "req.ackreq.rtt" {
        let (mut b, all) = burst(3, |_| {});
        b.advance(QUIET);
        b.expect(&[all[0].clone(), all[2].clone()]);
        // The first has arrived, the others have not.
        b.ask(&[ack(SQ + 1, 2), nak(SQ + 2, 2, NakCode::PsnSequenceError)], &all[1..]);
        b.sends(&done(1..2));
        // Of what was sent again nobody knows how long the answer took.
        b.now = b.now + 60 * QUIET;
        b.ask(&[ack(SQ + 2, 3)], &[]);
        b.sends(&done(2..3));
        b.advance(SLOWER);
        b.expect(&all[2..]);
        b.ask(&[ack(SQ + 3, 4)], &[]);
        b.sends(&done(3..4));
    }

    a_lost_nak_is_drawn_again => "req.ackreq.rtt" {
        // The peer has said once that it misses the first, and says no more.
        let (mut b, all) = burst(4, |s| s.retry_cnt = 1);
        b.advance(QUIET);
        b.expect(&[all[0].clone(), all[3].clone()]);
        // Now it has the first, and of the last it says that the second is missing: at once all goes again.
        b.ask(&[ack(SQ + 1, 2), nak(SQ + 2, 2, NakCode::PsnSequenceError)], &all[1..]);
        b.sends(&done(1..2));
        // That was one retry, given back by progress. The timeout is when it was to be.
        assert_eq!(b.count().requester_retry, 1);
        b.ask(&[ack(SQ + 2, 3)], &[]);
        b.sends(&done(2..3));
        for (passed, silent) in [(T, 1), (T * 3 / 2, 2)] {
            b.advance(passed - NS);
            b.sent();
            assert_eq!(b.count().local_ack_timeout_err, silent - 1);
            b.advance(NS);
            b.sent();
        }
        b.sends(&[bad(3, WcStatus::RetryExcErr), flushed(4)]);
        b.state(QpState::Err);
    }

    behind_a_lost_nak_the_oldest_may_have_arrived => "req.ackreq.rtt" {
        let (mut b, all) = burst(4, |_| {});
        b.advance(QUIET);
        b.expect(&[all[0].clone(), all[3].clone()]);
        // It has two, and has said what it misses.
        b.ask(&[ack(SQ + 2, 3)], &[]);
        b.sends(&done(1..3));
        b.advance(SLOWER - NS);
        b.silence();
        b.advance(NS);
        b.expect(&all[2..]);
        b.ask(&[ack(SQ + 4, 5)], &[]);
        b.sends(&done(3..5));
    }

    while_an_answer_is_late_no_more_is_asked_for_what_follows => "req.ackreq.rtt" {
        let (mut b, all) = burst(2, |_| {});
        b.advance(QUIET);
        b.expect(&all);
        // Nobody waits for this one: the last is asked for, and nothing else before its time.
        b.quiet(3, WrOp::Send);
        let quiet = b.byte(SQ + 3);
        b.expect(&[quiet.clone().ask(false)]);
        b.advance(QUIET);
        b.expect(std::slice::from_ref(&quiet));
        b.advance(QUIET - NS);
        b.silence();
        b.advance(NS);
        b.expect(&[all[0].clone(), quiet]);
        b.ask(&[ack(SQ + 3, 4)], &[]);
        b.sends(&done(1..3));
    }

    in_the_middle_of_a_message_too => "req.ackreq.rtt" {
        let mut b = measured(|s| s.tuning.window = 4 * 1024);
        b.post(1, WrOp::Send, 0, 8 * 256);
        let sent = b.sent();
        assert_eq!(sent.len(), 4);
        b.peer(&[ack(SQ + 1, 1)]);
        let next = b.sent();
        assert_eq!(next.len(), 1);
        b.advance(QUIET);
        b.expect(&[sent[1].clone().ask(true), next[0].clone()]);
        // A loss has narrowed the window to two packets.
        let again = [sent[2].clone(), sent[3].clone().ask(true)];
        b.ask(&[ack(SQ + 2, 1), nak(SQ + 3, 1, NakCode::PsnSequenceError)], &again);
        let mut last = SQ + 4;
        while last < SQ + 8 {
            b.peer(&[ack(last, 1)]);
            last += b.sent().len() as u32;
        }
        b.ask(&[ack(SQ + 8, 2)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 8 * 256)]);
    }

    a_read_is_asked_for_again_where_it_is_missing => "req.ackreq.rtt" {
        let mut b = measured(|_| {});
        let (va, rkey) = (64, RKey(9));
        b.post(2, WrOp::Read { va, rkey }, 0, 600);
        b.expect(&[read(SQ + 1, (va, rkey, 600))]);
        // The request was lost.
        b.advance(QUIET);
        b.expect(&[read(SQ + 1, (va, rkey, 600))]);
        assert_eq!((b.count().ack_probe, b.count().requester_retry), (0, 1));
        // The last answers were lost: never is a later part asked for than is missing.
        let data: Vec<u8> = (0..600).map(|i| i as u8).collect();
        b.ask(&[resp(First, SQ + 1, 2, &data[..256])], &[]);
        b.advance(QUIET);
        b.expect(&[read(SQ + 2, (va + 256, rkey, 344))]);
        b.ask(&[resp(First, SQ + 2, 2, &data[256..512])], &[]);
        b.advance(QUIET);
        b.expect(&[read(SQ + 3, (va + 512, rkey, 88))]);
        b.ask(&[resp(Only, SQ + 3, 2, &data[512..])], &[]);
        b.sends(&[ok(2, WcOpcode::RdmaRead, 600)]);
        assert_eq!(b.mr.read(0, 600), data);
    }

    reads_alone_are_all_asked_for_again => "req.ackreq.rtt" {
        let mut b = measured(|_| {});
        let (va, rkey) = (64, RKey(9));
        b.post(1, WrOp::Read { va, rkey }, 0, 8);
        b.post(2, WrOp::Atomic { va, rkey, op: AtomicOp::FetchAdd(1) }, 8, 8);
        let all = [read(SQ + 1, (va, rkey, 8)), fetch_add(SQ + 2, (va, rkey), 1)];
        b.expect(&all);
        b.advance(QUIET);
        b.expect(&all);
        b.advance(2 * QUIET);
        b.expect(&all);
        b.ask(&[resp(Only, SQ + 1, 2, &[7; 8]), atomic_ack(SQ + 2, 3, 5)], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 8), ok(2, WcOpcode::FetchAdd, 8)]);
    }

    the_last_packet_before_a_read_is_asked_for_again => "req.ackreq.rtt" {
        // A READ out of turn would make rxe forget those before it.
        let (mut b, all) = burst(2, |_| {});
        let (va, rkey) = (64, RKey(9));
        b.post(3, WrOp::Read { va, rkey }, 0, 8);
        let asked = read(SQ + 3, (va, rkey, 8));
        b.expect(std::slice::from_ref(&asked));
        b.advance(QUIET);
        b.expect(&all);
        // Only the READ was lost.
        b.ask(&[ack(SQ + 2, 3), ack(SQ + 2, 3)], &[]);
        b.sends(&done(1..3));
        b.advance(SLOWER);
        b.expect(&[asked]);
        b.ask(&[resp(Only, SQ + 3, 4, &[7; 8])], &[]);
        b.sends(&[ok(3, WcOpcode::RdmaRead, 8)]);
    }

    a_read_is_the_oldest => "req.ackreq.rtt" {
        // In parts of 512 bytes, of which the first is answered in part.
        let mut b = measured(|s| s.tuning.read_chunk = 512);
        let (va, rkey) = (64, RKey(9));
        b.post(1, WrOp::Read { va, rkey }, 1000, 1024);
        b.post(2, WrOp::Send, 0, 1);
        let parts = [read(SQ + 1, (va, rkey, 512)), read(SQ + 3, (va + 512, rkey, 512))];
        let last = b.byte(SQ + 5);
        b.expect(&[parts[0].clone(), parts[1].clone(), last.clone()]);
        b.ask(&[resp(First, SQ + 1, 2, &[7; 256])], &[]);
        b.advance(QUIET);
        let rest = read(SQ + 2, (va + 256, rkey, 256));
        b.expect(&[rest, last]);
        b.ask(&[resp(Only, SQ + 2, 2, &[7; 256])], &[]);
        let answers = [resp(First, SQ + 3, 2, &[7; 256]), resp(Last, SQ + 4, 2, &[7; 256]), ack(SQ + 5, 3)];
        b.ask(&answers, &[]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 1024), ok(2, WcOpcode::Send, 1)]);
    }

    what_cannot_be_sent_again_fails_in_its_turn => "req.local" {
        let mut b = measured(|_| {});
        let r = b.region(crate::support::PD, 8, 0, urxe::memory::Access::ALL);
        b.post(1, WrOp::Send, 0, 1);
        let sge = [b.more[r].sge(0, 8)];
        b.post_sges(2, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        let first = b.sent().remove(0);
        b.memory.deregister(sge[0].lkey).unwrap();
        b.advance(QUIET);
        b.expect(&[first]);
        b.sends(&[]);
        b.peer(&[ack(SQ + 1, 2)]);
        b.sends(&[ok(1, WcOpcode::Send, 1), bad(2, WcStatus::LocProtErr)]);
        b.state(QpState::Err);
    }

    a_slow_peer_is_given_the_time_it_takes => "req.ackreq.rtt" {
        // It takes 20 ms: mean and four times half of that.
        let mut b = Bench::with(|s| s.tuning.min_patience = QUIET);
        b.post(1, WrOp::Send, 0, 1);
        b.sent();
        b.now = b.now + 20 * QUIET;
        b.ask(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
        b.post(2, WrOp::Send, 0, 1);
        let last = b.byte(SQ + 1);
        b.expect(std::slice::from_ref(&last));
        b.advance(60 * QUIET - NS);
        b.silence();
        b.advance(NS);
        b.expect(&[last]);
        b.ask(&[ack(SQ + 1, 2)], &[]);
        b.sends(&[ok(2, WcOpcode::Send, 1)]);
    }

    with_a_short_timeout_it_asks_in_a_quarter_of_it => "req.ackreq.probe" {
        // 4.096 us << 9 is 2.1 ms.
        let mut b = quiet(1, |s| s.timeout = 9);
        let quarter = Duration::from_nanos(4096 << 7);
        b.advance(quarter - NS);
        b.silence();
        b.advance(NS);
        let probe = b.byte(SQ);
        b.expect(&[probe]);
        b.ask(&[ack(SQ, 1)], &[]);
        // Without a timeout it asks all the same.
        let mut b = quiet(1, |s| s.timeout = 0);
        b.advance(QUIET);
        let probe = b.byte(SQ);
        b.expect(&[probe]);
        b.ask(&[ack(SQ, 1)], &[]);
    }

    a_slow_stream_asks_by_what_it_sends_anyway => "req.ackreq.probe" {
        let mut b = Bench::new();
        for i in 0..10 {
            b.quiet(i.into(), WrOp::Send);
            // At 0, 300, 600, ... us: half a millisecond after the first that did not ask, the next one does.
            let packet = b.byte(SQ + i).ask(i % 3 == 2);
            b.expect(&[packet]);
            b.advance(Duration::from_micros(300));
        }
        assert_eq!(b.count().ack_probe, 0);
        b.ask(&[ack(SQ + 9, 10)], &[]);
    }

    a_read_or_atomic_behind_it_asks_enough => "req.ackreq.probe" {
        let (va, rkey) = (0, RKey(3));
        for atomic in [false, true] {
            let mut b = quiet(1, |_| {});
            let sge = [b.mr.sge(0, 8)];
            let op = if atomic { WrOp::Atomic { va, rkey, op: AtomicOp::FetchAdd(1) } } else { WrOp::Read { va, rkey } };
            b.post_sges(1, op, &sge, UNSIGNALED).unwrap();
            b.expect(&[if atomic { fetch_add(SQ + 1, (va, rkey), 1) } else { read(SQ + 1, (va, rkey, 8)) }]);
            b.advance(T - NS);
            b.silence();
            b.ask(&[if atomic { atomic_ack(SQ + 1, 2, 5) } else { resp(Only, SQ + 1, 2, &[1; 8]) }], &[]);
            b.sends(&[]);
            b.advance(20 * T);
        }
    }

    a_paused_send_queue_asks_too => "req.ackreq.probe" {
        let mut b = quiet(1, |_| {});
        b.go(QpState::Sqd);
        b.quiet(1, WrOp::Send);
        b.silence();
        b.advance(QUIET);
        let probe = b.byte(SQ);
        b.expect(&[probe]);
        b.ask(&[ack(SQ, 1)], &[]);
    }

    a_failure_behind_it_waits_for_the_probe => "req.ackreq.probe" {
        let mut b = quiet(1, |_| {});
        let sge = [urxe::transport::Sge { addr: 0, length: 1, lkey: urxe::wire::LKey(0xbad) }];
        b.post_sges(1, WrOp::Send, &sge, UNSIGNALED).unwrap();
        b.silence();
        b.advance(QUIET);
        let probe = b.byte(SQ);
        b.expect(&[probe]);
        b.ask(&[ack(SQ, 1)], &[]);
        b.sends(&[bad(1, WcStatus::LocProtErr)]);
        b.state(QpState::Err);
    }

    an_acknowledgement_before_the_probe_saves_it => "req.ackreq.probe" {
        let mut b = quiet(2, |_| {});
        b.ask(&[ack(SQ + 1, 2)], &[]);
        b.advance(20 * T);
        b.silence();
        // One for a part does not.
        let mut b = quiet(2, |_| {});
        b.ask(&[ack(SQ, 1)], &[]);
        b.advance(QUIET);
        let probe = b.byte(SQ + 1);
        b.expect(&[probe]);
        b.ask(&[ack(SQ + 1, 2)], &[]);
    }

    a_loss_narrows_the_window_and_what_arrives_widens_it => "req.window.loss" {
        let mut b = Bench::with(|s| {
            (s.tuning.window, s.tuning.max_ack_silence, s.retry_cnt) = (16 * 1024, 9 * T, 7);
        });
        b.post(1, WrOp::Send, 0, 80 * 256);
        assert_eq!(b.sent().len(), 16);
        b.peer(&[nak(SQ, 0, NakCode::PsnSequenceError)]);
        let again = b.sent();
        assert_eq!(again.len(), 8);
        // What fills the window asks, or nothing would open it.
        assert!(again[7].h.bth.ack_req);
        b.peer(&[ack(SQ + 3, 0)]);
        assert_eq!(b.sent().len(), 4);
        b.peer(&[ack(SQ + 11, 0)]);
        assert_eq!(b.sent().len(), 8);
        // Never below two packets, and a timeout is a loss too.
        for (passed, packets) in [(T, 6), (T * 3 / 2, 3), (T * 3 / 2, 2), (T * 3 / 2, 2), (T * 3 / 2, 2)] {
            b.advance(passed);
            let again = b.sent();
            assert_eq!(again.len(), packets);
            assert!(again[packets - 1].h.bth.ack_req);
        }
        // It widens as more and more arrives.
        let (mut next, mut most) = (SQ + 14, 0);
        while next < SQ + 80 {
            b.peer(&[ack(next - 1, 0)]);
            let sent = b.sent().len() as u32;
            (next, most) = (next + sent, most.max(sent));
        }
        assert!((3..8).contains(&most), "{most} packets");
        b.ask(&[ack(SQ + 79, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 80 * 256)]);
    }

    a_sequence_nak_after_a_refusal_is_no_loss => "req.window.loss" {
        let mut b = Bench::with(|s| s.tuning.window = 16 * 1024);
        b.post(1, WrOp::Send, 0, 8 * 256);
        assert_eq!(b.sent().len(), 8);
        b.ask(&[rnr(SQ, 0, 1)], &[]);
        b.advance(Duration::from_micros(10));
        assert_eq!(b.sent().len(), 8);
        for _ in 0..3 {
            b.peer(&[nak(SQ, 0, NakCode::PsnSequenceError)]);
            assert_eq!(b.sent().len(), 8);
        }
        b.ask(&[ack(SQ + 7, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 8 * 256)]);
    }
}
