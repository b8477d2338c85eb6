//! Conformance cases: UC. A message is delivered completely or not at all; the sender is not told which.

use std::time::Duration;

use urxe::memory::{Access, AtomicOp};
use urxe::transport::{AsyncEvent, PostError, QpState, QpType, SendFlags, Sge, WcOpcode, WcStatus, WrOp};
use urxe::wire::RKey;

use crate::bench::{Bench, RQ, SQ, Setup, bad, flushed, ok};
use crate::pkt::*;
use urxe_test_support::engine::pattern;

fn uc(change: impl FnOnce(&mut Setup)) -> Bench {
    Bench::with(|s| {
        s.qp_type = QpType::Uc;
        change(s);
    })
}

/// Returns the packets of a SEND of `len` bytes with a path MTU of 256; the first has PSN `psn`.
fn sends(psn: u32, len: usize, fill: u8) -> Vec<Pkt> {
    message(256, &vec![fill; len], send, psn).into_iter().map(Pkt::uc).collect()
}

fn unchanged(b: &Bench, at: usize, len: usize) {
    let before: Vec<u8> = (at..at + len).map(|i| pattern(i as u64)).collect();
    assert_eq!(b.mr.read(at, len), before);
}

cases! {
    uc_send_completes_when_it_is_sent => "uc.requester" {
        let mut b = uc(|_| {});
        b.post(1, WrOp::Send, 0, 600);
        b.post(2, WrOp::SendWithImm(7), 0, 0);
        let d = b.mr.read(0, 600);
        let mut packets: Vec<Pkt> = message(256, &d, send, SQ).into_iter().map(Pkt::uc).collect();
        packets.push(send_imm(Only, SQ + 3, &[], 7).uc());
        b.sends(&[]);
        b.expect(&packets);
        b.sends(&[ok(1, WcOpcode::Send, 600), ok(2, WcOpcode::Send, 0)]);
        // No retransmission timer is running.
        b.advance(Duration::from_secs(100));
        b.expect_nothing();
    }

    uc_send_completes_only_after_the_link_has_accepted_its_packets => "uc.requester" {
        let mut b = uc(|_| {});
        b.post(1, WrOp::Send, 0, 600);
        b.nic.transmit(b.now, &b.memory, &mut b.tx);
        // The packets refer to the application's memory, which it must not reuse yet.
        assert_eq!(b.tx.packets(), 3);
        b.sends(&[]);
        b.tx.clear();
        b.nic.emitted();
        b.sends(&[ok(1, WcOpcode::Send, 600)]);
    }

    uc_write_completes_when_it_is_sent => "uc.requester" {
        let mut b = uc(|_| {});
        let to = (64, RKey(9), 300);
        b.post(1, WrOp::WriteWithImm { va: 64, rkey: RKey(9), imm: 5 }, 0, 300);
        let d = b.mr.read(0, 300);
        b.expect(&[write(First, SQ, to, &d[..256]).uc(), write_imm(Last, SQ + 1, to, &d[256..], 5).uc()]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 300)]);
    }

    unsignaled_uc_sends_raise_no_completion => "uc.requester" {
        let mut b = uc(|_| {});
        let sge = [b.mr.sge(0, 1)];
        b.post_sges(1, WrOp::Send, &sge, SendFlags::default()).unwrap();
        assert_eq!(b.sent().len(), 1);
        b.advance(Duration::from_secs(1));
        b.expect_nothing();
        b.sends(&[]);
        // Their slots in the send queue are free again.
        for i in 0..200 {
            b.post(i, WrOp::Send, 0, 1);
            assert_eq!(b.sent().len(), 1);
            b.sends(&[ok(i, WcOpcode::Send, 1)]);
        }
    }

    posting_reads_and_atomics_to_a_uc_qp_fails => "uc.operations" {
        let mut b = uc(|_| {});
        let (va, rkey, sge) = (0, RKey(1), [b.mr.sge(0, 8)]);
        for op in [WrOp::Read { va, rkey }, WrOp::Atomic { va, rkey, op: AtomicOp::FetchAdd(1) }] {
            let error = b.post_sges(1, op, &sge, SendFlags::SIGNALED).unwrap_err();
            assert_eq!(error, PostError::Unsupported(QpType::Uc, op.completion_opcode()));
        }
        b.expect_nothing();
        // Nor are they accepted: UC has no such opcodes, so these are RC packets.
        b.exchange(&[read(RQ, b.remote(0, 8)), send(Only, RQ, &[1])], &[]);
        assert_eq!(b.count().rx_unknown_qp, 2);
    }

    uc_messages_are_received_without_acks => "uc.responder" {
        let mut b = uc(|_| {});
        b.recv(1, 0, 600);
        b.recv(2, 1000, 0);
        b.exchange(&sends(RQ, 600, 3), &[]);
        b.exchange(&[send_imm(Only, RQ + 3, &[], 9).uc().ackreq(true)], &[]);
        b.recvs(&[ok(1, WcOpcode::Recv, 600), ok(2, WcOpcode::Recv, 0).imm(9)]);
        assert_eq!(b.mr.read(0, 600), [3; 600]);
        b.events(&[]);
    }

    uc_writes_are_executed_without_acks => "uc.responder" {
        let mut b = uc(|_| {});
        let to = b.remote(100, 300);
        b.exchange(&[write(First, RQ, to, &[5; 256]).uc(), write(Last, RQ + 1, to, &[6; 44]).uc()], &[]);
        assert_eq!(b.mr.read(100, 300), [[5; 256].as_slice(), &[6; 44]].concat());
        b.recv(1, 0, 0);
        b.exchange(&[write_imm(Only, RQ + 2, b.remote(0, 4), &[7; 4], 8).uc()], &[]);
        b.recvs(&[ok(1, WcOpcode::RecvRdmaWithImm, 4).imm(8)]);
        assert_eq!(b.mr.read(0, 4), [7; 4]);
    }

    next_uc_message_after_a_psn_gap_is_received => "uc.gap" {
        let mut b = uc(|_| {});
        b.recv(1, 0, 600);
        b.recv(2, 1000, 600);
        let first = sends(RQ, 600, 1);
        // The middle packet is lost: the whole message is dropped, and its receive is used for the next.
        b.exchange(&[first[0].clone(), first[2].clone()], &[]);
        b.recvs(&[]);
        b.exchange(&sends(RQ + 3, 300, 2), &[]);
        b.recvs(&[ok(1, WcOpcode::Recv, 300)]);
        assert_eq!(b.mr.read(0, 300), [2; 300]);
        assert_eq!(b.count().out_of_seq_request, 1);
        // Many whole messages are lost.
        b.exchange(&sends(RQ + 1000, 600, 4), &[]);
        b.recvs(&[ok(2, WcOpcode::Recv, 600)]);
    }

    incomplete_uc_message_is_dropped_when_the_next_begins => "uc.gap" {
        let mut b = uc(|_| {});
        b.recv(1, 0, 600);
        b.exchange(&sends(RQ, 600, 1)[..2], &[]);
        // The PSN is the expected one, but a new message begins: the sender has abandoned the old one.
        b.exchange(&sends(RQ + 2, 10, 2), &[]);
        b.recvs(&[ok(1, WcOpcode::Recv, 10)]);
        assert_eq!(b.mr.read(0, 10), [2; 10]);
    }

    uc_write_with_a_psn_gap_is_abandoned => "uc.gap" {
        let mut b = uc(|_| {});
        let to = b.remote(100, 600);
        b.exchange(&[write(First, RQ, to, &[5; 256]).uc(), write(Last, RQ + 2, to, &[6; 88]).uc()], &[]);
        assert_eq!(b.mr.read(100, 256), [5; 256]);
        unchanged(&b, 356, 344);
        b.state(QpState::Rts);
    }

    uc_message_is_dropped_if_no_receive_is_posted => "uc.drop" {
        let mut b = uc(|_| {});
        b.exchange(&sends(RQ, 600, 1), &[]);
        assert_eq!((b.count().rx_no_receive, b.count().rx_dropped_message), (1, 2));
        b.state(QpState::Rts);
        b.recv(1, 0, 600);
        b.exchange(&sends(RQ + 3, 20, 2), &[]);
        b.recvs(&[ok(1, WcOpcode::Recv, 20)]);
    }

    uc_message_longer_than_receive_buffer_is_dropped => "uc.drop" {
        let mut b = uc(|_| {});
        b.recv(1, 0, 300);
        b.exchange(&sends(RQ, 600, 1), &[]);
        assert_eq!((b.count().rx_no_receive, b.count().rx_dropped_message), (1, 1));
        b.exchange(&sends(RQ + 3, 20, 2), &[]);
        b.recvs(&[ok(1, WcOpcode::Recv, 20)]);
        b.state(QpState::Rts);
    }

    uc_write_with_invalid_key_or_range_is_dropped => "uc.drop" {
        let mut b = uc(|_| {});
        let (va, rkey, _) = b.remote(100, 0);
        let wrong = [(va, RKey(rkey.0 ^ 1), 8), (va, rkey, 1 << 20), (0, rkey, 8)];
        for (i, to) in wrong.into_iter().enumerate() {
            b.exchange(&[write(Only, RQ + i as u32, to, &[9; 8]).uc()], &[]);
            assert_eq!(b.count().rx_dropped_message, i as u64 + 1);
        }
        unchanged(&b, 0, 300);
        b.state(QpState::Rts);
        b.events(&[]);
        b.exchange(&[write(Only, RQ + 3, (va, rkey, 8), &[9; 8]).uc()], &[]);
        assert_eq!(b.mr.read(100, 8), [9; 8]);
    }

    uc_write_without_remote_write_access_is_dropped => "uc.drop" {
        let mut b = uc(|s| s.access = Access::LOCAL_READ);
        b.exchange(&[write(Only, RQ, b.remote(100, 8), &[9; 8]).uc()], &[]);
        assert_eq!(b.count().rx_dropped_message, 1);
        unchanged(&b, 100, 8);
    }

    uc_packets_of_wrong_length_are_dropped => "uc.drop" {
        let mut b = uc(|_| {});
        b.recv(1, 0, 600);
        let to = b.remote(100, 300);
        let wrong = [
            send(First, RQ, &[1; 255]),
            send(Only, RQ + 1, &[1; 257]),
            write(Only, RQ + 2, to, &[1; 8]),
            send(Last, RQ + 3, &[1]),
        ];
        b.exchange(&wrong.map(Pkt::uc), &[]);
        assert_eq!(b.count().rx_dropped_message, 4);
        unchanged(&b, 0, 600);
        b.exchange(&sends(RQ + 4, 5, 3), &[]);
        b.recvs(&[ok(1, WcOpcode::Recv, 5)]);
    }

    receive_with_invalid_lkey_moves_uc_qp_to_err => "uc.error" {
        let mut b = uc(|_| {});
        b.recv_sges(1, &[Sge { addr: 0, length: 100, lkey: urxe::wire::LKey(0xbad) }]).unwrap();
        b.recv(2, 0, 100);
        b.exchange(&sends(RQ, 20, 2), &[]);
        b.recvs(&[bad(1, WcStatus::LocProtErr), flushed(2)]);
        b.state(QpState::Err);
        b.sends(&[]);
    }

    failed_uc_send_moves_qp_to_sqe => "uc.sqe" {
        let mut b = uc(|_| {});
        let sge = [Sge { addr: 0, length: 100, lkey: urxe::wire::LKey(0xbad) }];
        b.post_sges(1, WrOp::Send, &sge, SendFlags::default()).unwrap();
        b.post(2, WrOp::Send, 0, 1);
        b.expect_nothing();
        b.sends(&[bad(1, WcStatus::LocProtErr), flushed(2)]);
        b.state(QpState::Sqe);
        b.post(3, WrOp::Send, 0, 1);
        b.sends(&[flushed(3)]);
        b.recv(4, 0, 100);
        b.exchange(&sends(RQ, 20, 2), &[]);
        b.recvs(&[ok(4, WcOpcode::Recv, 20)]);
        // The send queue works again.
        b.set_state(QpState::Rts);
        b.post(5, WrOp::Send, 0, 1);
        let d = b.mr.read(0, 1);
        b.expect(&[send(Only, SQ + 2, &d).uc()]);
        b.sends(&[ok(5, WcOpcode::Send, 1)]);
    }

    failed_uc_send_completes_in_order => "uc.sqe" {
        let mut b = uc(|_| {});
        let sge = [Sge { addr: 0, length: 100, lkey: urxe::wire::LKey(0xbad) }];
        b.post(1, WrOp::Send, 0, 1);
        b.post_sges(2, WrOp::Send, &sge, SendFlags::default()).unwrap();
        b.post(3, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 1);
        b.sends(&[ok(1, WcOpcode::Send, 1), bad(2, WcStatus::LocProtErr), flushed(3)]);
    }

    uc_send_posted_in_sqd_is_sent_in_rts => "uc.requester" {
        let mut b = uc(|_| {});
        b.set_state(QpState::Sqd);
        b.post(1, WrOp::Send, 0, 1);
        b.expect_nothing();
        b.set_state(QpState::Rts);
        assert_eq!(b.sent().len(), 1);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
    }

    first_uc_packet_in_rtr_raises_established_event => "uc.responder" {
        let mut b = uc(|s| s.state = QpState::Rtr);
        b.recv(1, 0, 10);
        b.exchange(&sends(RQ, 5, 3), &[]);
        b.events(&[AsyncEvent::CommunicationEstablished]);
        b.recvs(&[ok(1, WcOpcode::Recv, 5)]);
    }
}
