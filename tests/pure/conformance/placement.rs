//! Conformance cases: FLUSH and ATOMIC WRITE (annex A19).

use std::time::Duration;

use urxe::memory::Access;
use urxe::transport::{
    AsyncEvent, Placement, PostError, QpState, QpType, SendFlags, WcOpcode, WcStatus, WrOp,
};
use urxe::wire::{NakCode, RKey};

use crate::bench::{Bench, RQ, SQ, bad, flushed, ok};
use crate::pkt::*;
use urxe_test_support::engine::PD;

const GLOBAL: u32 = 1;
const PERSISTENT: u32 = 2;
const WHOLE_REGION: u32 = 0x10;
const FLUSHES: Access = Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT);

/// Returns a bench, and the R_Key of a 64-byte region at 0x1000; the QP and the region permit all kinds of
/// access.
fn with_region() -> (Bench, RKey) {
    let mut b = Bench::with(|s| s.access = Access::ALL | FLUSHES);
    let r = b.region(PD, 64, 0x1000, Access::ALL | FLUSHES);
    let key = b.regions[r].info.rkey;
    (b, key)
}

#[track_caller]
fn expect_nak(b: &mut Bench, p: Pkt, code: NakCode, event: fn(urxe::wire::Qpn) -> AsyncEvent) {
    b.exchange(&[p], &[nak(RQ, 0, code)]);
    b.events(&[event]);
    b.state(QpState::Err);
}

#[track_caller]
fn expect_access_nak(b: &mut Bench, p: Pkt) {
    expect_nak(b, p, NakCode::RemoteAccessError, AsyncEvent::QpAccessError);
}

#[track_caller]
fn expect_invalid_nak(b: &mut Bench, p: Pkt) {
    expect_nak(b, p, NakCode::InvalidRequest, AsyncEvent::QpRequestError);
}

const PLACEMENT: Placement = Placement::GLOBAL;

fn flush_op(len: u32) -> WrOp {
    WrOp::Flush { va: 0x1000, rkey: RKey(7), len, placement: PLACEMENT, whole_region: false }
}

fn atomic_write_op() -> WrOp {
    WrOp::AtomicWrite { va: 0x1000, rkey: RKey(7), value: *b"12345678" }
}

