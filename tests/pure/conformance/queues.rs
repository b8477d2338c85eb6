//! Conformance cases: completion queue overflow and resizing, and send queue drain (SQD).

use std::time::Duration;

use urxe::transport::{AsyncEvent, CqId, QpAttr, QpState, QpType, WcOpcode, WcStatus, WrOp};
use urxe::verbs::errors::{CqOverflow, CreateError};
use urxe::verbs::{Fabric, FabricConfig, Personality, RecvWr, SendWr};
use urxe::wire::{RKey, Syndrome};

use crate::bench::{Bench, RQ, SQ, Setup, Wc, bad, flushed, ok};
use crate::pkt::*;

fn events(b: &mut Bench) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| b.next_event()).collect()
}

fn drain(b: &mut Bench) {
    let attr = QpAttr::new(QpState::Sqd).sqd_notify(true);
    b.modify(0, attr).unwrap();
}

/// Returns a bench whose completion queues have two entries.
fn small(change: impl FnOnce(&mut Setup)) -> Bench {
    Bench::with(|s| {
        s.cqe = 2;
        change(s);
    })
}

cases! {
    overflow_of_send_cq_moves_qp_to_err => "cq.overflow" {
        let mut b = small(|_| {});
        for i in 0..4 {
            b.post(i, WrOp::Send, 0, 1);
        }
        assert_eq!(b.sent().len(), 4);
        b.exchange(&[ack(SQ + 2, 3)], &[]);
        b.state(QpState::Err);
        assert_eq!(events(&mut b), [AsyncEvent::CqError(CqId(1)), AsyncEvent::QpFatal(b.qpns[0])]);
        let mut out = Vec::new();
        assert_eq!(b.send_cq.poll(9, &mut out), Ok(2));
        assert_eq!(out.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(b.send_cq.poll(9, &mut out), Err(CqOverflow { capacity: 2 }));
        // The events are raised once.
        b.exchange(&[ack(SQ + 3, 4)], &[]);
        assert_eq!(events(&mut b), []);
    }

    overflow_of_receive_cq_moves_qp_to_err => "cq.overflow" {
        let mut b = small(|_| {});
        for i in 0..4 {
            b.recv(i, 0, 10);
        }
        for i in 0..3 {
            b.deliver(&[send(Only, RQ + i, &[1]).ackreq(false)]);
        }
        b.expect_nothing();
        b.state(QpState::Err);
        assert_eq!(events(&mut b), [AsyncEvent::CqError(CqId(2)), AsyncEvent::QpFatal(b.qpns[0])]);
        b.recvs(&[ok(0, WcOpcode::Recv, 1), ok(1, WcOpcode::Recv, 1)]);
    }

    send_cq_overflow_by_uc_sends_moves_qp_to_err => "cq.overflow" {
        let mut b = small(|s| s.qp_type = QpType::Uc);
        for i in 0..3 {
            b.post(i, WrOp::Send, 0, 1);
        }
        assert_eq!(b.sent().len(), 3);
        b.state(QpState::Err);
        assert_eq!(events(&mut b), [AsyncEvent::CqError(CqId(1)), AsyncEvent::QpFatal(b.qpns[0])]);
        b.sends(&[ok(0, WcOpcode::Send, 1), ok(1, WcOpcode::Send, 1)]);
    }

    cq_polled_in_time_does_not_overflow => "cq.overflow" {
        let mut b = small(|_| {});
        for i in 0..10 {
            b.post(i, WrOp::Send, 0, 1);
            assert_eq!(b.sent().len(), 1);
            b.exchange(&[ack(SQ + i as u32, i as u32 + 1)], &[]);
            b.sends(&[ok(i, WcOpcode::Send, 1)]);
        }
        b.state(QpState::Rts);
    }

    // Completion queues belong to the driver, not to the NIC, so this case uses the verbs API.
    cq_is_resized_but_not_below_its_contents => "cq.resize" {
        let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
        let (a, b) = fabric.pair().unwrap();
        let cq = a.context.create_cq(2).unwrap();
        let (qp, peer) = urxe_test_support::nic::qp_pair((&a.pd, &cq), (&b.pd, &b.cq));
        let send = |wr_id| {
            peer.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
            qp.post_send(&SendWr::send(wr_id, &[])).unwrap();
            fabric.run_until_idle(Duration::from_secs(1));
        };
        (0..2).for_each(send);
        let max = Personality::DEFAULT.limits.max_cqe.into();
        let too_small = CreateError::Value { name: "CQ size", value: 1, min: 2, max };
        assert_eq!(cq.resize(1), Err(too_small));
        cq.resize(4).unwrap();
        (2..4).for_each(send);
        let mut out = Vec::new();
        assert_eq!(cq.poll(usize::MAX, &mut out), Ok(4));
        let done = (0..4).map(|i| ok(i, WcOpcode::Send, 0)).collect::<Vec<_>>();
        assert_eq!(out.into_iter().map(Wc::from).collect::<Vec<_>>(), done);
        cq.resize(1).unwrap();
        assert_eq!(cq.capacity(), 1);
        assert_eq!(qp.state(), QpState::Rts);
        assert_eq!(a.context.next_event(), None);
    }

    transition_of_an_idle_qp_to_sqd_raises_the_sq_drained_event_at_once => "state.sqd.drained" {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
            let mut b = Bench::with(|s| s.qp_type = qp_type);
            drain(&mut b);
            b.events(&[AsyncEvent::SqDrained]);
            // A work request posted now waits and raises no event.
            b.post(1, WrOp::Send, 0, 1);
            b.expect_nothing();
            b.events(&[]);
        }
    }

    sq_drained_event_follows_last_request_in_progress => "state.sqd.drained" {
        let mut b = Bench::with(|s| s.tuning.window = 2 * 1024);
        b.post(1, WrOp::Send, 0, 4 * 256);
        b.post(2, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 2);
        drain(&mut b);
        b.events(&[]);
        assert!(b.nic.query_qp(b.qpns[0]).unwrap().1.is_draining());
        // The message in progress is sent to its end; the next one is not begun.
        b.deliver(&[ack(SQ + 1, 0)]);
        assert_eq!(b.sent().len(), 2);
        b.exchange(&[ack(SQ + 2, 0)], &[]);
        b.events(&[]);
        b.exchange(&[ack(SQ + 3, 1)], &[]);
        b.events(&[AsyncEvent::SqDrained]);
        assert!(!b.nic.query_qp(b.qpns[0]).unwrap().1.is_draining());
        b.sends(&[ok(1, WcOpcode::Send, 1024)]);
        b.set_state(QpState::Rts);
        assert_eq!(b.sent().len(), 1);
        b.exchange(&[ack(SQ + 4, 2)], &[]);
        b.sends(&[ok(2, WcOpcode::Send, 1)]);
        b.events(&[]);
    }

    sq_drained_event_follows_last_read_response => "state.sqd.drained" {
        let mut b = Bench::new();
        let (va, rkey) = (0, RKey(1));
        b.post(1, WrOp::Read { va, rkey }, 0, 300);
        assert_eq!(b.sent().len(), 1);
        drain(&mut b);
        b.exchange(&[resp(First, SQ, 1, &[1; 256])], &[]);
        b.events(&[]);
        b.exchange(&[resp(Last, SQ + 1, 1, &[1; 44])], &[]);
        b.events(&[AsyncEvent::SqDrained]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 300)]);
    }

    sq_drained_event_follows_the_rest_of_a_read_whose_first_responses_were_reordered => "state.sqd.drained" {
        let mut b = Bench::with(|s| (s.tuning.read_chunk, s.max_rd) = (512, 1));
        let (va, rkey) = (0, RKey(1));
        b.post(1, WrOp::Read { va, rkey }, 0, 1024);
        b.expect(&[read(SQ, (va, rkey, 512))]);
        drain(&mut b);
        // The READ is to be requested again from its start, but both responses follow in the same burst.
        let part = |n: u32| resp(Middle, SQ + n, 1, &[n as u8; 256]);
        b.deliver(&[part(1), part(0), part(1)]);
        b.events(&[]);
        b.expect(&[read(SQ + 2, (va + 512, rkey, 512))]);
        b.exchange(&[part(2), part(3)], &[]);
        b.events(&[AsyncEvent::SqDrained]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 1024)]);
    }

    transition_to_sqd_without_event_request_raises_no_event => "state.sqd.drained" {
        let mut b = Bench::new();
        b.post(1, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 1);
        b.set_state(QpState::Sqd);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
        b.events(&[]);
    }

    qp_failing_while_draining_raises_no_sq_drained_event => "state.sqd.drained" {
        let mut b = Bench::new();
        b.post(1, WrOp::Send, 0, 1);
        b.post(2, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 2);
        drain(&mut b);
        b.exchange(&[aeth(SQ, 0, Syndrome::Nak(urxe::wire::NakCode::RemoteOperationalError))], &[]);
        b.sends(&[bad(1, WcStatus::RemOpErr), flushed(2)]);
        b.events(&[]);
        b.state(QpState::Err);
    }
}
