//! Conformance cases: XRC initiators and targets, and the shared receive queues addressed by requests.

use std::time::Duration;

use urxe::memory::{Access, AtomicOp, PdId};
use urxe::transport::AsyncEvent;
use urxe::transport::{
    AttrMask, Destination, ModifyError, PostError, QpAttr, QpState, QpType, RecvCaps, RecvWr, SendWr, SrqId,
    WcOpcode, WcStatus, WrOp, XrcdId,
};
use urxe::wire::{AckTimeout, NakCode, RKey};

use crate::bench::{Bench, DOMAIN, PEER_SRQ, RQ, SQ, Setup, bad, flushed, ok};
use crate::pkt::*;
use urxe_test_support::engine::PD;

fn target(change: impl FnOnce(&mut Setup)) -> (Bench, SrqId) {
    let b = Bench::with(|s| {
        s.qp_type = QpType::XrcRecv;
        change(s);
    });
    let srq = b.srq.unwrap();
    (b, srq)
}

fn initiator() -> Bench {
    Bench::with(|s| s.qp_type = QpType::XrcSend)
}

fn to_xrc(srq: SrqId, packets: &[Pkt]) -> Vec<Pkt> {
    packets.iter().map(|p| p.clone().xrc(srq)).collect()
}

/// Converts responses to XRC packets, which carry no shared receive queue number.
fn to_xrc_resp(packets: &[Pkt]) -> Vec<Pkt> {
    to_xrc(SrqId(0), packets)
}

fn post(b: &mut Bench, srq: SrqId, wr_id: u64, at: usize) {
    let sges = [b.mr.sge(at, 100)];
    b.nic.with_srq(srq, |q, _| q.post(&RecvWr::new(wr_id, &sges))).unwrap().unwrap();
}

