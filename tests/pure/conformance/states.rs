//! Conformance cases: queue pair states, and the checks that a packet must pass before it reaches a queue
//! pair.

use std::time::Duration;

use urxe::transport::QpState::{self, Err, Init, Reset, Rtr, Rts, Sqd};
use urxe::transport::{AsyncEvent, ModifyError, PostError, QpAttr, QpType, SendFlags, WcOpcode, WrOp};
use urxe::wire::{NakCode, Psn, Qpn};

use crate::bench::{Bench, RQ, SQ, flushed, ok};
use crate::pkt::*;
use urxe_test_support::engine::encode;

const ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 14);

fn at(state: QpState) -> Bench {
    Bench::with(|s| s.state = state)
}

cases! {
    query_qp_returns_the_configured_attributes => "state.query" {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv] {
            let mut b = Bench::with(|s| (s.qp_type, s.state) = (qp_type, Reset));
            let mut set = QpAttr::default();
            for state in [Init, Rtr, Rts] {
                let attr = b.attr(0, state);
                b.modify(0, attr).unwrap();
                set = QpAttr::default().state(attr.state).cur_state(attr.state).access(attr.access.or(set.access)).pkey_index(attr.pkey_index.or(set.pkey_index)).port(attr.port.or(set.port)).qkey(attr.qkey.or(set.qkey)).av(attr.av.or(set.av)).path_mtu(attr.path_mtu.or(set.path_mtu)).timeout(attr.timeout.or(set.timeout)).retry_cnt(attr.retry_cnt.or(set.retry_cnt)).rnr_retry(attr.rnr_retry.or(set.rnr_retry)).rq_psn(attr.rq_psn.or(set.rq_psn)).max_rd_atomic(attr.max_rd_atomic.or(set.max_rd_atomic)).min_rnr_timer(attr.min_rnr_timer.or(set.min_rnr_timer)).sq_psn(attr.sq_psn.or(set.sq_psn)).max_dest_rd_atomic(attr.max_dest_rd_atomic.or(set.max_dest_rd_atomic)).dest_qpn(attr.dest_qpn.or(set.dest_qpn));
                let got = b.nic.query_qp(b.qpns[0]).unwrap().0;
                assert_eq!(got.only(set.mask()), set, "{qp_type:?} in {state}");
            }
        }
    }

    posting_fails_in_states_that_do_not_allow_it => "state.posts" {
        for state in [Reset, Init, Rtr, Rts, Sqd, Err] {
            let mut b = at(state);
            let sge = [b.mr.sge(0, 1)];
            let sent = b.post_sges(1, WrOp::Send, &sge, SendFlags::SIGNALED);
            match state {
                Reset | Init | Rtr => assert_eq!(sent, Result::Err(PostError::State(state))),
                _ => assert_eq!(sent, Ok(())),
            }
            let received = b.recv_sges(2, &sge);
            match state {
                Reset => assert_eq!(received, Result::Err(PostError::State(state))),
                _ => assert_eq!(received, Ok(())),
            }
            if state == Err {
                b.sends(&[flushed(1)]);
                b.recvs(&[flushed(2)]);
            }
            assert_eq!(b.sent().len(), (state == Rts) as usize);
        }
    }

    requests_are_executed_only_in_states_that_allow_it => "state.packets" {
        for state in [Reset, Init, Rtr, Rts, Sqd, Err] {
            let mut b = at(state);
            let executes = matches!(state, Rtr | Rts | Sqd);
            b.deliver(&[write(Only, RQ, b.remote(0, 1), &[0xfe])]);
            b.expect(&vec![ack(RQ, 1); executes as usize]);
            assert_eq!(b.count().rx_wrong_state, !executes as u64);
            assert_eq!(b.mr.read(0, 1) == [0xfe], executes);
            b.events(if state == Rtr { &[AsyncEvent::CommunicationEstablished] } else { &[] });
        }
    }

    responses_to_a_qp_in_init_rtr_or_err_are_dropped => "state.packets" {
        for state in [Init, Rtr, Err] {
            let mut b = at(state);
            b.exchange(&[ack(SQ, 1), nak(SQ, 0, NakCode::InvalidRequest), rnr(SQ, 0, 1)], &[]);
            assert_eq!(b.count().rx_wrong_state, 3);
            b.state(state);
        }
    }

    receives_posted_in_init_are_used_in_rtr => "state.init" {
        let mut b = at(Init);
        b.recv(1, 0, 10);
        let rtr = b.attr(0, Rtr);
        b.modify(0, rtr).unwrap();
        b.exchange(&[send(Only, RQ, &[1])], &[ack(RQ, 1)]);
        b.recvs(&[ok(1, WcOpcode::Recv, 1)]);
        b.events(&[AsyncEvent::CommunicationEstablished]);
    }

    first_packet_in_rtr_raises_established_event_once => "state.established" {
        let mut b = at(Rtr);
        b.exchange(
            &[write(Only, RQ, b.remote(0, 1), &[1]), write(Only, RQ + 1, b.remote(0, 1), &[1])],
            &[ack(RQ + 1, 2)],
        );
        b.events(&[AsyncEvent::CommunicationEstablished]);
        let mut b = at(Rts);
        b.exchange(&[write(Only, RQ, b.remote(0, 1), &[1])], &[ack(RQ, 1)]);
        b.events(&[]);
    }

    transition_to_err_flushes_both_queues_once_and_ends_traffic => "state.err" {
        let mut b = at(Rts);
        b.recv(10, 0, 1);
        b.recv(11, 0, 1);
        b.post(1, WrOp::Send, 0, 600);
        assert_eq!(b.sent().len(), 3);
        b.post(2, WrOp::Read { va: 0, rkey: urxe::wire::RKey(1) }, 0, 8);
        b.deliver(&[read(RQ, b.remote(0, 600))]);
        b.set_state(Err);
        b.sends(&[flushed(1), flushed(2)]);
        b.recvs(&[flushed(10), flushed(11)]);
        // Not even a response that was due is sent.
        b.expect_nothing();
        b.exchange(&[ack(SQ + 2, 1), send(Only, RQ + 3, &[1])], &[]);
        b.set_state(Err);
        b.advance(100 * ACK_TIMEOUT);
    }

    executed_requests_are_acked_before_transition_to_err_or_reset => "state.final_ack" {
        for state in [Err, Reset] {
            let mut b = at(Rts);
            b.deliver(&[write(Only, RQ, b.remote(0, 1), &[1]), write(Only, RQ + 1, b.remote(0, 1), &[2])]);
            b.set_state(state);
            b.expect(&[ack(RQ + 1, 2)]);
            // Neither a READ response nor an acknowledgement for a later request is sent.
            let mut b = at(Rts);
            b.deliver(&[write(Only, RQ, b.remote(0, 1), &[1]), read(RQ + 1, b.remote(0, 600))]);
            b.deliver(&[write(Only, RQ + 4, b.remote(0, 1), &[2])]);
            b.set_state(state);
            b.expect(&[ack(RQ, 1)]);
        }
    }

    reset_discards_all_state_without_completions => "state.reset" {
        let mut b = at(Rts);
        b.recv(10, 0, 1000);
        b.recv(11, 0, 1000);
        b.post(1, WrOp::Send, 0, 600);
        assert_eq!(b.sent().len(), 3);
        b.post(2, WrOp::Send, 0, 1);
        // An incomplete message, a NAK that was sent, and a READ to replay.
        b.deliver(&[read(RQ, b.remote(0, 8)), send(First, RQ + 1, &[1; 256]), send(Last, RQ + 4, &[1])]);
        assert_eq!(b.sent().len(), 3);
        b.deliver(&[read(RQ, b.remote(0, 8))]);
        b.set_state(Reset);
        b.expect_nothing();
        b.advance(100 * ACK_TIMEOUT);
        b.sends(&[]);
        b.recvs(&[]);
        assert_eq!(b.nic.query_qp(b.qpns[0]).unwrap().0.dest_qpn, Some(Qpn::default()));
        b.connect(0, Rts);
        // The state is that after creation: first PSNs, MSN 0, no receive, no message in progress, no saved
        // READ.
        b.exchange(&[send(Only, RQ, &[1])], &[rnr(RQ, 0, 12)]);
        b.recv(12, 0, 1000);
        b.exchange(&[send(Only, RQ, &[1])], &[ack(RQ, 1)]);
        b.exchange(&[read(RQ, b.remote(0, 8))], &[]);
        b.recvs(&[ok(12, WcOpcode::Recv, 1)]);
        b.post(3, WrOp::Send, 0, 1);
        let d = b.mr.read(0, 1);
        b.expect(&[send(Only, SQ, &d)]);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(3, WcOpcode::Send, 1)]);
    }

    qp_in_sqd_finishes_partly_sent_messages_and_starts_no_others => "state.sqd" {
        let mut b = Bench::with(|s| s.tuning.window = 1024);
        b.post(1, WrOp::Send, 0, 600);
        b.post(2, WrOp::Send, 0, 1);
        let d = b.mr.read(0, 600);
        let m = message(256, &d, send, SQ);
        b.expect(&[m[0].clone().ackreq(true)]);
        b.set_state(Sqd);
        b.exchange(&[ack(SQ, 0)], &[m[1].clone().ackreq(true)]);
        // Lost packets are retransmitted, including the first packet of a message.
        b.exchange(&[nak(SQ + 1, 0, NakCode::PsnSequenceError)], &[m[1].clone().ackreq(true)]);
        b.exchange(&[ack(SQ + 1, 0)], &m[2..]);
        b.exchange(&[ack(SQ + 2, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 600)]);
        b.post(3, WrOp::Send, 1, 1);
        b.expect_nothing();
        // The responder continues.
        b.exchange(&[write(Only, RQ, b.remote(900, 1), &[1])], &[ack(RQ, 1)]);
        b.set_state(Rts);
        b.expect(&[send(Only, SQ + 3, &d[..1])]);
        b.exchange(&[ack(SQ + 3, 2)], &[send(Only, SQ + 4, &d[1..2])]);
        b.exchange(&[ack(SQ + 4, 3)], &[]);
        b.sends(&[ok(2, WcOpcode::Send, 1), ok(3, WcOpcode::Send, 1)]);
    }

    unacknowledged_message_is_retransmitted_from_its_first_packet_in_sqd => "state.sqd" {
        let mut b = at(Rts);
        b.post(1, WrOp::Send, 0, 1);
        let one = b.sent();
        b.set_state(Sqd);
        b.advance(ACK_TIMEOUT);
        b.expect(&one);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
    }

    modify_with_invalid_transition_or_attributes_fails => "state.modify" {
        let mut b = at(Init);
        let rts = b.attr(0, Rts);
        assert!(matches!(b.modify(0, rts), Result::Err(ModifyError::Transition { from: Init, to: Rts, .. })));
        let mut rtr = b.attr(0, Rtr);
        rtr.rq_psn = None;
        assert!(matches!(b.modify(0, rtr), Result::Err(ModifyError::Missing { .. })));
        b.state(Init);
        let mut b = at(Rtr);
        let rts = b.attr(0, Rts).retry_cnt(8);
        assert!(matches!(b.modify(0, rts), Result::Err(ModifyError::Value { name: "retry_cnt", .. })));
        let rts = b.attr(0, Rts).sq_psn(Psn::new(7));
        b.modify(0, rts).unwrap();
        let (attr, _) = b.nic.query_qp(b.qpns[0]).unwrap();
        assert_eq!((attr.sq_psn, attr.rq_psn), (Some(Psn::new(7)), Some(Psn::new(RQ))));
    }

    packet_with_wrong_icrc_is_dropped => "packet.icrc" {
        let mut b = at(Rts);
        let flow = b.flow();
        let mut h = write(Only, RQ, b.remote(0, 8), &[7; 8]).h;
        h.bth.dest_qp = b.qpns[0];
        let good = encode(&h, &[7; 8], &flow);
        for i in 0..good.len() {
            let mut bytes = good.clone();
            bytes[i] ^= 0x10;
            b.raw(&flow, &bytes);
        }
        // All bits but FECN, BECN and the adjacent reserved bits, which a switch may change.
        assert_eq!(b.count().rx_icrc_err, good.len() as u64 - 1);
        b.expect(&[ack(RQ, 1)]);
        let other = urxe::wire::Flow { src_port: 1, ..flow };
        b.raw(&other, &good);
        assert_eq!(b.count().rx_icrc_err, good.len() as u64);
    }

    malformed_packets_are_dropped_and_counted => "packet.malformed" {
        let mut b = at(Rts);
        let flow = b.flow();
        let to = b.remote(0, 8);
        let mut h = write(Only, RQ, to, &[7; 8]).h;
        h.bth.dest_qp = b.qpns[0];
        let good = encode(&h, &[7; 8], &flow);
        let mut expected = [0; 4];
        let mut expect_drop = |b: &mut Bench, cause: usize, mut bytes: Vec<u8>| {
            if bytes.len() >= 16 {
                urxe_test_support::engine::write_icrc(&mut bytes, &flow);
            }
            b.raw(&flow, &bytes);
            expected[cause] += 1;
            let c = b.count();
            let counted = [c.rx_truncated, c.rx_bad_pad, c.rx_bad_version, c.rx_reserved_opcode];
            assert_eq!(counted, expected, "{bytes:02x?}");
            assert_eq!(c.rx_malformed(), expected.iter().sum::<u64>());
        };
        // Truncated at every byte: either the headers of the opcode are incomplete or the length is no
        // multiple of four.
        for n in 1..32 {
            expect_drop(&mut b, 0, good[..n].to_vec());
        }
        for n in (32..good.len()).filter(|n| n % 4 != 0) {
            expect_drop(&mut b, 1, good[..n].to_vec());
        }
        for opcode in [0x15, 0x18, 0x1f, 0xc0, 0xff] {
            let mut bytes = good.clone();
            bytes[0] = opcode;
            expect_drop(&mut b, 3, bytes);
        }
        let mut bytes = good.clone();
        bytes[1] |= 1; // transport version 1
        expect_drop(&mut b, 2, bytes);
        // More pad bytes than there are bytes of payload.
        let mut bytes = good[..32].to_vec();
        bytes[1] |= 0x30;
        expect_drop(&mut b, 0, bytes);
        b.expect_nothing();
        assert_eq!(b.mr.read(0, 1), [urxe_test_support::engine::pattern(0)]);
    }

    reserved_and_variant_header_fields_are_ignored_on_receive => "packet.ignored" {
        let mut b = at(Rts);
        let p = write(Only, RQ, b.remote(0, 1), &[1]).with(|h| {
            (h.bth.fecn, h.bth.becn, h.bth.resv6, h.bth.resv7, h.bth.mig_req) =
                (true, true, 0x3f, 0x7f, false);
        });
        b.exchange(&[p], &[ack(RQ, 1)]);
        let mut h = write(Only, RQ + 1, b.remote(0, 1), &[1]).h;
        h.bth.dest_qp = b.qpns[0];
        let flow = urxe::wire::Flow { src_port: 1000, traffic_class: 0xfe, hop_limit: 1, ..b.flow() };
        b.raw(&flow, &encode(&h, &[1], &flow));
        b.expect(&[ack(RQ + 1, 2)]);
    }

    packet_with_wrong_pkey_is_dropped => "packet.pkey" {
        let mut b = at(Rts);
        let p = write(Only, RQ, b.remote(0, 1), &[1]);
        for key in [0x1234, 0x9234, 0x0000, 0x8000] {
            b.exchange(&[p.clone().pkey(key)], &[]);
        }
        assert_eq!(b.count().rx_pkey_violation, 4);
        b.exchange(&[p.pkey(0x7fff)], &[ack(RQ, 1)]);
    }

    packet_from_wrong_source_is_dropped => "packet.source" {
        let mut b = at(Rts);
        let mut h = write(Only, RQ, b.remote(0, 1), &[1]).h;
        h.bth.dest_qp = b.qpns[0];
        let ip = |n: u8| std::net::IpAddr::from([10, 0, 0, n]);
        for (src, dst) in [(3, 1), (2, 4), (1, 2)] {
            let flow = urxe::wire::Flow { src: ip(src), dst: ip(dst), ..b.flow() };
            b.raw(&flow, &encode(&h, &[1], &flow));
        }
        b.expect_nothing();
        assert_eq!(b.count().rx_wrong_source, 3);
    }

    packets_of_other_services_or_to_unknown_qps_are_dropped => "packet.qp" {
        let mut b = at(Rts);
        let flow = b.flow();
        let to = b.remote(0, 1);
        let mut h = write(Only, RQ, to, &[1]).h;
        for qpn in [0, 1, 2, 0xff_ffff, b.qpns[0].get() ^ 1, b.qpns[0].get() ^ 1 << 20] {
            h.bth.dest_qp = Qpn::new(qpn);
            b.raw(&flow, &encode(&h, &[1], &flow));
        }
        assert_eq!(b.count().rx_unknown_qp, 6);
        // Opcodes of UC, UD and XRC.
        for opcode in [0x2a, 0x64, 0xa4] {
            b.deliver(&[write(Only, RQ, to, &[1]).opcode(opcode)]);
        }
        assert_eq!(b.count().rx_unknown_qp, 9);
        b.expect_nothing();
        // A CNP is only counted.
        b.exchange(&[send(Only, 0, &[0; 16]).opcode(0x81)], &[]);
        assert_eq!(b.count().rp_cnp_ignored, 1);
    }

    packets_of_two_qps_do_not_interfere => "packet.qp" {
        let mut b = Bench::with(|s| s.qps = 2);
        let to = b.remote(0, 1);
        b.exchange(
            &[
                write(Only, RQ, to, &[1]),
                write(Only, RQ, to, &[1]).qp(1),
                write(Only, RQ + 1, to, &[1]).qp(1),
            ],
            &[ack(RQ, 1), ack(RQ + 1, 2).qp(1)],
        );
        // One QP fails, the other continues.
        b.exchange(&[send(Middle, RQ + 1, &[0; 256])], &[nak(RQ + 1, 1, NakCode::InvalidRequest)]);
        b.events(&[AsyncEvent::QpRequestError]);
        b.exchange(&[write(Only, RQ + 2, to, &[1]).qp(1)], &[ack(RQ + 2, 3).qp(1)]);
    }

    uc_packet_inside_rc_burst_is_dropped => "packet.qp" {
        let mut b = Bench::new();
        let to = b.remote(0, 1);
        let packets = [0, 1, 1].map(|n| write(Only, RQ + n, to, &[1]));
        let [first, other, second] = packets;
        b.exchange(&[first, other.uc(), second], &[ack(RQ + 1, 2)]);
        assert_eq!(b.count().rx_unknown_qp, 1);
    }

    packet_for_destroyed_qp_is_dropped => "packet.qp" {
        let mut b = at(Rts);
        b.post(1, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[write(Only, RQ, b.remote(0, 1), &[1])]);
        let qpn = b.qpns[0];
        b.nic.destroy_qp(qpn).unwrap();
        b.expect_nothing();
        b.exchange(&[write(Only, RQ + 1, b.remote(0, 1), &[1])], &[]);
        assert_eq!(b.count().rx_unknown_qp, 1);
        b.advance(100 * ACK_TIMEOUT);
    }
}