cases! {
    atomic_write_stores_eight_bytes => "atomic_write" {
        let (mut b, key) = with_region();
        b.exchange(&[atomic_write(RQ, (0x1008, key), *b"abcdefgh")], &[empty_resp(RQ, 1)]);
        assert_eq!(b.regions[0].read(8, 8), *b"abcdefgh");
        assert_eq!(b.regions[0].read(0, 8), Bench::new().mr.read(0, 8));
    }

    atomic_write_without_write_access_is_nakked => "atomic_write.invalid" {
        let mut b = Bench::with(|s| s.access = Access::ALL - Access::REMOTE_WRITE);
        let key = b.mr.info.rkey;
        expect_invalid_nak(&mut b, atomic_write(RQ, (Bench::IOVA, key), [1; 8]));
        let (mut b, _) = with_region();
        let r = b.region(PD, 64, 0, Access::REMOTE_READ);
        let key = b.regions[r].info.rkey;
        expect_access_nak(&mut b, atomic_write(RQ, (0, key), [1; 8]));
        let (mut b, key) = with_region();
        expect_access_nak(&mut b, atomic_write(RQ, (0x1040, key), [1; 8]));
    }

    unaligned_or_short_atomic_write_is_nakked => "atomic_write.invalid" {
        let (mut b, key) = with_region();
        expect_invalid_nak(&mut b, atomic_write(RQ, (0x1004, key), [1; 8]));
        for len in [0, 4, 12] {
            let (mut b, key) = with_region();
            let p = atomic_write(RQ, (0x1000, key), [1; 8]);
            expect_invalid_nak(&mut b, Pkt { data: vec![1; len], ..p });
        }
        let (mut b, key) = with_region();
        expect_invalid_nak(&mut b, atomic_write(RQ, (0x1000, key), [1; 8]).with(|h| h.reth.dma_len = 16));
        // The address in host memory may be unaligned where the peer's is aligned.
        let (mut b, _) = with_region();
        let r = b.region(PD, 64, 0x1004, Access::ALL);
        let key = b.regions[r].info.rkey;
        b.exchange(
            &[atomic_write(RQ, (0x1008, key), [1; 8])],
            &[nak(RQ, 0, NakCode::RemoteOperationalError)],
        );
        b.events(&[AsyncEvent::QpFatal]);
    }

    flush_is_answered_after_earlier_requests => "flush" {
        let (mut b, key) = with_region();
        for (i, feth) in
            [GLOBAL, PERSISTENT, GLOBAL | PERSISTENT, GLOBAL | WHOLE_REGION, PERSISTENT | WHOLE_REGION]
                .into_iter()
                .enumerate()
        {
            let psn = RQ + 2 * i as u32;
            let msn = 2 * i as u32;
            b.exchange(
                &[
                    write(Only, psn, (0x1000, key, 1), &[i as u8 + 1]).ackreq(false),
                    flush(psn + 1, (0x1000, key, 64), feth),
                ],
                &[empty_resp(psn + 1, msn + 2)],
            );
            assert_eq!(b.regions[0].read(0, 1), [i as u8 + 1]);
        }
    }

    flush_without_access_for_its_placement_is_nakked => "flush.access" {
        for (feth, needed) in [(GLOBAL, Access::FLUSH_GLOBAL), (PERSISTENT, Access::FLUSH_PERSISTENT)] {
            for whole in [0, WHOLE_REGION] {
                let access = (Access::ALL | FLUSHES) - needed;
                let mut b = Bench::with(|s| s.access = access);
                let r = b.region(PD, 64, 0, Access::ALL | FLUSHES);
                let key = b.regions[r].info.rkey;
                expect_invalid_nak(&mut b, flush(RQ, (0, key, 8), feth | whole));
                let (mut b, _) = with_region();
                let r = b.region(PD, 64, 0, access);
                let key = b.regions[r].info.rkey;
                expect_access_nak(&mut b, flush(RQ, (0, key, 8), feth | whole));
            }
        }
    }

    flush_outside_region_or_with_unknown_key_is_nakked => "flush.access" {
        let (mut b, key) = with_region();
        expect_access_nak(&mut b, flush(RQ, (0x1000, key, 65), GLOBAL));
        let (mut b, key) = with_region();
        expect_access_nak(&mut b, flush(RQ, (0x1000, RKey(key.0 + 1), 8), GLOBAL));
        let (mut b, key) = with_region();
        expect_access_nak(&mut b, flush(RQ, (0x1000, RKey(key.0 + 1), 8), GLOBAL | WHOLE_REGION));
        // The range is ignored if the whole region is selected; a FLUSH of no bytes does not even need a key.
        let (mut b, key) = with_region();
        b.exchange(&[flush(RQ, (0x9999_0000, key, 1 << 20), GLOBAL | WHOLE_REGION)], &[empty_resp(RQ, 1)]);
        b.exchange(&[flush(RQ + 1, (0, RKey(0), 0), GLOBAL)], &[empty_resp(RQ + 1, 2)]);
    }

    flush_with_reserved_type_or_selectivity_is_nakked => "flush.invalid" {
        for feth in [0, 4, 8, 0xf, WHOLE_REGION, GLOBAL | 0x20, GLOBAL | 0x30] {
            let (mut b, key) = with_region();
            expect_invalid_nak(&mut b, flush(RQ, (0x1000, key, 8), feth));
        }
        // Reserved bits above these are ignored.
        let (mut b, key) = with_region();
        b.exchange(&[flush(RQ, (0x1000, key, 8), GLOBAL | 0xffff_ffc0)], &[empty_resp(RQ, 1)]);
    }

    flushes_and_atomic_writes_beyond_responder_resources_are_nakked => "placement.depth" {
        for kind in 0..2 {
            let (mut b, key) = with_region();
            let one = |i: u32| match kind {
                0 => flush(RQ + i, (0x1000, key, 8), GLOBAL),
                _ => atomic_write(RQ + i, (0x1000, key), [1; 8]),
            };
            let mut expected: Vec<_> = (0..4).map(|i| empty_resp(RQ + i, i + 1)).collect();
            expected.push(nak(RQ + 4, 4, NakCode::InvalidRequest));
            b.exchange(&(0..5).map(one).collect::<Vec<_>>(), &expected);
            b.events(&[AsyncEvent::QpRequestError]);
        }
    }

    flushes_and_atomic_writes_in_flight_are_limited_to_max_rd_atomic => "placement.depth" {
        for (op, opcode) in [(flush_op(8), WcOpcode::Flush), (atomic_write_op(), WcOpcode::AtomicWrite)] {
            let mut b = Bench::with(|s| s.max_rd = 2);
            (1..=3).for_each(|i| b.post_no_data(i, op));
            assert_eq!(b.sent().len(), 2);
            b.deliver(&[empty_resp(SQ, 1)]);
            assert_eq!(b.sent().len(), 1);
            b.deliver(&[empty_resp(SQ + 1, 2), empty_resp(SQ + 2, 3)]);
            b.sends(&[ok(1, opcode, 0), ok(2, opcode, 0), ok(3, opcode, 0)]);
            let mut b = Bench::with(|s| s.max_rd = 0);
            assert_eq!(b.post_sges(1, op, &[], SendFlags::SIGNALED), Err(PostError::NoReadResources));
        }
    }

    duplicate_flush_or_atomic_write_is_answered_and_not_executed => "placement.dup" {
        let (mut b, key) = with_region();
        let p = [atomic_write(RQ, (0x1000, key), [1; 8]), flush(RQ + 1, (0x1000, key, 8), GLOBAL)];
        b.exchange(&p, &[empty_resp(RQ, 1), empty_resp(RQ + 1, 2)]);
        b.regions[0].write(0, &[5; 8]);
        b.exchange(&p, &[empty_resp(RQ, 1), empty_resp(RQ + 1, 2)]);
        b.exchange(&p[1..], &[empty_resp(RQ + 1, 2)]);
        assert_eq!(b.regions[0].read(0, 8), [5; 8]);
        // One response suffices for a duplicate of a request whose response has not been sent yet.
        b.deliver(&p[..1]);
        b.deliver(&p[..1]);
        b.expect(&[empty_resp(RQ, 1)]);
        // A duplicate of a request that is no longer saved causes no response.
        b.exchange(
            &(2..6).map(|i| flush(RQ + i, (0x1000, key, 8), GLOBAL)).collect::<Vec<_>>(),
            &(2..6).map(|i| empty_resp(RQ + i, i + 1)).collect::<Vec<_>>(),
        );
        b.exchange(&p[..1], &[]);
    }

    flush_and_atomic_write_are_sent_as_one_packet => "placement.requester" {
        let mut b = Bench::new();
        b.post_no_data(1, flush_op(9000));
        b.post_no_data(2, atomic_write_op());
        let op = WrOp::Flush {
            va: 5,
            rkey: RKey(8),
            len: 0,
            placement: Placement::all(),
            whole_region: true,
        };
        b.post_no_data(3, op);
        b.expect(&[
            flush(SQ, (0x1000, RKey(7), 9000), GLOBAL),
            atomic_write(SQ + 1, (0x1000, RKey(7)), *b"12345678"),
            flush(SQ + 2, (5, RKey(8), 0), GLOBAL | PERSISTENT | WHOLE_REGION),
        ]);
        b.deliver(&[empty_resp(SQ, 1), empty_resp(SQ + 1, 2), empty_resp(SQ + 2, 3)]);
        b.sends(&[ok(1, WcOpcode::Flush, 0), ok(2, WcOpcode::AtomicWrite, 0), ok(3, WcOpcode::Flush, 0)]);
    }

    ack_does_not_complete_flush_or_atomic_write => "placement.requester" {
        for (op, opcode) in [(flush_op(8), WcOpcode::Flush), (atomic_write_op(), WcOpcode::AtomicWrite)] {
            let mut b = Bench::new();
            b.post_no_data(1, op);
            let p = b.sent();
            // The acknowledgement implies that the response is lost: the request is retransmitted at once.
            b.exchange(&[ack(SQ, 1)], &p);
            b.sends(&[]);
            b.deliver(&[empty_resp(SQ, 1)]);
            b.sends(&[ok(1, opcode, 0)]);
            // The ACK timeout has the same result.
            b.post_no_data(2, op);
            let p = b.sent();
            b.advance(Duration::from_millis(70));
            b.expect(&p);
            b.deliver(&[empty_resp(SQ + 1, 2)]);
            b.sends(&[ok(2, opcode, 0)]);
            // A response with data is invalid.
            b.post_no_data(3, op);
            assert_eq!(b.sent().len(), 1);
            b.deliver(&[resp(Only, SQ + 2, 3, &[1; 4])]);
            b.sends(&[bad(3, WcStatus::BadRespErr)]);
        }
    }

    fenced_request_waits_for_flush_and_atomic_write => "placement.requester" {
        let mut b = Bench::new();
        b.post_no_data(1, flush_op(8));
        let sge = [b.mr.sge(0, 4)];
        b.post_sges(2, WrOp::Send, &sge, SendFlags { fence: true, ..SendFlags::SIGNALED }).unwrap();
        assert_eq!(b.sent().len(), 1);
        let d = b.mr.read(0, 4);
        b.exchange(&[empty_resp(SQ, 1)], &[send(Only, SQ + 1, &d)]);
        b.deliver(&[ack(SQ + 1, 2)]);
        b.sends(&[ok(1, WcOpcode::Flush, 0), ok(2, WcOpcode::Send, 4)]);
    }

    posting_an_invalid_flush_or_atomic_write_fails => "placement.requester" {
        let mut b = Bench::new();
        let no_placement = Placement::empty();
        let op = WrOp::Flush { va: 0, rkey: RKey(7), len: 0, placement: no_placement, whole_region: true };
        assert_eq!(b.post_sges(1, op, &[], SendFlags::SIGNALED), Err(PostError::NoPlacement));
        let sge = [b.mr.sge(0, 4)];
        for (op, opcode) in [(flush_op(8), WcOpcode::Flush), (atomic_write_op(), WcOpcode::AtomicWrite)] {
            assert_eq!(b.post_sges(1, op, &sge, SendFlags::SIGNALED), Err(PostError::NoData(opcode)));
            let mut b = Bench::with(|s| s.qp_type = QpType::Uc);
            let error = Err(PostError::Unsupported(QpType::Uc, opcode));
            assert_eq!(b.post_sges(1, op, &[], SendFlags::SIGNALED), error);
        }
    }

    flush_or_atomic_write_fails_when_it_is_nakked => "placement.requester" {
        for op in [flush_op(8), atomic_write_op()] {
            let mut b = Bench::new();
            b.post_no_data(1, op);
            b.post_no_data(2, op);
            assert_eq!(b.sent().len(), 2);
            b.deliver(&[nak(SQ, 0, NakCode::RemoteAccessError)]);
            b.sends(&[bad(1, WcStatus::RemAccessErr), flushed(2)]);
        }
    }
}
