//! Conformance cases: the responder's handling of messages of every kind and size, with its acknowledgements
//! and completions.

use urxe::nic::Personality;
use urxe::transport::{
    QpState,
    WcOpcode::{Recv, RecvRdmaWithImm},
    WcStatus,
};
use urxe::wire::{Mtu, Syndrome};

use crate::bench::{Bench, RQ, ok};
use crate::pkt::*;

/// Returns message lengths around multiples of the path MTU.
fn lengths(mtu: Mtu) -> [u32; 7] {
    let m = mtu.bytes() as u32;
    [0, 1, m - 1, m, m + 1, 2 * m, 3 * m - 3]
}

fn bytes(n: u32) -> Vec<u8> {
    (0..n).map(|i| (i * 13 + i / 256) as u8 ^ 0x5a).collect()
}

cases! {
    sends_of_every_length_and_mtu_are_received => "resp.send" {
        for mtu in Mtu::ALL {
            for n in lengths(mtu) {
                let mut b = Bench::with(|s| s.mtu = mtu);
                b.recv(1, 0, n);
                let d = bytes(n);
                let m = message(mtu.bytes(), &d, send, RQ);
                b.exchange(&m, &[ack(RQ + m.len() as u32 - 1, 1)]);
                b.recvs(&[ok(1, Recv, n)]);
                assert_eq!(b.mr.read(0, n as usize), d);
                assert_eq!(b.mr.read(n as usize, 1), [urxe_test_support::engine::pattern(n as u64)]);
            }
        }
    }

    send_fills_receive_sges_in_order => "resp.send" {
        let mut b = Bench::new();
        let sges = [b.mr.sge(1000, 1), b.mr.sge(0, 0), b.mr.sge(2000, 300), b.mr.sge(3000, 500)];
        b.recv_sges(1, &sges).unwrap();
        let d = bytes(600);
        b.exchange(&message(256, &d, send, RQ), &[ack(RQ + 2, 1)]);
        b.recvs(&[ok(1, Recv, 600)]);
        let got = [b.mr.read(1000, 1), b.mr.read(2000, 300), b.mr.read(3000, 299)].concat();
        assert_eq!(got, d);
        assert_eq!(b.mr.read(3299, 1), [urxe_test_support::engine::pattern(3299)]);
    }

    send_with_immediate_completes_the_receive_with_its_immediate_data => "resp.immediate" {
        let mut b = Bench::new();
        b.recv(1, 0, 100);
        b.recv(2, 0, 300);
        b.exchange(&[send_imm(Only, RQ, &[1; 5], 0x0102_0304)], &[ack(RQ, 1)]);
        b.exchange(&[send(First, RQ + 1, &[2; 256]), send_imm(Last, RQ + 2, &[3; 7], 9)], &[ack(RQ + 2, 2)]);
        b.recvs(&[ok(1, Recv, 5).imm(0x0102_0304), ok(2, Recv, 263).imm(9)]);
    }

    writes_of_every_length_and_mtu_are_stored => "resp.write" {
        for mtu in Mtu::ALL {
            for n in lengths(mtu) {
                let mut b = Bench::with(|s| s.mtu = mtu);
                let to = b.remote(5, n);
                let d = bytes(n);
                let m = message(mtu.bytes(), &d, |p, psn, d| write(p, psn, to, d), RQ);
                b.exchange(&m, &[ack(RQ + m.len() as u32 - 1, 1)]);
                assert_eq!(b.mr.read(5, n as usize), d);
                assert_eq!(b.mr.read(5 + n as usize, 1), [urxe_test_support::engine::pattern(5 + n as u64)]);
                assert_eq!(b.mr.read(4, 1), [urxe_test_support::engine::pattern(4)]);
            }
        }
    }

    write_with_immediate_consumes_a_receive => "resp.immediate" {
        let mut b = Bench::new();
        b.recv_sges(1, &[]).unwrap();
        b.recv_sges(2, &[]).unwrap();
        let to = b.remote(0, 300);
        b.exchange(&[write(First, RQ, to, &[7; 256])], &[]);
        b.recvs(&[]);
        b.exchange(&[write_imm(Last, RQ + 1, to, &[8; 44], 77)], &[ack(RQ + 1, 1)]);
        b.recvs(&[ok(1, RecvRdmaWithImm, 300).imm(77)]);
        b.exchange(&[write_imm(Only, RQ + 2, b.remote(0, 3), &[9; 3], 78).solicited()], &[ack(RQ + 2, 2)]);
        b.recvs(&[ok(2, RecvRdmaWithImm, 3).imm(78).solicited()]);
        assert_eq!(b.mr.read(0, 4), [9, 9, 9, 7]);
    }

    personality_rxe_sets_the_grh_flag_on_every_receive_completion => "resp.immediate" {
        for (quirks, grh) in [
            (Personality::STRICT.quirks, false),
            (Personality::RXE.quirks, true),
            (Personality::MLX5.quirks, false),
        ] {
            let mut b = Bench::with(|s| s.quirks = quirks);
            b.recv(1, 0, 300);
            b.deliver(&[send_imm(Only, RQ, &[1], 7)]);
            assert_eq!(b.sent().len(), 1);
            let wc = b.raw_recv();
            assert_eq!((wc.status, wc.imm, wc.grh), (WcStatus::Success, Some(7), grh));
        }
    }

    completion_of_solicited_message_has_the_solicited_flag => "resp.solicited" {
        let mut b = Bench::new();
        b.recv(1, 0, 300);
        b.recv(2, 0, 300);
        b.exchange(&[send(Only, RQ, &[1]).solicited()], &[ack(RQ, 1)]);
        b.exchange(
            &[send(First, RQ + 1, &[1; 256]).solicited(), send(Last, RQ + 2, &[1])],
            &[ack(RQ + 2, 2)],
        );
        // The bit of the last packet counts.
        b.recvs(&[ok(1, Recv, 1).solicited(), ok(2, Recv, 257)]);
    }

    reads_of_every_length_and_mtu_are_answered => "resp.read" {
        for mtu in Mtu::ALL {
            for n in lengths(mtu) {
                let mut b = Bench::with(|s| s.mtu = mtu);
                let from = b.remote(3, n);
                let d = b.mr.read(3, n as usize);
                let response = message(mtu.bytes(), &d, |p, psn, d| resp(p, psn, 1, d), RQ);
                let next = RQ + response.len() as u32;
                b.exchange(&[read(RQ, from)], &response);
                // The next request follows the PSNs of the response.
                b.exchange(&[write(Only, next, b.remote(0, 0), &[])], &[ack(next, 2)]);
            }
        }
    }

    read_without_ackreq_is_answered => "resp.read" {
        let mut b = Bench::new();
        let d = b.mr.read(0, 4);
        b.exchange(&[read(RQ, b.remote(0, 4)).ackreq(false)], &[resp(Only, RQ, 1, &d)]);
    }

    responses_keep_the_order_of_requests => "resp.order" {
        let mut b = Bench::new();
        b.recv(1, 100, 10);
        b.mr.write(8, &3u64.to_ne_bytes());
        let (d, word) = (b.mr.read(200, 300), (b.mr.va(8), b.mr.info.rkey));
        b.exchange(
            &[
                send(Only, RQ, &[1]),
                read(RQ + 1, b.remote(200, 300)),
                fetch_add(RQ + 3, word, 4),
                write(Only, RQ + 4, b.remote(0, 1), &[9]),
            ],
            &[
                ack(RQ, 1),
                resp(First, RQ + 1, 2, &d[..256]),
                resp(Last, RQ + 2, 2, &d[256..]),
                atomic_ack(RQ + 3, 3, 3),
                ack(RQ + 4, 4),
            ],
        );
        b.recvs(&[ok(1, Recv, 1)]);
    }

    long_read_response_does_not_delay_requests_of_the_responder => "resp.order" {
        let mut b = Bench::with(|s| s.tuning.turn = 2);
        let d = b.mr.read(0, 256 * 5);
        b.deliver(&[read(RQ, b.remote(0, 256 * 5))]);
        b.post(1, urxe::transport::WrOp::Send, 0, 1);
        let response = message(256, &d, |p, n, d| resp(p, n, 1, d), RQ);
        let own_send = send(Only, crate::bench::SQ, &d[..1]);
        let expected: Vec<_> =
            response[..2].iter().chain([&own_send]).chain(&response[2..]).cloned().collect();
        b.expect(&expected);
        b.exchange(&[ack(crate::bench::SQ, 1)], &[]);
        b.sends(&[ok(1, urxe::transport::WcOpcode::Send, 1)]);
    }

    packet_without_ackreq_is_not_acked => "resp.ack.ackreq" {
        let mut b = Bench::new();
        b.recv(1, 0, 10);
        b.exchange(&[send(Only, RQ, &[1]).ackreq(false)], &[]);
        b.recvs(&[ok(1, Recv, 1)]);
        b.exchange(&[write(Only, RQ + 1, b.remote(0, 1), &[1]).ackreq(false)], &[]);
        // The next acknowledgement covers all of them.
        b.exchange(&[write(Only, RQ + 2, b.remote(0, 1), &[1])], &[ack(RQ + 2, 3)]);
    }

    packet_with_ackreq_is_acked_at_any_position_in_a_message => "resp.ack.ackreq" {
        let mut b = Bench::new();
        let to = b.remote(0, 600);
        b.exchange(&[write(First, RQ, to, &[1; 256]).ackreq(true)], &[ack(RQ, 0)]);
        b.exchange(&[write(Middle, RQ + 1, to, &[1; 256]).ackreq(true)], &[ack(RQ + 1, 0)]);
        b.exchange(&[write(Last, RQ + 2, to, &[1; 88]).ackreq(false)], &[]);
    }

    acks_due_together_are_coalesced => "resp.ack.coalesced" {
        let mut b = Bench::new();
        let to = b.remote(0, 1);
        let many: Vec<_> = (0..5).map(|i| write(Only, RQ + i, to, &[1])).collect();
        b.exchange(&many, &[ack(RQ + 4, 5)]);
        // A duplicate does not cancel an acknowledgement that is due.
        b.exchange(&[write(Only, RQ + 5, to, &[1]), many[0].clone()], &[ack(RQ + 5, 6)]);
        // Nor if the acknowledgement of the duplicate would not cover a later READ.
        b.exchange(&[read(RQ + 6, b.remote(0, 0))], &[resp(Only, RQ + 6, 7, &[])]);
        b.exchange(&[write(Only, RQ + 7, to, &[1]), many[0].clone()], &[ack(RQ + 7, 8)]);
    }

    acks_without_credits_carry_credit_code_31 => "resp.ack.credits" {
        let mut b = Bench::new();
        b.recv(1, 0, 10);
        b.exchange(&[send(Only, RQ, &[1])], &[aeth(RQ, 1, Syndrome::Ack { credits: 31 })]);
        b.recvs(&[ok(1, Recv, 1)]);
    }

    ack_carries_own_pkey_and_the_qpn_of_the_peer => "resp.ack.header" {
        let mut b = Bench::new();
        let p = write(Only, RQ, b.remote(0, 1), &[1]).pkey(0x7fff);
        // `ack` has the default partition key, MigReq set and no AckReq; the bench checks addresses and QP.
        b.exchange(&[p], &[ack(RQ, 1)]);
    }

    qp_in_rtr_responds_to_requests => "state.rtr" {
        let mut b = Bench::with(|s| s.state = QpState::Rtr);
        b.recv(1, 0, 10);
        b.exchange(&[send(Only, RQ, &[1])], &[ack(RQ, 1)]);
        b.recvs(&[ok(1, Recv, 1)]);
        b.events(&[urxe::transport::AsyncEvent::CommunicationEstablished]);
        b.exchange(&[write(Only, RQ + 1, b.remote(0, 1), &[1])], &[ack(RQ + 1, 2)]);
    }
}