cases! {
    each_message_consumes_a_receive_of_the_srq_it_names => "xrc.target" {
        let (mut b, first) = target(|_| {});
        let second = b.xrc_srq(PD, DOMAIN);
        post(&mut b, first, 1, 0);
        post(&mut b, second, 2, 100);
        let mut p = to_xrc(second, &[send(Only, RQ, &[7])]);
        p.extend(to_xrc(first, &[send_imm(Only, RQ + 1, &[8], 9).solicited()]));
        b.exchange(&p, &to_xrc_resp(&[ack(RQ + 1, 2)]));
        b.recvs(&[ok(2, WcOpcode::Recv, 1), ok(1, WcOpcode::Recv, 1).imm(9).solicited()]);
        assert_eq!((b.mr.read(100, 1), b.mr.read(0, 1)), (vec![7], vec![8]));
    }

    messages_of_one_burst_may_name_different_srqs => "xrc.target" {
        let (mut b, first) = target(|_| {});
        let second = b.xrc_srq(PD, DOMAIN);
        post(&mut b, first, 1, 0);
        post(&mut b, second, 2, 100);
        let p = [send(Only, RQ, &[7]).xrc(second), send(Only, RQ + 1, &[8]).xrc(first)];
        b.exchange(&p, &to_xrc_resp(&[ack(RQ + 1, 2)]));
        b.recvs(&[ok(2, WcOpcode::Recv, 1), ok(1, WcOpcode::Recv, 1)]);
    }

    completion_contains_the_qpn_of_the_xrc_target => "xrc.target" {
        let (mut b, srq) = target(|s| s.qps = 2);
        post(&mut b, srq, 1, 0);
        b.exchange(&[send(Only, RQ, &[7]).xrc(srq).qp(1)], &[ack(RQ, 1).xrc(srq).qp(1)]);
        let c = b.raw_recv();
        assert_eq!((c.qpn, c.src_qpn.get()), (b.qpns[1], 0x78));
    }

    xrc_target_executes_writes_reads_and_atomics => "xrc.target" {
        let (mut b, srq) = target(|s| s.access = Access::ALL | Access::FLUSH_GLOBAL);
        let (to, from) = (b.remote(0, 300), b.remote(400, 300));
        let d = b.mr.read(400, 300);
        b.exchange(
            &to_xrc(srq, &message(256, &[5; 300], |p, n, d| write(p, n, to, d), RQ)),
            &to_xrc_resp(&[ack(RQ + 1, 1)]),
        );
        b.exchange(
            &to_xrc(srq, &[read(RQ + 2, from)]),
            &to_xrc_resp(&message(256, &d, |p, n, d| resp(p, n, 2, d), RQ + 2)),
        );
        b.mr.write(0, &5u64.to_ne_bytes());
        b.exchange(
            &to_xrc(srq, &[fetch_add(RQ + 4, (to.0, to.1), 1)]),
            &to_xrc_resp(&[atomic_ack(RQ + 4, 3, 5)]),
        );
        b.exchange(
            &to_xrc(srq, &[atomic_write(RQ + 5, (to.0, to.1), [1; 8])]),
            &to_xrc_resp(&[empty_resp(RQ + 5, 4)]),
        );
        assert_eq!(b.mr.read(0, 8), [1; 8]);
        post(&mut b, srq, 1, 500);
        b.exchange(
            &to_xrc(srq, &[write_imm(Only, RQ + 6, (to.0, to.1, 1), &[6], 3)]),
            &to_xrc_resp(&[ack(RQ + 6, 5)]),
        );
        b.recvs(&[ok(1, WcOpcode::RecvRdmaWithImm, 1).imm(3)]);
    }

    request_naming_unknown_srq_is_nakked => "xrc.srq" {
        let plain = |b: &mut Bench| b.nic.create_srq(PD, RecvCaps { max_wr: 4, max_sge: 1 }).unwrap();
        let wrong: [fn(&mut Bench, SrqId) -> SrqId; 3] =
            [|_, srq| SrqId(srq.0 + 1), |_, srq| SrqId(srq.0 ^ 1 << 16), |b, _| b.xrc_srq(PD, XrcdId(6))];
        let requests = |b: &Bench| {
            let to = b.remote(0, 8);
            [send(Only, RQ, &[1]), write(Only, RQ, to, &[1; 8]), read(RQ, to), fetch_add(RQ, (to.0, to.1), 1)]
        };
        for i in 0..4 {
            for make in wrong {
                let (mut b, srq) = target(|_| {});
                let number = make(&mut b, srq);
                let before = b.mr.read(0, 8);
                let p = requests(&b)[i].clone().xrc(number);
                b.exchange(&[p], &to_xrc_resp(&[nak(RQ, 0, NakCode::InvalidRequest)]));
                b.events(&[AsyncEvent::QpRequestError]);
                b.state(QpState::Err);
                assert_eq!(b.mr.read(0, 8), before);
            }
            let (mut b, _) = target(|_| {});
            let number = plain(&mut b);
            let p = requests(&b)[i].clone().xrc(number);
            b.exchange(&[p], &to_xrc_resp(&[nak(RQ, 0, NakCode::InvalidRequest)]));
            b.events(&[AsyncEvent::QpRequestError]);
        }
    }

    request_naming_destroyed_srq_is_nakked => "xrc.srq" {
        let (mut b, srq) = target(|_| {});
        b.nic.destroy_srq(srq);
        let next = b.xrc_srq(PD, DOMAIN);
        assert!(next != srq && next.0 & 0xffff == srq.0 & 0xffff, "{next:?} in the slot of {srq:?}");
        post(&mut b, next, 1, 0);
        b.exchange(
            &to_xrc(srq, &[send(Only, RQ, &[1])]),
            &to_xrc_resp(&[nak(RQ, 0, NakCode::InvalidRequest)]),
        );
        b.events(&[AsyncEvent::QpRequestError]);
    }

    message_naming_two_srqs_is_nakked => "xrc.message" {
        let (mut b, first) = target(|_| {});
        let second = b.xrc_srq(PD, DOMAIN);
        let sges = [b.mr.sge(0, 1000)];
        for srq in [first, second] {
            b.nic.with_srq(srq, |q, _| q.post(&RecvWr::new(1, &sges))).unwrap().unwrap();
        }
        b.exchange(&to_xrc(first, &[send(First, RQ, &[1; 256])]), &[]);
        b.exchange(
            &to_xrc(second, &[send(Last, RQ + 1, &[1])]),
            &to_xrc_resp(&[nak(RQ + 1, 0, NakCode::InvalidRequest)]),
        );
        b.events(&[AsyncEvent::QpRequestError]);
        b.recvs(&[bad(1, WcStatus::RemInvReqErr)]);
        // The other queue still has its receive.
        assert_eq!(b.nic.srq(second).unwrap().len(), 1);
        for (position, len) in [(Middle, 256), (Last, 1)] {
            let (mut b, first) = target(|_| {});
            let second = b.xrc_srq(PD, DOMAIN);
            let to = b.remote(0, if position == Middle { 1000 } else { 257 });
            b.exchange(&to_xrc(first, &[write(First, RQ, to, &[1; 256])]), &[]);
            let p = write(position, RQ + 1, to, &vec![1; len]);
            b.exchange(&to_xrc(second, &[p]), &to_xrc_resp(&[nak(RQ + 1, 0, NakCode::InvalidRequest)]));
            b.events(&[AsyncEvent::QpRequestError]);
        }
    }

    memory_is_checked_in_protection_domain_of_the_srq => "xrc.pd" {
        let (mut b, srq) = target(|_| {});
        let other_pd_srq = b.xrc_srq(PdId(2), DOMAIN);
        let r = b.region(PdId(2), 600, 0, Access::ALL);
        let key = b.regions[r].info.rkey;
        let d = b.regions[r].read(0, 300);
        b.exchange(
            &to_xrc(other_pd_srq, &[write(Only, RQ, (0, key, 1), &d[..1])]),
            &to_xrc_resp(&[ack(RQ, 1)]),
        );
        let response = to_xrc_resp(&message(256, &d, |p, n, d| resp(p, n, 2, d), RQ + 1));
        b.exchange(&to_xrc(other_pd_srq, &[read(RQ + 1, (0, key, 300))]), &response);
        // A replay of the READ, and of a part of it.
        b.exchange(&to_xrc(other_pd_srq, &[read(RQ + 1, (0, key, 300))]), &response);
        b.exchange(
            &to_xrc(other_pd_srq, &[read(RQ + 2, (256, key, 44))]),
            &to_xrc_resp(&[resp(Only, RQ + 2, 2, &d[256..])]),
        );
        // Receives of a queue in another protection domain: their SGEs are checked against that domain too.
        let sges = [b.regions[r].sge(10, 8)];
        b.nic.with_srq(other_pd_srq, |q, _| q.post(&RecvWr::new(1, &sges))).unwrap().unwrap();
        b.exchange(&to_xrc(other_pd_srq, &[send(Only, RQ + 3, &[9])]), &to_xrc_resp(&[ack(RQ + 3, 3)]));
        b.recvs(&[ok(1, WcOpcode::Recv, 1)]);
        b.exchange(
            &to_xrc(srq, &[write(Only, RQ + 4, (0, key, 1), &[1])]),
            &to_xrc_resp(&[nak(RQ + 4, 3, NakCode::RemoteAccessError)]),
        );
        b.events(&[AsyncEvent::QpAccessError]);
    }

    xrc_target_sends_rnr_naks_and_acks_duplicates_like_rc => "xrc.replay" {
        let (mut b, srq) = target(|_| {});
        let p = to_xrc(srq, &[send(Only, RQ, &[1])]);
        b.exchange(&p, &to_xrc_resp(&[rnr(RQ, 0, 12)]));
        post(&mut b, srq, 1, 0);
        b.exchange(&p, &to_xrc_resp(&[ack(RQ, 1)]));
        b.recvs(&[ok(1, WcOpcode::Recv, 1)]);
        b.exchange(&p, &to_xrc_resp(&[ack(RQ, 1)]));
        b.exchange(
            &to_xrc(srq, &[send(Only, RQ + 2, &[1])]),
            &to_xrc_resp(&[nak(RQ + 1, 1, NakCode::PsnSequenceError)]),
        );
    }

    each_request_of_an_xrc_initiator_carries_the_srq_number => "xrc.initiator" {
        let mut b = initiator();
        let d = b.mr.read(0, 300);
        let rkey = RKey(7);
        b.post(1, WrOp::SendWithImm(5), 0, 300);
        b.post(2, WrOp::Write { va: 9, rkey }, 0, 300);
        b.post(3, WrOp::Read { va: 9, rkey }, 400, 4);
        b.post(4, WrOp::Atomic { va: 8, rkey, op: AtomicOp::FetchAdd(1) }, 408, 8);
        let send =
            message(256, &d, |p, n, d| if p == Last { send_imm(p, n, d, 5) } else { send(p, n, d) }, SQ);
        let write = message(256, &d, |p, n, d| write(p, n, (9, rkey, 300), d), SQ + 2);
        let mut all = send;
        all.extend(write);
        all.extend([read(SQ + 4, (9, rkey, 4)), fetch_add(SQ + 5, (8, rkey), 1)]);
        b.expect(&to_xrc(PEER_SRQ, &all));
        b.deliver(&to_xrc_resp(&[ack(SQ + 3, 2), resp(Only, SQ + 4, 3, &[1; 4]), atomic_ack(SQ + 5, 4, 77)]));
        b.sends(&[
            ok(1, WcOpcode::Send, 300),
            ok(2, WcOpcode::RdmaWrite, 300),
            ok(3, WcOpcode::RdmaRead, 4),
            ok(4, WcOpcode::FetchAdd, 8),
        ]);
        assert_eq!(b.mr.read(408, 8), 77u64.to_ne_bytes());
    }

    xrc_initiator_retransmits_like_rc => "xrc.initiator" {
        let mut b = initiator();
        b.post(1, WrOp::Send, 0, 4);
        let p = b.sent();
        b.advance(Duration::from_millis(70));
        b.expect(&p);
        b.exchange(&to_xrc_resp(&[nak(SQ, 0, NakCode::PsnSequenceError)]), &p);
        b.deliver(&to_xrc_resp(&[rnr(SQ, 0, 1)]));
        b.advance(Duration::from_millis(1));
        b.expect(&p);
        b.deliver(&to_xrc_resp(&[ack(SQ, 1)]));
        b.sends(&[ok(1, WcOpcode::Send, 4)]);
    }

    posting_an_xrc_work_request_without_an_srq_fails => "xrc.post" {
        let mut b = initiator();
        let sge = [b.mr.sge(0, 1)];
        let wr = SendWr::new(1, WrOp::Send, &sge);
        assert_eq!(b.post_on(0, &wr), Err(PostError::Destination));
        let to = Some(b.to(1));
        assert_eq!(b.post_on(0, &wr.to(to)), Err(PostError::Destination));
        let mut rc = Bench::new();
        let to = Some(Destination::Srq(PEER_SRQ));
        assert_eq!(rc.post_on(0, &wr.to(to)), Err(PostError::Destination));
        assert_eq!(b.recv_sges(2, &sge), Err(PostError::Unsupported(QpType::XrcSend, WcOpcode::Recv)));
        let (mut b, _) = target(|_| {});
        let error = Err(PostError::Unsupported(QpType::XrcRecv, WcOpcode::Send));
        assert_eq!(b.post_on(0, &wr.to(to)), error);
        assert_eq!(b.post_on(0, &wr), error);
        let recv = RecvWr::new(2, &sge);
        assert_eq!(b.nic.post_recv(b.qpns[0], &recv).unwrap(), Err(PostError::SharedQueue));
    }

    xrc_initiator_drops_requests_and_target_drops_responses => "xrc.direction" {
        let mut b = initiator();
        b.exchange(&to_xrc(PEER_SRQ, &[send(Only, RQ, &[1])]), &[]);
        b.exchange(&[ack(SQ, 1)], &[]);
        assert_eq!(b.count().rx_unknown_qp, 2);
        let (mut b, srq) = target(|_| {});
        post(&mut b, srq, 1, 0);
        b.exchange(&to_xrc_resp(&[ack(SQ, 1)]), &[]);
        b.exchange(&[send(Only, RQ, &[1])], &[]);
        assert_eq!(b.count().rx_unknown_qp, 2);
        let mut b = Bench::new();
        b.exchange(&to_xrc(PEER_SRQ, &[send(Only, RQ, &[1])]), &[]);
        assert_eq!(b.count().rx_unknown_qp, 1);
    }

    xrc_target_in_err_flushes_the_receive_it_has_taken => "xrc.flush" {
        let (mut b, srq) = target(|_| {});
        let sges = [b.mr.sge(0, 1000)];
        b.nic.with_srq(srq, |q, _| q.post(&RecvWr::new(1, &sges))).unwrap().unwrap();
        post(&mut b, srq, 2, 0);
        b.exchange(&to_xrc(srq, &[send(First, RQ, &[1; 256])]), &[]);
        b.set_state(QpState::Err);
        b.expect_nothing();
        b.recvs(&[flushed(1)]);
        assert_eq!(b.nic.srq(srq).unwrap().len(), 1);
    }

    xrc_initiator_and_target_need_only_the_attributes_of_their_role => "xrc.states" {
        for (qp_type, has, lacks) in [
            (QpType::XrcSend, AttrMask::RETRY_CNT, AttrMask::MIN_RNR_TIMER),
            (QpType::XrcRecv, AttrMask::TIMEOUT, AttrMask::RETRY_CNT),
        ] {
            let mut b = Bench::with(|s| (s.qp_type, s.state) = (qp_type, QpState::Rtr));
            let rts = b.attr(0, QpState::Rts);
            let missing = rts.retry_cnt(None).timeout(None);
            let error = b.modify(0, missing);
            assert!(
                matches!(error, Err(ModifyError::Missing { missing, .. }) if missing.contains(has)),
                "{error:?}"
            );
            let excess = match lacks {
                AttrMask::MIN_RNR_TIMER => rts.max_dest_rd_atomic(1),
                _ => rts.retry_cnt(1),
            };
            assert!(matches!(b.modify(0, excess), Err(ModifyError::NotAllowed { .. })));
            b.modify(0, rts).unwrap();
            b.set_state(QpState::Sqd);
            b.modify(0, QpAttr::default().timeout(AckTimeout::new(9))).unwrap();
            b.set_state(QpState::Rts);
            b.set_state(QpState::Err);
            b.set_state(QpState::Reset);
        }
    }
}
