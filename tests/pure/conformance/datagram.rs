//! Conformance cases: UD, whose messages are single packets to and from any peer.

use std::net::{IpAddr, Ipv4Addr};

use urxe::memory::PdId;
use urxe::transport::{
    AddressError, Destination, PostError, QpAttr, QpState, QpType, SendFlags, SendWr, Sge, WcOpcode,
    WcStatus, WrOp,
};
use urxe::wire::{Flow, Qpn, RKey, grh};

use crate::bench::{Bench, QKEY, SQ, Setup, Wc, bad, flushed, ok};
use crate::pkt::*;
use urxe_test_support::engine::{self, pattern};

const PEER: Qpn = Qpn::new(0x4321);
const GRH: usize = grh::LEN;

fn ud(change: impl FnOnce(&mut Setup)) -> Bench {
    Bench::with(|s| {
        s.qp_type = QpType::Ud;
        change(s);
    })
}

/// Returns a datagram from the peer. Its PSN is arbitrary, because receivers ignore it.
fn datagram(data: &[u8]) -> Pkt {
    send(Only, 77, data).ud(QKEY, PEER)
}

fn received(wr_id: u64, len: usize) -> Wc {
    ok(wr_id, WcOpcode::Recv, (GRH + len) as u32)
}

cases! {
    datagram_is_sent_to_destination_of_work_request => "ud.requester" {
        let mut b = ud(|_| {});
        b.post(1, WrOp::Send, 0, 1000);
        b.post(2, WrOp::SendWithImm(9), 0, 0);
        let d = b.mr.read(0, 1000);
        let qpn = b.qpns[0];
        b.expect(&[send(Only, SQ, &d).ud(QKEY, qpn), send_imm(Only, SQ + 1, &[], 9).ud(QKEY, qpn)]);
        b.sends(&[ok(1, WcOpcode::Send, 1000), ok(2, WcOpcode::Send, 0)]);
    }

    datagrams_with_inline_data_or_several_sges_are_sent => "ud.requester" {
        let mut b = ud(|_| {});
        let to = Some(b.to(QKEY));
        let wr =
            SendWr::new(1, WrOp::Send, &[]).inline(b"abc").to(to);
        b.post_on(0, &wr).unwrap();
        let sges = [b.mr.sge(5, 3), b.mr.sge(100, 4)];
        b.post_sges(2, WrOp::Send, &sges, SendFlags::SIGNALED).unwrap();
        let d = [b.mr.read(5, 3), b.mr.read(100, 4)].concat();
        let qpn = b.qpns[0];
        b.expect(&[send(Only, SQ, b"abc").ud(QKEY, qpn), send(Only, SQ + 1, &d).ud(QKEY, qpn)]);
        b.sends(&[ok(1, WcOpcode::Send, 3), ok(2, WcOpcode::Send, 7)]);
    }

    qkey_with_highest_bit_set_is_replaced_by_the_qkey_of_the_qp => "ud.qkey.own" {
        let mut b = ud(|s| s.qkey = 0x8000_1234);
        for (given, sent) in
            [(0x8000_0000, 0x8000_1234), (0xffff_ffff, 0x8000_1234), (0x7fff_ffff, 0x7fff_ffff)]
        {
            let (sge, to) = ([b.mr.sge(0, 1)], Some(b.to(given)));
            let wr = SendWr::new(1, WrOp::Send, &sge).signaled(false).to(to);
            b.post_on(0, &wr).unwrap();
            assert_eq!(b.sent()[0].h.deth.qkey.0, sent);
        }
    }

    send_longer_than_port_mtu_fails => "ud.length" {
        let mut b = ud(|_| {});
        b.post(1, WrOp::Send, 0, 1024);
        assert_eq!(b.sent().len(), 1);
        b.sends(&[ok(1, WcOpcode::Send, 1024)]);
        b.post(2, WrOp::Send, 0, 1025);
        b.post(3, WrOp::Send, 0, 1);
        b.expect_nothing();
        b.sends(&[bad(2, WcStatus::LocLenErr), flushed(3)]);
        b.state(QpState::Sqe);
    }

    posting_an_rdma_write_to_a_ud_qp_fails => "ud.operations" {
        let mut b = ud(|_| {});
        let (sge, op) = ([b.mr.sge(0, 8)], WrOp::Write { va: 0, rkey: RKey(1) });
        let error = b.post_sges(1, op, &sge, SendFlags::SIGNALED).unwrap_err();
        assert_eq!(error, PostError::Unsupported(QpType::Ud, WcOpcode::RdmaWrite));
        b.expect_nothing();
    }

    posting_a_datagram_without_a_valid_destination_fails => "ud.destination" {
        let mut b = ud(|_| {});
        let sge = [b.mr.sge(0, 1)];
        let wr = SendWr::new(1, WrOp::Send, &sge);
        assert_eq!(b.post_on(0, &wr), Err(PostError::Destination));
        let Destination::Qp { av, qpn, qkey, .. } = b.to(QKEY) else {
            panic!("the destination of a datagram is a QP")
        };
        let to = Destination::Qp { pd: PdId(99), av, qpn, qkey };
        let error = b.post_on(0, &wr.to(to));
        assert_eq!(error, Err(PostError::HandlePd { handle: PdId(99), qp: engine::PD }));
        let av = av.sgid_index(5);
        let to = Destination::Qp { pd: engine::PD, av, qpn, qkey };
        let error = b.post_on(0, &wr.to(to));
        assert_eq!(error, Err(PostError::Address(AddressError::GidIndex { index: 5, count: 2 })));
        b.expect_nothing();
        // A connected QP rejects a destination in its work requests.
        let to = Some(b.to(QKEY));
        let mut rc = Bench::new();
        assert_eq!(rc.post_on(0, &wr.to(to)), Err(PostError::Destination));
    }

    grh_and_data_are_placed_in_the_receive_buffer => "ud.responder" {
        let mut b = ud(|_| {});
        b.recv(1, 0, 200);
        b.exchange(&[datagram(&[8; 100]).solicited()], &[]);
        b.recvs(&[received(1, 100).solicited()]);
        let flow = b.flow();
        // Lengths of BTH, DETH, data and ICRC.
        assert_eq!(b.mr.read(0, GRH), grh::of(&flow, 12 + 8 + 100 + 4));
        assert_eq!(b.mr.read(GRH, 100), [8; 100]);
        assert_eq!(b.mr.read(GRH + 100, 1), [pattern(GRH as u64 + 100)]);
        assert_eq!(grh::flow(&b.mr.read(0, GRH).try_into().unwrap()).unwrap().src, flow.src);
    }

    completion_of_a_datagram_contains_source_qp_and_grh_flag => "ud.responder" {
        let mut b = ud(|_| {});
        b.recv(1, 0, 200);
        b.exchange(&[send_imm(Only, 0, &[1], 0xabcd).ud(QKEY, PEER)], &[]);
        let wc = b.raw_recv();
        assert_eq!((wc.src_qpn, wc.grh, wc.imm, wc.byte_len), (PEER, true, Some(0xabcd), 41));
        assert_eq!(wc.qpn, b.qpns[0]);
    }

    psn_of_datagram_is_ignored => "ud.responder" {
        let mut b = ud(|_| {});
        for (i, psn) in [5, 5, 0xff_ffff, 0].into_iter().enumerate() {
            b.recv(i as u64, 0, 100);
            b.exchange(&[send(Only, psn, &[1]).ud(QKEY, PEER)], &[]);
            b.recvs(&[received(i as u64, 1)]);
        }
        assert_eq!((b.count().duplicate_request, b.count().out_of_seq_request), (0, 0));
    }

    datagram_from_any_source_is_received => "ud.responder" {
        let mut b = ud(|_| {});
        b.recv(1, 0, 100);
        let other = Flow { src: IpAddr::from(Ipv4Addr::new(10, 9, 9, 9)), ..b.flow() };
        let mut h = datagram(&[1]).h;
        h.bth.dest_qp = b.qpns[0];
        let bytes = engine::encode(&h, &[1], &other);
        b.raw(&other, &bytes);
        b.recvs(&[received(1, 1)]);
        assert_eq!(b.mr.read(GRH - 8, 4), [10, 9, 9, 9]);
    }

    datagram_with_wrong_qkey_is_dropped => "ud.qkey" {
        let mut b = ud(|_| {});
        b.recv(1, 0, 100);
        for key in [0, QKEY ^ 1, QKEY | 1 << 31] {
            b.exchange(&[send(Only, 0, &[1]).ud(key, PEER)], &[]);
        }
        assert_eq!(b.count().rx_qkey_violation, 3);
        b.recvs(&[]);
        b.exchange(&[datagram(&[1])], &[]);
        b.recvs(&[received(1, 1)]);
    }

    changed_qkey_of_a_qp_applies_to_received_datagrams => "ud.qkey" {
        let mut b = ud(|_| {});
        b.recv(1, 0, 100);
        b.modify(0, QpAttr::default().qkey(urxe::wire::QKey(7))).unwrap();
        b.exchange(&[datagram(&[1]), send(Only, 0, &[1]).ud(7, PEER)], &[]);
        assert_eq!(b.count().rx_qkey_violation, 1);
        b.recvs(&[received(1, 1)]);
    }

    datagram_is_dropped_if_no_receive_is_posted => "ud.drop" {
        let mut b = ud(|_| {});
        b.exchange(&[datagram(&[1])], &[]);
        assert_eq!(b.count().rx_no_receive, 1);
        b.state(QpState::Rts);
    }

    datagram_longer_than_receive_buffer_is_dropped_and_the_receive_stays_posted => "ud.length" {
        let mut b = ud(|_| {});
        // The GRH counts towards the length of the receive.
        b.recv(1, 0, 140);
        b.exchange(&[datagram(&[1; 100])], &[]);
        b.recvs(&[received(1, 100)]);
        b.recv(2, 1000, 139);
        b.recv(3, 2000, 100);
        b.exchange(&[datagram(&[1; 100])], &[]);
        b.recvs(&[]);
        b.state(QpState::Rts);
        assert_eq!(b.count().rx_no_receive, 1);
        assert_eq!(b.mr.read(1000, 1), [pattern(1000)]);
        b.exchange(&[datagram(&[1; 99])], &[]);
        b.recvs(&[received(2, 99)]);
    }

    datagram_longer_than_srq_receive_buffer_is_dropped_and_receive_stays_posted => "ud.length" {
        let mut b = ud(|s| s.shared = true);
        b.recv(1, 0, 139);
        b.exchange(&[datagram(&[1; 100])], &[]);
        b.recvs(&[]);
        assert_eq!(b.count().rx_no_receive, 1);
        b.state(QpState::Rts);
        b.exchange(&[datagram(&[1; 99])], &[]);
        b.recvs(&[received(1, 99)]);
    }

    datagram_longer_than_port_mtu_is_dropped => "ud.length" {
        let mut b = ud(|_| {});
        b.recv(1, 0, 2000);
        b.exchange(&[datagram(&[1; 1025])], &[]);
        assert_eq!(b.count().rx_dropped_message, 1);
        b.recvs(&[]);
        b.exchange(&[datagram(&[1; 1024])], &[]);
        b.recvs(&[received(1, 1024)]);
    }

    receive_with_invalid_lkey_fails_and_moves_qp_to_err => "ud.error" {
        let mut b = ud(|_| {});
        b.recv_sges(1, &[Sge { addr: 0, length: 100, lkey: urxe::wire::LKey(0xbad) }]).unwrap();
        b.exchange(&[datagram(&[1])], &[]);
        b.recvs(&[bad(1, WcStatus::LocProtErr)]);
        b.state(QpState::Err);
    }

    packets_of_other_services_to_a_ud_qp_are_dropped => "ud.service" {
        let mut b = ud(|_| {});
        b.recv(1, 0, 100);
        let packets = [send(Only, 0, &[1]), send(Only, 0, &[1]).uc(), read(0, b.remote(0, 8))];
        b.exchange(&packets, &[]);
        assert_eq!(b.count().rx_unknown_qp, 3);
        // A connected QP does not accept a datagram either.
        let mut rc = Bench::new();
        rc.exchange(&[datagram(&[1])], &[]);
        assert_eq!(rc.count().rx_unknown_qp, 1);
        b.recvs(&[]);
    }

    datagram_to_a_qp_in_init_is_dropped => "ud.responder" {
        let mut b = ud(|s| s.state = QpState::Init);
        b.recv(1, 0, 100);
        b.exchange(&[datagram(&[1])], &[]);
        assert_eq!(b.count().rx_wrong_state, 1);
        b.recvs(&[]);
    }
}
