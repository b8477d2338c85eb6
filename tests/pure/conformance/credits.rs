//! Conformance cases: end-to-end credits.

use std::time::Duration;

use urxe::memory::AtomicOp;
use urxe::transport::{QpType, SendFlags, WcOpcode, WrOp};
use urxe::wire::{NakCode, RKey, Syndrome};

use crate::bench::{Bench, RQ, SQ, Setup, ok};
use crate::pkt::*;

fn bench(change: impl FnOnce(&mut Setup)) -> Bench {
    Bench::with(|s| {
        s.quirks.credits = true;
        change(s);
    })
}

/// Returns the acknowledgement `p` with its credit code replaced by `credits`.
fn with_credits(p: Pkt, credits: u8) -> Pkt {
    p.with(|h| h.aeth.syndrome = Syndrome::Ack { credits })
}

fn ack_with_credits(psn: u32, msn: u32, credits: u8) -> Pkt {
    with_credits(ack(psn, msn), credits)
}

const RKEY: RKey = RKey(7);

cases! {
    ack_advertises_the_posted_receives_rounded_down_to_a_credit_code => "credits.sent" {
        // Pairs of the number of receives and the largest credit code that does not exceed it.
        for (receives, code) in [
            (0, 0),
            (1, 1),
            (4, 4),
            (5, 4),
            (6, 5),
            (7, 5),
            (8, 6),
            (11, 6),
            (12, 7),
            (23, 8),
            (63, 11),
            (64, 12),
        ] {
            let mut b = bench(|_| {});
            (0..receives).for_each(|i| b.recv(i, 0, 10));
            let to = b.remote(0, 1);
            b.exchange(&[write(Only, RQ, to, &[1])], &[ack_with_credits(RQ, 1, code)]);
        }
    }

    receive_is_advertised_as_credit_until_its_message_is_complete => "credits.sent" {
        let mut b = bench(|_| {});
        b.recv(1, 0, 600);
        b.recv(2, 0, 600);
        b.exchange(&[send(First, RQ, &[1; 256]).ackreq(true)], &[ack_with_credits(RQ, 0, 2)]);
        b.exchange(&[send(Last, RQ + 1, &[1])], &[ack_with_credits(RQ + 1, 1, 1)]);
        b.recvs(&[ok(1, WcOpcode::Recv, 257)]);
    }

    read_and_atomic_responses_carry_credits_and_naks_do_not => "credits.sent" {
        let mut b = bench(|_| {});
        b.recv(1, 0, 10);
        let (from, d) = (b.remote(0, 600), b.mr.read(0, 600));
        let response = message(256, &d, |p, n, d| resp(p, n, 1, d), RQ);
        b.exchange(
            &[read(RQ, from)],
            &[
                with_credits(response[0].clone(), 1),
                response[1].clone(),
                with_credits(response[2].clone(), 1),
            ],
        );
        b.mr.write(0, &[0; 8]);
        b.exchange(&[fetch_add(RQ + 3, (from.0, from.1), 1)], &[with_credits(atomic_ack(RQ + 3, 2, 0), 1)]);
        b.exchange(&[send(Only, RQ + 5, &[1])], &[nak(RQ + 4, 2, NakCode::PsnSequenceError)]);
    }

    qp_with_an_srq_advertises_no_credits => "credits.none" {
        let mut b = bench(|s| s.shared = true);
        b.recv(1, 0, 10);
        let to = b.remote(0, 1);
        b.exchange(&[write(Only, RQ, to, &[1])], &[ack_with_credits(RQ, 1, 31)]);
        let mut b = bench(|s| s.qp_type = QpType::XrcRecv);
        let (srq, to) = (b.srq.unwrap(), b.remote(0, 1));
        b.exchange(&[write(Only, RQ, to, &[1]).xrc(srq)], &[ack_with_credits(RQ, 1, 31).xrc(srq)]);
    }

    without_credits_messages_are_sent_one_at_a_time => "credits.limit" {
        let mut b = bench(|_| {});
        let d = b.mr.read(0, 4);
        // No credits have been advertised yet: all are sent.
        (1..=2).for_each(|i| b.post(i, WrOp::Send, 0, 4));
        b.expect(&[send(Only, SQ, &d), send(Only, SQ + 1, &d)]);
        // The peer advertises credit for one message beyond the acknowledged ones.
        b.deliver(&[ack_with_credits(SQ + 1, 2, 1)]);
        (3..=6).for_each(|i| b.post(i, WrOp::Send, 0, 4));
        b.expect(&[send(Only, SQ + 2, &d)]);
        b.exchange(&[ack_with_credits(SQ + 2, 3, 0)], &[send(Only, SQ + 3, &d)]);
        b.expect_nothing();
        // The peer advertises credits for two more.
        b.exchange(&[ack_with_credits(SQ + 3, 4, 2)], &[send(Only, SQ + 4, &d), send(Only, SQ + 5, &d)]);
        b.deliver(&[ack_with_credits(SQ + 5, 6, 0)]);
        b.sends(&(1..=6).map(|i| ok(i, WcOpcode::Send, 4)).collect::<Vec<_>>());
    }

    without_credits_only_the_first_packet_is_sent_until_it_is_acknowledged => "credits.limit" {
        let mut b = bench(|_| {});
        let d = b.mr.read(0, 600);
        b.post(1, WrOp::Send, 0, 4);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack_with_credits(SQ, 1, 0)]);
        b.post(2, WrOp::Send, 0, 600);
        let all = message(256, &d, send, SQ + 1);
        b.expect(&[all[0].clone().ackreq(true)]);
        b.expect_nothing();
        b.exchange(&[ack_with_credits(SQ + 1, 1, 0)], &all[1..]);
        b.deliver(&[ack_with_credits(SQ + 3, 2, 0)]);
        b.sends(&[ok(1, WcOpcode::Send, 4), ok(2, WcOpcode::Send, 600)]);
    }

    last_message_without_ackreq_is_probed_when_credits_run_out => "credits.limit" {
        let mut b = bench(|_| {});
        let (d, sge) = (b.mr.read(0, 4), [b.mr.sge(0, 4)]);
        b.post(1, WrOp::Send, 0, 4);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack_with_credits(SQ, 1, 1)]);
        b.post_sges(2, WrOp::Send, &sge, SendFlags::default()).unwrap();
        b.expect(&[send(Only, SQ + 1, &d).ackreq(false)]);
        b.post_sges(3, WrOp::Send, &sge, SendFlags::default()).unwrap();
        // The third waits for the acknowledgement of the second, which was sent without AckReq: the second is
        // retransmitted with AckReq.
        b.expect(&[send(Only, SQ + 1, &d)]);
        b.exchange(&[ack_with_credits(SQ + 1, 2, 0)], &[send(Only, SQ + 2, &d)]);
        b.deliver(&[ack_with_credits(SQ + 2, 3, 0)]);
        b.sends(&[ok(1, WcOpcode::Send, 4)]);
    }

    first_packet_sent_without_credits_is_retransmitted_after_an_rnr_nak => "credits.limit" {
        let mut b = bench(|_| {});
        let d = b.mr.read(0, 300);
        b.post(1, WrOp::Send, 0, 4);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack_with_credits(SQ, 1, 0)]);
        b.post(2, WrOp::Send, 0, 300);
        let all = message(256, &d, send, SQ + 1);
        b.expect(&[all[0].clone().ackreq(true)]);
        b.deliver(&[rnr(SQ + 1, 1, 12)]);
        b.advance(Duration::from_millis(1));
        b.expect(&[all[0].clone().ackreq(true)]);
        b.exchange(&[ack_with_credits(SQ + 1, 1, 1)], &all[1..]);
        b.deliver(&[ack_with_credits(SQ + 2, 2, 0)]);
        b.sends(&[ok(1, WcOpcode::Send, 4), ok(2, WcOpcode::Send, 300)]);
    }

    operations_that_consume_no_receive_need_no_credit => "credits.exempt" {
        let mut b = bench(|_| {});
        b.post(1, WrOp::Send, 0, 4);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack_with_credits(SQ, 1, 0)]);
        b.post(2, WrOp::Write { va: 0, rkey: RKEY }, 0, 600);
        b.post(3, WrOp::Read { va: 0, rkey: RKEY }, 0, 4);
        b.post(4, WrOp::Atomic { va: 0, rkey: RKEY, op: AtomicOp::FetchAdd(1) }, 0, 8);
        assert_eq!(b.sent().len(), 5);
        // A WRITE with immediate does need a credit.
        b.post(5, WrOp::WriteWithImm { va: 0, rkey: RKEY, imm: 1 }, 0, 4);
        b.expect_nothing();
        b.deliver(&[ack_with_credits(SQ + 3, 2, 0), resp(Only, SQ + 4, 3, &[1; 4])]);
        let last = with_credits(atomic_ack(SQ + 5, 4, 1), 0);
        b.deliver(&[last]);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack_with_credits(SQ + 6, 5, 0)]);
        b.sends(&[
            ok(1, WcOpcode::Send, 4),
            ok(2, WcOpcode::RdmaWrite, 600),
            ok(3, WcOpcode::RdmaRead, 4),
            ok(4, WcOpcode::FetchAdd, 8),
            ok(5, WcOpcode::RdmaWrite, 4),
        ]);
    }

    credit_code_31_lifts_the_limit => "credits.exempt" {
        let mut b = bench(|_| {});
        b.post(1, WrOp::Send, 0, 4);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack_with_credits(SQ, 1, 0)]);
        (2..=4).for_each(|i| b.post(i, WrOp::Send, 0, 4));
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack_with_credits(SQ + 1, 2, 31)]);
        assert_eq!(b.sent().len(), 2);
        b.deliver(&[ack(SQ + 3, 4)]);
        b.sends(&(1..=4).map(|i| ok(i, WcOpcode::Send, 4)).collect::<Vec<_>>());
        // A device without end-to-end credits ignores the field.
        let mut b = Bench::new();
        b.post(1, WrOp::Send, 0, 4);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack_with_credits(SQ, 1, 0)]);
        (2..=4).for_each(|i| b.post(i, WrOp::Send, 0, 4));
        assert_eq!(b.sent().len(), 3);
        b.deliver(&[ack(SQ + 3, 4)]);
        b.sends(&(1..=4).map(|i| ok(i, WcOpcode::Send, 4)).collect::<Vec<_>>());
    }

    new_connection_has_no_credit_limit_until_its_first_ack => "credits.limit" {
        use urxe::transport::QpState;
        let mut b = bench(|_| {});
        b.post(1, WrOp::Send, 0, 4);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack_with_credits(SQ, 1, 0)]);
        b.sends(&[ok(1, WcOpcode::Send, 4)]);
        b.set_state(QpState::Reset);
        b.connect(0, QpState::Rts);
        (2..=4).for_each(|i| b.post(i, WrOp::Send, 0, 4));
        assert_eq!(b.sent().len(), 3);
        b.deliver(&[ack_with_credits(SQ, 1, 1)]);
        b.post(5, WrOp::Send, 0, 4);
        b.expect_nothing();
        b.deliver(&[ack_with_credits(SQ + 2, 3, 1)]);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack_with_credits(SQ + 3, 4, 1)]);
        b.sends(&(2..=5).map(|i| ok(i, WcOpcode::Send, 4)).collect::<Vec<_>>());
    }

    credit_limit_wraps_at_24_bits => "credits.wrap" {
        // Modular comparison: a message number is within the limit if it is fewer than half of all numbers
        // before it.
        let mut b = bench(|_| {});
        b.post(1, WrOp::Send, 0, 4);
        assert_eq!(b.sent().len(), 1);
        // The peer's MSN has another origin: 0xffffff plus two credits allows messages up to number 1, so the
        // second is beyond.
        b.deliver(&[ack_with_credits(SQ, 0xff_ffff, 2)]);
        b.post(2, WrOp::Send, 0, 4);
        b.post(3, WrOp::Send, 0, 4);
        assert_eq!(b.sent().len(), 1);
        // 0xffffff plus four credits allows messages up to number 3: the third is sent, the fourth waits.
        b.deliver(&[ack_with_credits(SQ + 1, 0xff_ffff, 4)]);
        assert_eq!(b.sent().len(), 1);
        b.post(4, WrOp::Send, 0, 4);
        b.expect_nothing();
        b.deliver(&[ack_with_credits(SQ + 2, 3, 1)]);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack(SQ + 3, 4)]);
        b.sends(&(1..=4).map(|i| ok(i, WcOpcode::Send, 4)).collect::<Vec<_>>());
    }
}
