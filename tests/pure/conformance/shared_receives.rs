//! Conformance cases: shared receive queues.

use urxe::transport::{
    AsyncEvent, PostError, QpState, QpType, RecvCaps, RecvWr, Sge, SharedReceives, WcOpcode, WcStatus,
};
use urxe::wire::NakCode;

use crate::bench::{Bench, RQ, Setup, bad, flushed, ok};
use crate::pkt::*;

fn shared(qps: usize, change: impl FnOnce(&mut Setup)) -> Bench {
    Bench::with(|s| {
        (s.shared, s.qps) = (true, qps);
        change(s);
    })
}

fn arm(b: &mut Bench, limit: u32) {
    let srq = b.srq.unwrap();
    b.nic.with_srq(srq, |queue, out| queue.arm(limit, out)).unwrap();
}

fn queue(b: &Bench) -> &SharedReceives {
    b.nic.srq(b.srq.unwrap()).unwrap()
}

fn remaining(b: &Bench) -> usize {
    queue(b).len()
}

cases! {
    each_message_consumes_the_oldest_receive_of_the_srq => "srq.order" {
        let mut b = shared(2, |_| {});
        b.recv(1, 0, 100);
        b.recv(2, 100, 100);
        b.exchange(&[send(Only, RQ, &[5; 10]).qp(1)], &[ack(RQ, 1).qp(1)]);
        b.exchange(&[send(Only, RQ, &[6; 20])], &[ack(RQ, 1)]);
        b.recvs(&[ok(1, WcOpcode::Recv, 10), ok(2, WcOpcode::Recv, 20)]);
        assert_eq!((b.mr.read(0, 10), b.mr.read(100, 20)), (vec![5; 10], vec![6; 20]));
    }

    messages_of_two_qps_consume_different_receives => "srq.order" {
        let mut b = shared(2, |_| {});
        b.recv(1, 0, 600);
        b.recv(2, 1000, 600);
        let parts = |qp: usize, fill: u8| -> Vec<Pkt> {
            message(256, &[fill; 600], send, RQ).into_iter().map(|p| p.qp(qp)).collect()
        };
        let (a, c) = (parts(0, 1), parts(1, 2));
        b.exchange(&[a[0].clone(), c[0].clone(), c[1].clone(), a[1].clone()], &[]);
        b.exchange(&[c[2].clone()], &[ack(RQ + 2, 1).qp(1)]);
        b.exchange(&[a[2].clone()], &[ack(RQ + 2, 1)]);
        b.recvs(&[ok(2, WcOpcode::Recv, 600), ok(1, WcOpcode::Recv, 600)]);
        assert_eq!((b.mr.read(0, 600), b.mr.read(1000, 600)), (vec![1; 600], vec![2; 600]));
    }

    send_is_rnr_nakked_if_the_srq_is_empty => "srq.empty" {
        let mut b = shared(1, |_| {});
        assert!(queue(&b).is_empty());
        b.exchange(&[send(Only, RQ, &[5])], &[rnr(RQ, 0, 12)]);
        b.recv(1, 0, 100);
        assert!(!queue(&b).is_empty());
        b.exchange(&[send(Only, RQ, &[5])], &[ack(RQ, 1)]);
        b.recvs(&[ok(1, WcOpcode::Recv, 1)]);
    }

    posting_a_receive_to_a_qp_with_an_srq_fails => "srq.post" {
        let mut b = shared(1, |_| {});
        let wr = RecvWr::new(1, &[]);
        assert_eq!(b.nic.post_recv(b.qpns[0], &wr).unwrap(), Err(PostError::SharedQueue));
        // The queue has limits of its own.
        for i in 0..64 {
            b.recv(i, 0, 1);
        }
        assert_eq!(b.recv_sges(64, &[]), Err(PostError::QueueFull(64)));
        let sge = b.mr.sge(0, 1);
        let mut b = shared(1, |_| {});
        assert_eq!(b.recv_sges(1, &[sge; 5]), Err(PostError::TooManySges { got: 5, max: 4 }));
    }

    srq_limit_event_is_raised_once_each_time_it_is_armed => "srq.limit" {
        let mut b = shared(1, |_| {});
        for i in 0..4 {
            b.recv(i, 0, 10);
        }
        let limit = AsyncEvent::SrqLimit(b.srq.unwrap());
        arm(&mut b, 3);
        assert_eq!((b.next_event(), queue(&b).limit()), (None, 3));
        b.exchange(&[send(Only, RQ, &[1])], &[ack(RQ, 1)]);
        assert_eq!(b.next_event(), None);
        b.exchange(&[send(Only, RQ + 1, &[1])], &[ack(RQ + 1, 2)]);
        assert_eq!((b.next_event(), queue(&b).limit()), (Some(limit), 0));
        b.exchange(&[send(Only, RQ + 2, &[1])], &[ack(RQ + 2, 3)]);
        assert_eq!(b.next_event(), None);
        // Armed above the number of remaining receives, the event is raised at once.
        arm(&mut b, 2);
        assert_eq!(b.next_event(), Some(limit));
        b.recvs(&(0..3).map(|i| ok(i, WcOpcode::Recv, 1)).collect::<Vec<_>>());
    }

    qp_in_err_flushes_only_the_srq_receive_it_has_taken => "srq.flush" {
        let mut b = shared(1, |_| {});
        b.recv(1, 0, 600);
        b.recv(2, 1000, 600);
        b.exchange(&[send(First, RQ, &[1; 256])], &[]);
        b.set_state(QpState::Err);
        b.recvs(&[flushed(1)]);
        assert_eq!(remaining(&b), 1);
        b.events(&[AsyncEvent::LastWqeReached]);
    }

    repeated_transition_to_err_raises_the_last_wqe_event_only_once => "srq.flush" {
        let mut b = shared(1, |_| {});
        b.set_state(QpState::Err);
        b.events(&[AsyncEvent::LastWqeReached]);
        b.set_state(QpState::Err);
        b.events(&[]);
    }

    send_longer_than_srq_receive_buffer_raises_the_last_wqe_event => "srq.flush" {
        let mut b = shared(1, |_| {});
        b.recv(1, 0, 10);
        b.recv(2, 0, 10);
        b.exchange(&[send(Only, RQ, &[1; 20])], &[nak(RQ, 0, NakCode::InvalidRequest)]);
        b.recvs(&[bad(1, WcStatus::LocLenErr)]);
        b.events(&[AsyncEvent::LastWqeReached]);
        b.state(QpState::Err);
        assert_eq!(remaining(&b), 1);
    }

    receive_from_srq_is_checked_in_the_pd_of_the_srq => "srq.pd" {
        let mut b = shared(1, |_| {});
        let other = b.region(urxe::memory::PdId(77), 100, 0, urxe::memory::Access::ALL);
        let sge = [b.regions[other].sge(0, 100)];
        b.recv_sges(1, &sge).unwrap();
        b.exchange(&[send(Only, RQ, &[1; 20])], &[nak(RQ, 0, NakCode::RemoteOperationalError)]);
        b.recvs(&[bad(1, WcStatus::LocProtErr)]);
        b.events(&[AsyncEvent::LastWqeReached]);
    }

    ud_and_uc_messages_consume_receives_of_the_srq => "srq.services" {
        let mut b = shared(1, |s| s.qp_type = QpType::Ud);
        b.recv(1, 0, 100);
        b.exchange(&[send(Only, 0, &[4; 10]).ud(crate::bench::QKEY, urxe::wire::Qpn::new(5))], &[]);
        b.recvs(&[ok(1, WcOpcode::Recv, 50)]);
        let mut b = shared(1, |s| s.qp_type = QpType::Uc);
        b.recv(1, 0, 600);
        let parts: Vec<Pkt> = message(256, &[3; 600], send, RQ).into_iter().map(Pkt::uc).collect();
        b.exchange(&parts[..2], &[]);
        // The receive of the incomplete message is used for the next message of this QP.
        b.exchange(&[send(Only, RQ + 9, &[2]).uc()], &[]);
        b.recvs(&[ok(1, WcOpcode::Recv, 1)]);
    }

    srq_is_resized_but_not_below_its_contents => "srq.resize" {
        let mut b = shared(1, |_| {});
        let srq = b.srq.unwrap();
        b.recv(1, 0, 1);
        b.recv(2, 0, 1);
        assert_eq!(b.nic.with_srq(srq, |q, _| q.resize(1)).unwrap(), Err(2));
        b.nic.with_srq(srq, |q, _| q.resize(2)).unwrap().unwrap();
        assert_eq!(b.recv_sges(3, &[]), Err(PostError::QueueFull(2)));
        b.nic.with_srq(srq, |q, _| q.resize(3)).unwrap().unwrap();
        assert_eq!(queue(&b).caps(), RecvCaps { max_wr: 3, max_sge: 4 });
        b.recv_sges(3, &[] as &[Sge]).unwrap();
    }
}
