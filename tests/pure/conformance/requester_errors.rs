//! Conformance cases: the requester's handling of NAKs and local errors, and flushed work requests.

use urxe::memory::{Access, PdId};
use urxe::transport::{QpState, SendFlags, Sge, WcOpcode, WcStatus, WrOp};
use urxe::wire::{LKey, NakCode, RKey};

use crate::bench::{Bench, SQ, bad, flushed, ok};
use crate::pkt::*;

const READ: WrOp = WrOp::Read { va: 0x1000, rkey: RKey(1) };

cases! {
    each_nak_code_yields_its_completion_status => "req.nak.fatal" {
        let codes = [
            (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
            (NakCode::RemoteAccessError, WcStatus::RemAccessErr),
            (NakCode::RemoteOperationalError, WcStatus::RemOpErr),
            (NakCode::InvalidRdRequest, WcStatus::RemInvReqErr),
        ];
        for (code, status) in codes {
            let mut b = Bench::new();
            b.recv(10, 0, 1);
            b.recv(11, 0, 1);
            for i in 1..=4 {
                b.post(i, WrOp::Send, 0, 1);
            }
            assert_eq!(b.sent().len(), 4);
            // Requests before the failed one are acknowledged, those after it are flushed, in order and
            // exactly once.
            b.exchange(&[nak(SQ + 1, 1, code)], &[]);
            b.sends(&[ok(1, WcOpcode::Send, 1), bad(2, status), flushed(3), flushed(4)]);
            b.recvs(&[flushed(10), flushed(11)]);
            b.state(QpState::Err);
            assert_eq!(b.count().req_remote_err, 1);
            b.exchange(&[nak(SQ + 1, 1, code), ack(SQ + 3, 4)], &[]);
            b.advance(std::time::Duration::from_secs(10));
        }
    }

    nak_of_a_read_fails_the_read => "req.nak.fatal" {
        let mut b = Bench::new();
        b.post(1, READ, 0, 600);
        b.expect(&[read(SQ, (0x1000, RKey(1), 600))]);
        b.exchange(&[resp(First, SQ, 1, &[1; 256]), nak(SQ + 1, 0, NakCode::RemoteAccessError)], &[]);
        b.sends(&[bad(1, WcStatus::RemAccessErr)]);
    }

    read_is_retransmitted_if_a_later_request_is_nakked_before_its_response => "req.nak.after_read" {
        let mut b = Bench::new();
        b.post(1, READ, 0, 8);
        b.post(2, WrOp::Send, 0, 1);
        let all = b.sent();
        b.exchange(&[nak(SQ + 1, 1, NakCode::InvalidRequest)], &all);
        b.sends(&[]);
        b.exchange(&[resp(Only, SQ, 1, &[1; 8]), nak(SQ + 1, 1, NakCode::InvalidRequest)], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 8), bad(2, WcStatus::RemInvReqErr)]);
    }

    completion_of_a_failed_or_flushed_request_has_its_opcode => "req.flush" {
        let kinds = [WcOpcode::RdmaWrite, WcOpcode::RdmaRead, WcOpcode::Send, WcOpcode::RdmaWrite];
        let mut b = Bench::new();
        b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 1);
        b.post(2, READ, 0, 1);
        b.post(3, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 3);
        b.deliver(&[nak(SQ, 0, NakCode::RemoteAccessError)]);
        b.post(4, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 1);
        assert_eq!(b.sent_opcodes(), kinds);
        b.recv(5, 0, 1);
        assert_eq!(b.raw_recv().opcode, WcOpcode::Recv);
    }

    unsignaled_requests_are_flushed_with_a_completion => "req.flush" {
        let mut b = Bench::new();
        let sge = [b.mr.sge(0, 1)];
        for i in 1..=3 {
            b.post_sges(i, WrOp::Send, &sge, SendFlags::default()).unwrap();
        }
        assert_eq!(b.sent().len(), 3);
        b.exchange(&[nak(SQ + 1, 1, NakCode::InvalidRequest)], &[]);
        b.sends(&[bad(2, WcStatus::RemInvReqErr), flushed(3)]);
        // Work requests posted in ERR are flushed at once.
        b.post(4, WrOp::Send, 0, 1);
        b.post(5, READ, 0, 1);
        b.sends(&[flushed(4), flushed(5)]);
        b.recv(6, 0, 1);
        b.recvs(&[flushed(6)]);
    }

    work_request_with_invalid_lkey_fails_in_order => "req.local" {
        let good = Bench::new().mr.sge(0, 1);
        let wrong = |b: &mut Bench, i| {
            let foreign = b.region(PdId(2), 64, 0, Access::ALL);
            match i {
                0 => Sge { lkey: LKey(0x5555), ..good },
                1 => b.regions[foreign].sge(0, 8),
                _ => b.mr.sge((1 << 16) - 1, 2),
            }
        };
        for i in 0..3 {
            for op in [WrOp::Send, WrOp::Write { va: 0, rkey: RKey(1) }] {
                let mut b = Bench::new();
                let sge = [wrong(&mut b, i)];
                b.post(1, WrOp::Send, 0, 1);
                b.post(2, READ, 8, 8);
                b.post_sges(3, op, &sge, SendFlags::default()).unwrap();
                b.post(4, WrOp::Send, 0, 1);
                assert_eq!(b.sent().len(), 2);
                b.sends(&[]);
                b.state(QpState::Rts);
                b.exchange(&[ack(SQ, 1)], &[]);
                b.sends(&[ok(1, WcOpcode::Send, 1)]);
                b.exchange(&[resp(Only, SQ + 1, 2, &[1; 8])], &[]);
                b.sends(&[ok(2, WcOpcode::RdmaRead, 8), bad(3, WcStatus::LocProtErr), flushed(4)]);
                b.state(QpState::Err);
                // Without a request before it, it fails at once, and nothing is sent.
                let mut b = Bench::new();
                let sge = [wrong(&mut b, i)];
                b.post_sges(3, op, &sge, SendFlags::SIGNALED).unwrap();
                b.expect_nothing();
                b.sends(&[bad(3, WcStatus::LocProtErr)]);
            }
        }
    }

    work_request_with_invalid_lkey_posted_after_a_loss_fails_after_recovery => "req.local" {
        let mut b = Bench::new();
        let sge = [Sge { addr: 0, length: 1, lkey: LKey(0x5555) }];
        b.post(1, WrOp::Send, 0, 1);
        b.post_sges(2, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        let one = b.sent();
        assert_eq!(one.len(), 1);
        b.exchange(&[nak(SQ, 0, NakCode::PsnSequenceError)], &one);
        b.exchange(&[rnr(SQ, 0, 1)], &[]);
        b.advance(std::time::Duration::from_micros(10));
        b.expect(&one);
        b.sends(&[]);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1), bad(2, WcStatus::LocProtErr)]);
    }

    request_fails_if_its_region_is_deregistered_before_the_retry => "req.local" {
        let mut b = Bench::new();
        let r = b.region(urxe_test_support::engine::PD, 600, 0, Access::ALL);
        let sge = [b.regions[r].sge(0, 600)];
        b.post_sges(1, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        assert_eq!(b.sent().len(), 3);
        b.memory.deregister(sge[0].lkey).unwrap();
        b.exchange(&[nak(SQ + 1, 0, NakCode::PsnSequenceError)], &[]);
        b.sends(&[bad(1, WcStatus::LocProtErr)]);
    }

    delivered_request_succeeds_if_its_region_is_deregistered_before_the_ack => "req.local" {
        // The second request cannot be retransmitted, but it has arrived.
        let mut b = Bench::new();
        let r = b.region(urxe_test_support::engine::PD, 8, 0, Access::ALL);
        b.post(1, WrOp::Send, 0, 1);
        let sge = [b.regions[r].sge(0, 8)];
        b.post_sges(2, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        assert_eq!(b.sent().len(), 2);
        b.memory.deregister(sge[0].lkey).unwrap();
        b.advance(std::time::Duration::from_nanos(4096 << 14));
        assert_eq!(b.sent().len(), 1);
        b.exchange(&[ack(SQ + 1, 2)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1), ok(2, WcOpcode::Send, 8)]);
        b.post(3, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 1);
        b.exchange(&[ack(SQ + 2, 3)], &[]);
        b.sends(&[ok(3, WcOpcode::Send, 1)]);
    }

    local_sge_of_length_0_needs_no_key => "req.local.zero" {
        let mut b = Bench::new();
        let sge = [Sge { addr: 0, length: 0, lkey: LKey(0x5555) }];
        b.post_sges(1, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        b.expect(&[send(Only, SQ, &[])]);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 0)]);
    }
}
