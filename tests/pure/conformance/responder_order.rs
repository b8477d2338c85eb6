//! Conformance cases: the responder's checks of PSNs, opcode sequences and lengths.

use urxe::memory::Access;
use urxe::transport::{AsyncEvent, QpState, WcOpcode::Recv, WcStatus};
use urxe::wire::{Mtu, NakCode, Position};

use crate::bench::{Bench, RQ, bad, flushed, ok};
use crate::pkt::*;

/// Asserts that the NIC sends an invalid request NAK for `psn`, moves the QP to ERR and reports
/// `QpRequestError`; the caller checks the completions.
#[track_caller]
fn expect_invalid_nak(b: &mut Bench, psn: u32, msn: u32) {
    b.expect(&[nak(psn, msn, NakCode::InvalidRequest)]);
    b.state(QpState::Err);
    b.events(&[AsyncEvent::QpRequestError]);
    assert_eq!(b.count().resp_invalid_request, 1);
}

cases! {
    packets_in_order_are_executed_once => "resp.psn.expected" {
        let mut b = Bench::new();
        b.recv(1, 0, 100);
        b.recv(2, 100, 100);
        b.exchange(&[send(Only, RQ, &[1; 10])], &[ack(RQ, 1)]);
        b.exchange(&[send(Only, RQ + 1, &[2; 10])], &[ack(RQ + 1, 2)]);
        b.recvs(&[ok(1, Recv, 10), ok(2, Recv, 10)]);
        assert_eq!(b.mr.read(0, 10), [1; 10]);
        assert_eq!(b.mr.read(100, 10), [2; 10]);
    }

    gap_in_psns_is_nakked_once => "resp.psn.ahead" {
        let mut b = Bench::new();
        b.recv(1, 0, 100);
        b.exchange(&[send(Only, RQ + 1, &[9; 10])], &[nak(RQ, 0, NakCode::PsnSequenceError)]);
        b.exchange(&[send(Only, RQ + 2, &[9; 10]), send(Only, RQ + 1, &[9; 10])], &[]);
        assert_eq!(b.count().out_of_seq_request, 3);
        b.state(QpState::Rts);
        b.recvs(&[]);
        b.exchange(&[send(Only, RQ, &[1; 10])], &[ack(RQ, 1)]);
        b.recvs(&[ok(1, Recv, 10)]);
        // The next gap is NAKed again.
        b.exchange(&[send(Only, RQ + 2, &[9; 10])], &[nak(RQ + 1, 1, NakCode::PsnSequenceError)]);
    }

    each_gap_inside_a_write_is_nakked_once => "resp.psn.ahead" {
        let mut b = Bench::new();
        let to = b.remote(0, 1100);
        let before = b.mr.read(0, 1100);
        let d: Vec<u8> = before.iter().map(|byte| !byte).collect();
        let p = message(256, &d, |p, n, d| write(p, n, to, d), RQ);
        b.exchange(&[p[0].clone(), p[2].clone(), p[3].clone()], &[nak(RQ + 1, 0, NakCode::PsnSequenceError)]);
        assert_eq!(b.mr.read(0, 1100), [&d[..256], &before[256..]].concat());
        b.exchange(&[p[1].clone(), p[3].clone()], &[nak(RQ + 2, 0, NakCode::PsnSequenceError)]);
        // Data of the packets before is not stored again.
        b.mr.write(256, &[9]);
        b.exchange(&[p[1].clone().ackreq(true)], &[ack(RQ + 1, 0)]);
        assert_eq!(b.mr.read(256, 1), [9]);
        b.exchange(&p[2..], &[ack(RQ + 4, 1)]);
        assert_eq!(b.mr.read(512, 588), d[512..]);
    }

    psn_at_half_the_space_is_a_duplicate_and_the_one_before_is_out_of_sequence => "resp.psn.halves" {
        let mut b = Bench::new();
        let half = 1 << 23;
        b.exchange(&[send(Only, RQ + half, &[9])], &[ack(RQ - 1, 0)]);
        assert_eq!((b.count().duplicate_request, b.count().out_of_seq_request), (1, 0));
        b.exchange(&[send(Only, RQ + half - 1, &[9])], &[]);
        assert_eq!((b.count().duplicate_request, b.count().out_of_seq_request), (1, 1));
    }

    single_request_over_256_psns_ahead_is_dropped_without_a_nak => "resp.psn.far" {
        let mut b = Bench::new();
        b.recv(1, 0, 100);
        let far = [257, 1 << 14, 9000, 257, (1 << 14) + 1, (1 << 14) + 2, 1 << 22, (1 << 22) + 1];
        for (n, ahead) in (1..).zip(far) {
            b.exchange(&[send(Only, RQ + ahead, &[9; 10])], &[]);
            assert_eq!(b.count().out_of_seq_request, n);
        }
        b.state(QpState::Rts);
        b.recvs(&[]);
        // The packet with the expected PSN is executed.
        b.exchange(&[send(Only, RQ, &[1; 10])], &[ack(RQ, 1)]);
        b.recvs(&[ok(1, Recv, 10)]);
    }

    gap_of_over_256_packets_is_nakked_only_at_the_second_request => "resp.psn.far" {
        for gap in [257, 1000, (1 << 14) - 1] {
            let mut b = Bench::new();
            b.exchange(&[send(Only, RQ + gap, &[9])], &[]);
            b.exchange(&[send(Only, RQ + gap + 1, &[9])], &[nak(RQ, 0, NakCode::PsnSequenceError)]);
            b.exchange(&[send(Only, RQ + gap + 2, &[9])], &[]);
        }
        // A gap of 256 packets is NAKed at the first request after it.
        Bench::new().exchange(&[send(Only, RQ + 256, &[9])], &[nak(RQ, 0, NakCode::PsnSequenceError)]);
    }

    psn_wraps_inside_a_message => "resp.psn.wrap" {
        let mut b = Bench::with(|s| s.rq_psn = 0xff_ffff);
        b.recv(1, 0, 600);
        let data: Vec<u8> = (0..600).map(|i| i as u8).collect();
        b.exchange(&message(256, &data, send, 0xff_ffff), &[ack(1, 1)]);
        b.recvs(&[ok(1, Recv, 600)]);
        assert_eq!(b.mr.read(0, 600), data);
        // PSNs before and after the expected one, across the wrap.
        b.exchange(&[send(First, 0xff_ffff, &[0; 256])], &[ack(1, 1)]);
        b.exchange(&[send(Only, 3, &[0])], &[nak(2, 1, NakCode::PsnSequenceError)]);
    }

    psn_wraps_in_read_response_and_replay => "resp.psn.wrap" {
        let mut b = Bench::with(|s| s.rq_psn = 0xff_fffe);
        let (from, d) = (b.remote(0, 700), b.mr.read(0, 700));
        let response = [
            resp(First, 0xff_fffe, 1, &d[..256]),
            resp(Middle, 0xff_ffff, 1, &d[256..512]),
            resp(Last, 0, 1, &d[512..]),
        ];
        b.exchange(&[read(0xff_fffe, from)], &response);
        b.exchange(&[read(0xff_fffe, from)], &response);
        b.exchange(&[read(1, b.remote(0, 1))], &[resp(Only, 1, 2, &d[..1])]);
    }

    msn_counts_messages_not_packets => "resp.msn" {
        let mut b = Bench::new();
        b.recv(1, 0, 600);
        let p = message(256, &[7; 600], send, RQ);
        b.exchange(&[p[0].clone().ackreq(true)], &[ack(RQ, 0)]);
        b.exchange(&[p[1].clone().ackreq(true)], &[ack(RQ + 1, 0)]);
        b.exchange(&[p[2].clone()], &[ack(RQ + 2, 1)]);
        b.recvs(&[ok(1, Recv, 600)]);
        let d = b.mr.read(0, 600);
        let from = b.remote(0, 600);
        b.exchange(&[read(RQ + 3, from)], &message(256, &d, |p, n, d| resp(p, n, 2, d), RQ + 3));
        assert_eq!(b.count().rdma_recvs, 2);
    }

    middle_or_last_packet_without_first_is_nakked => "resp.sequence" {
        for position in [Middle, Last] {
            for op in [send as fn(Position, u32, &[u8]) -> Pkt, |p, n, d| write(p, n, Default::default(), d)]
            {
                let mut b = Bench::new();
                b.recv(1, 0, 1000);
                b.deliver(&[op(position, RQ, &[0; 256])]);
                expect_invalid_nak(&mut b, RQ, 0);
                b.recvs(&[flushed(1)]);
            }
        }
    }

    new_message_before_the_end_of_another_is_nakked => "resp.sequence" {
        let b = Bench::new();
        let (to, one) = (b.remote(0, 1000), b.remote(0, 8));
        let first_packets = [(send(First, RQ, &[1; 256]), true), (write(First, RQ, to, &[1; 256]), false)];
        for (first, consumes_receive) in first_packets {
            let word = (one.0, one.1);
            let second_packets = [
                send(First, RQ + 1, &[2; 256]),
                send(Only, RQ + 1, &[2; 8]),
                send_imm(Only, RQ + 1, &[2; 8], 5),
                write(First, RQ + 1, to, &[2; 256]),
                write(Only, RQ + 1, one, &[2; 8]),
                write_imm(Only, RQ + 1, one, &[2; 8], 5),
                read(RQ + 1, one),
                fetch_add(RQ + 1, word, 1),
                cmp_swap(RQ + 1, word, 0, 1),
            ];
            for second in second_packets {
                let mut b = Bench::new();
                b.recv(1, 1000, 1000);
                b.recv(2, 2000, 1000);
                // The keys are the same in every bench.
                b.exchange(&[first.clone().ackreq(false)], &[]);
                b.deliver(&[second]);
                expect_invalid_nak(&mut b, RQ + 1, 0);
                // The receive of the message in progress fails, the others are flushed.
                let completion = if consumes_receive { bad(1, WcStatus::RemInvReqErr) } else { flushed(1) };
                b.recvs(&[completion, flushed(2)]);
            }
        }
    }

    packet_of_another_operation_inside_a_message_is_nakked => "resp.sequence" {
        let mut b = Bench::new();
        b.recv(1, 0, 1000);
        b.deliver(&[send(First, RQ, &[1; 256]), write(Last, RQ + 1, Default::default(), &[2; 8])]);
        expect_invalid_nak(&mut b, RQ + 1, 0);
        b.recvs(&[bad(1, WcStatus::RemInvReqErr)]);
        for (position, len) in [(Middle, 256), (Last, 8)] {
            let mut b = Bench::new();
            let to = b.remote(0, 1000);
            b.recv(1, 0, 1000);
            b.deliver(&[write(First, RQ, to, &[1; 256]), send(position, RQ + 1, &vec![2; len])]);
            expect_invalid_nak(&mut b, RQ + 1, 0);
            b.recvs(&[flushed(1)]);
        }
    }

    unsupported_requests_are_nakked_as_invalid => "resp.opcode" {
        // FLUSH and ATOMIC WRITE, which the QP does not allow.
        for (opcode, len) in [(0x1c, 0), (0x1d, 8)] {
            let mut b = Bench::with(|s| s.access = Access::REMOTE_READ | Access::REMOTE_ATOMIC);
            b.recv(1, 0, 100);
            b.deliver(&[send(Only, RQ, &vec![0; len]).opcode(opcode)]);
            expect_invalid_nak(&mut b, RQ, 0);
            b.recvs(&[flushed(1)]);
        }
    }

    first_or_middle_packet_not_of_mtu_length_is_nakked => "resp.length.mtu" {
        for mtu in Mtu::ALL {
            let full = mtu.bytes();
            for wrong in [0, full - 4, full + 4] {
                let mut b = Bench::with(|s| s.mtu = mtu);
                b.recv(1, 0, 20_000);
                b.deliver(&[send(First, RQ, &vec![0; wrong])]);
                expect_invalid_nak(&mut b, RQ, 0);
                b.recvs(&[flushed(1)]);

                let mut b = Bench::with(|s| s.mtu = mtu);
                let to = b.remote(0, 3 * full as u32);
                b.deliver(&[write(First, RQ, to, &vec![0; wrong])]);
                expect_invalid_nak(&mut b, RQ, 0);

                let mut b = Bench::with(|s| s.mtu = mtu);
                b.deliver(&[
                    write(First, RQ, to, &vec![1; full]),
                    write(Middle, RQ + 1, to, &vec![2; wrong]),
                ]);
                expect_invalid_nak(&mut b, RQ + 1, 0);
                assert!(b.mr.read(0, full).iter().all(|x| *x == 1));
                assert_ne!(b.mr.read(full, 8), [2; 8]);
            }
        }
    }

    empty_last_packet_or_packet_longer_than_mtu_is_nakked => "resp.length.mtu" {
        let mut b = Bench::new();
        b.recv(1, 0, 1000);
        b.deliver(&[send(First, RQ, &[0; 256]), send(Last, RQ + 1, &[])]);
        expect_invalid_nak(&mut b, RQ + 1, 0);
        b.recvs(&[bad(1, WcStatus::RemInvReqErr)]);
        let mut b = Bench::new();
        b.recv(1, 0, 1000);
        b.deliver(&[send(First, RQ, &[0; 256]), send(Last, RQ + 1, &[0; 257])]);
        expect_invalid_nak(&mut b, RQ + 1, 0);
        b.recvs(&[bad(1, WcStatus::RemInvReqErr)]);
        let mut b = Bench::new();
        b.recv(1, 0, 1000);
        b.deliver(&[send(Only, RQ, &[0; 257])]);
        expect_invalid_nak(&mut b, RQ, 0);
        b.recvs(&[flushed(1)]);
        let mut b = Bench::new();
        let to = b.remote(0, 257);
        b.deliver(&[write(Only, RQ, to, &[0; 257])]);
        expect_invalid_nak(&mut b, RQ, 0);
    }

    read_or_atomic_request_with_payload_is_nakked => "resp.length.mtu" {
        for i in 0..3 {
            let mut b = Bench::new();
            let from = b.remote(0, 8);
            let mut p = match i {
                0 => read(RQ, from),
                1 => fetch_add(RQ, (from.0, from.1), 1),
                _ => cmp_swap(RQ, (from.0, from.1), 0, 1),
            };
            p.data = vec![0; 4];
            b.deliver(&[p]);
            expect_invalid_nak(&mut b, RQ, 0);
        }
    }

    write_whose_length_differs_from_its_reth_is_nakked => "resp.length.reth" {
        // ONLY of another length than the RETH declares.
        for declared in [7, 9, 0] {
            let mut b = Bench::new();
            let to = b.remote(0, declared);
            b.deliver(&[write(Only, RQ, to, &[0; 8])]);
            expect_invalid_nak(&mut b, RQ, 0);
            assert_eq!(b.mr.read(8, 1), [urxe_test_support::engine::pattern(8)]);
        }
        // FIRST and LAST: too short, too long.
        for (declared, last, at) in [(264, 9, 2), (266, 9, 2), (256, 9, 1), (1000, 256, 2)] {
            let mut b = Bench::new();
            let to = b.remote(0, declared);
            b.deliver(&[write(First, RQ, to, &[1; 256]), write(Last, RQ + 1, to, &vec![1; last])]);
            expect_invalid_nak(&mut b, RQ + at - 1, 0);
        }
        // A MIDDLE that contains the declared rest.
        let mut b = Bench::new();
        let to = b.remote(0, 512);
        b.deliver(&[write(First, RQ, to, &[1; 256]), write(Middle, RQ + 1, to, &[1; 256])]);
        expect_invalid_nak(&mut b, RQ + 1, 0);
        assert_eq!(b.mr.read(256, 1), [urxe_test_support::engine::pattern(256)]);
    }

    message_longer_than_2_to_the_31_is_nakked => "resp.length.max" {
        let mut b = Bench::new();
        let (va, key, _) = b.remote(0, 0);
        b.deliver(&[read(RQ, (va, key, (1 << 31) + 1))]);
        expect_invalid_nak(&mut b, RQ, 0);
        let mut b = Bench::new();
        b.deliver(&[write(First, RQ, (va, key, (1 << 31) + 1), &[0; 256])]);
        expect_invalid_nak(&mut b, RQ, 0);
        // A message of the maximum length fails the range check instead.
        let mut b = Bench::new();
        b.exchange(&[read(RQ, (va, key, 1 << 31))], &[nak(RQ, 0, NakCode::RemoteAccessError)]);
        b.events(&[AsyncEvent::QpAccessError]);
    }

    psn_is_checked_before_opcode_sequence_receive_and_length => "resp.precedence" {
        // A PSN ahead, and invalid in every other way: a sequence error, and the QP remains in RTS.
        let mut b = Bench::new();
        b.exchange(&[send(Middle, RQ + 1, &[0; 3])], &[nak(RQ, 0, NakCode::PsnSequenceError)]);
        b.state(QpState::Rts);
        // Out of sequence and no receive: invalid, not RNR.
        let mut b = Bench::new();
        b.deliver(&[send(Last, RQ, &[0; 3])]);
        expect_invalid_nak(&mut b, RQ, 0);
        // No receive and too long for one packet: the RNR NAK has precedence.
        let mut b = Bench::new();
        b.exchange(&[send(Only, RQ, &[0; 300])], &[rnr(RQ, 0, 12)]);
        // A wrong length and a wrong key: invalid.
        let mut b = Bench::new();
        b.deliver(&[write(Only, RQ, (0, urxe::wire::RKey(0x999), 9), &[0; 8])]);
        expect_invalid_nak(&mut b, RQ, 0);
    }
}
