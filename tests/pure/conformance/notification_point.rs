//! Conformance cases: congestion notification packets (CNPs) for packets marked "congestion experienced".

use std::net::IpAddr;
use std::time::Duration;

use urxe::nic::Personality;
use urxe::transport::{
    AddressVector, AsyncEvent, CnpScope, Congestion, CongestionParameter, QpState, QpType, WcOpcode, WrOp,
};
use urxe::wire::{Bth, Ecn, Headers, Opcode, Operation, Qpn, RKey};

use crate::bench::{ALTERNATE, Bench, QKEY, RQ, SQ, Setup, ok};
use crate::pkt::*;
use urxe_test_support::engine;

/// Minimum time between CNPs in these cases.
const INTERVAL: Duration = Duration::from_micros(50);

pub fn set(setup: &mut Setup, parameter: CongestionParameter, value: u32) {
    let control = &mut setup.tuning.congestion.control;
    *control = control.with(parameter, value).unwrap();
}

/// Returns a bench whose peer's packets are all marked.
fn bench(scope: Option<CnpScope>, change: impl FnOnce(&mut Setup)) -> Bench {
    let mut b = Bench::with(|s| {
        s.quirks.cnp_scope = scope;
        set(s, CongestionParameter::MinTimeBetweenCnps, INTERVAL.as_micros() as u32);
        change(s);
    });
    b.traffic_class = Ecn::Ce as u8;
    b
}

pub fn cnp() -> Pkt {
    let bth = Bth { opcode: Opcode::CNP, becn: true, ..Bth::default() };
    Pkt { h: Headers { bth, ..Headers::default() }, data: vec![0; 16], qp: 0 }
}

/// Delivers a marked WRITE with PSN `RQ + n` to a QP, and returns the number of CNPs among the responses.
fn cnps_for(b: &mut Bench, qp: usize, n: u32) -> usize {
    let to = b.remote(0, 1);
    b.deliver(&[write(Only, RQ + n, to, &[1]).qp(qp)]);
    let sent = b.sent();
    assert!(sent.iter().all(|p| p.qp == qp));
    sent.iter().filter(|p| p.h.bth.opcode == Opcode::CNP).count()
}

cases! {
    marked_request_is_answered_with_a_cnp_to_the_peer_qp => "cnp.sent" {
        let mut b = bench(Some(CnpScope::Qp), |_| {});
        let to = b.remote(0, 1);
        b.exchange(&[write(Only, RQ, to, &[1])], &[cnp(), ack(RQ, 1)]);
        assert_eq!((b.count().np_ecn_marked_roce_packets, b.count().np_cnp_sent), (1, 1));
        assert_eq!(b.count().sent_pkts, 2);
    }

    bytes_and_traffic_class_of_a_cnp_are_those_of_annex_a17 => "cnp.sent" {
        let dscp = 0x2a;
        let mut b = bench(Some(CnpScope::Qp), |s| {
            set(s, CongestionParameter::CnpDscp, dscp.into());
            set(s, CongestionParameter::Cnp8021pPrio, 5);
        });
        let to = b.remote(0, 1);
        b.deliver(&[write(Only, RQ, to, &[1])]);
        b.nic.transmit(b.now, &b.memory, &mut b.tx);
        let mut sent = Vec::new();
        engine::drain(&mut b.tx, |flow, bytes| sent.push(((flow.traffic_class, flow.vlan_priority), bytes)));
        let (priorities, bytes) = &sent[0];
        assert_eq!((*priorities, sent[1].0), ((dscp << 2, Some(5)), (0, None)));
        // Opcode; SE, MigReq, pad count and version; P_Key; BECN; QPN; AckReq; PSN; 16 reserved bytes.
        let [_, q2, q1, q0] = b.attr(0, QpState::Rtr).dest_qpn.unwrap().get().to_be_bytes();
        let header = [0x81, 0x00, 0xff, 0xff, 0x40, q2, q1, q0, 0, 0, 0, 0];
        assert_eq!(bytes[..28], [&header[..], &[0; 16]].concat());
        assert_eq!(bytes.len(), 32);
    }

    data_is_ecn_capable_and_acknowledgements_are_not_with_dcqcn => "ecn.capable" {
        for (control, ecn) in [(Congestion::DCQCN_CONNECTX, Ecn::Ect0), (Congestion::LOSS_DRIVEN, Ecn::NotEct)] {
            let mut b = Bench::with(|s| s.tuning.congestion.control = control);
            b.post(1, WrOp::Write { va: 0, rkey: RKey(7) }, 0, 2000);
            let (from, to) = (b.remote(0, 600), b.remote(0, 1));
            b.deliver(&[read(RQ, from), write(Only, RQ + 3, to, &[1])]);
            let mut counts = [0; 2];
            while b.nic.wants_to_transmit() || counts == [0; 2] {
                b.nic.transmit(b.now, &b.memory, &mut b.tx);
                engine::drain(&mut b.tx, |flow, bytes| {
                    let is_ack = engine::decode(&bytes).0.bth.opcode.row().operation == Operation::Acknowledge;
                    assert_eq!(flow.ecn(), if is_ack { Ecn::NotEct } else { ecn });
                    counts[usize::from(is_ack)] += 1;
                });
                b.advance(Duration::from_micros(100));
            }
            // Eight packets of a WRITE and three of a READ response.
            assert_eq!(counts, [11, 1]);
            b.set_state(QpState::Reset);
        }
    }

    marked_packets_of_uc_and_xrc_are_answered => "cnp.sent" {
        let mut b = bench(Some(CnpScope::Qp), |s| s.qp_type = QpType::Uc);
        let to = b.remote(0, 1);
        b.exchange(&[write(Only, RQ, to, &[1]).uc()], &[cnp()]);
        let mut b = bench(Some(CnpScope::Qp), |s| s.qp_type = QpType::XrcRecv);
        let (to, srq) = (b.remote(0, 1), b.srq.unwrap());
        b.deliver(&[write(Only, RQ, to, &[1]).xrc(srq)]);
        assert_eq!(b.sent()[0], cnp());
    }

    marked_response_is_answered => "cnp.sent" {
        let mut b = bench(Some(CnpScope::Qp), |_| {});
        b.post(1, WrOp::Read { va: 0, rkey: RKey(7) }, 0, 8);
        assert_eq!(b.sent().len(), 1);
        b.exchange(&[resp(Only, SQ, 1, &[9; 8])], &[cnp()]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 8)]);
    }

    duplicate_request_that_is_marked_is_answered => "cnp.sent" {
        let mut b = bench(Some(CnpScope::Qp), |_| {});
        b.traffic_class = 0;
        let to = b.remote(0, 1);
        b.exchange(&[write(Only, RQ, to, &[1])], &[ack(RQ, 1)]);
        b.traffic_class = Ecn::Ce as u8;
        b.exchange(&[write(Only, RQ, to, &[1])], &[cnp(), ack(RQ, 1)]);
    }

    marked_packets_of_a_burst_cause_one_cnp_and_are_all_counted => "cnp.interval" {
        let mut b = bench(Some(CnpScope::Qp), |_| {});
        let to = b.remote(0, 1);
        let writes: Vec<_> = (0..8).map(|i| write(Only, RQ + i, to, &[1]).ackreq(i == 7)).collect();
        b.exchange(&writes, &[cnp(), ack(RQ + 7, 8)]);
        assert_eq!((b.count().np_ecn_marked_roce_packets, b.count().np_cnp_sent), (8, 1));
    }

    cnp_within_the_interval_is_not_sent => "cnp.interval" {
        let mut b = bench(Some(CnpScope::Qp), |_| {});
        assert_eq!(cnps_for(&mut b, 0, 0), 1);
        b.advance(INTERVAL - Duration::from_nanos(1));
        assert_eq!(cnps_for(&mut b, 0, 1), 0);
        b.advance(Duration::from_nanos(1));
        assert_eq!(cnps_for(&mut b, 0, 2), 1);
        assert_eq!((b.count().np_ecn_marked_roce_packets, b.count().np_cnp_sent), (3, 2));
    }

    changed_interval_applies_to_the_next_marked_packet => "cnp.interval" {
        let mut b = bench(Some(CnpScope::Qp), |_| {});
        assert_eq!([0, 1].map(|n| cnps_for(&mut b, 0, n)), [1, 0]);
        let none = b.nic.config().tuning.congestion.control.with(CongestionParameter::MinTimeBetweenCnps, 0);
        b.nic.set_congestion(none.unwrap());
        assert_eq!([2, 3].map(|n| cnps_for(&mut b, 0, n)), [1, 1]);
    }

    pending_cnps_are_bounded_and_a_later_marked_packet_causes_the_missing_one => "cnp.interval" {
        let mut b = bench(Some(CnpScope::Qp), |s| s.qps = 257);
        let to = b.remote(0, 1);
        (0..257).for_each(|qp| b.deliver(&[write(Only, RQ, to, &[1]).qp(qp)]));
        let cnps = |sent: Vec<Pkt>| sent.iter().filter(|p| **p == cnp().qp(p.qp)).count();
        assert_eq!(cnps(b.sent()), 256);
        assert_eq!(cnps_for(&mut b, 256, 1), 1);
    }

    qps_share_the_interval_according_to_its_scope => "cnp.interval" {
        // QPs 0 and 1 have the same addresses, QP 2 has others.
        for (scope, expected) in [
            (CnpScope::Qp, [1, 1, 1]),
            (CnpScope::AddressPair, [1, 0, 1]),
            (CnpScope::Port, [1, 0, 0]),
        ] {
            let mut b = bench(Some(scope), |s| (s.qps, s.state) = (3, QpState::Init));
            let peers = [b.path, b.path, ALTERNATE];
            for (qp, peer) in peers.into_iter().enumerate() {
                let sgid_index = (peer == ALTERNATE).into();
                let av = AddressVector::to(IpAddr::from(peer.1).into()).sgid_index(sgid_index);
                b.modify(qp, b.attr(qp, QpState::Rtr).av(av)).unwrap();
            }
            for (n, expected) in [expected, expected].into_iter().enumerate() {
                for (qp, peer) in peers.into_iter().enumerate() {
                    b.path = peer;
                    assert_eq!(cnps_for(&mut b, qp, n as u32), expected[qp], "QP {qp}, {scope:?}");
                }
                b.advance(INTERVAL);
            }
            let established = |qp: &Qpn| Some(AsyncEvent::CommunicationEstablished(*qp));
            let qpns = b.qpns.clone();
            qpns.iter().for_each(|qp| assert_eq!(b.next_event(), established(qp)));
        }
    }

    packets_without_the_mark_cause_no_cnp => "cnp.none" {
        for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1] {
            let mut b = bench(Some(CnpScope::Qp), |_| {});
            b.traffic_class = 0xfc | ecn as u8;
            assert_eq!(cnps_for(&mut b, 0, 0), 0);
            assert_eq!(b.count().np_ecn_marked_roce_packets, 0);
        }
    }

    marked_cnp_datagram_and_dropped_packet_cause_no_cnp => "cnp.none" {
        let mut b = bench(Some(CnpScope::Qp), |_| {});
        let to = b.remote(0, 1);
        b.exchange(&[cnp()], &[]);
        b.exchange(&[write(Only, RQ, to, &[1]).pkey(0x1234)], &[]);
        b.set_state(QpState::Err);
        b.exchange(&[write(Only, RQ, to, &[1])], &[]);
        assert_eq!(b.count().np_cnp_sent, 0);
        let mut b = bench(Some(CnpScope::Qp), |s| s.qp_type = QpType::Ud);
        b.recv(1, 0, 100);
        b.exchange(&[send(Only, 0, &[1]).ud(QKEY, Qpn::new(9))], &[]);
        assert_eq!(b.raw_recv().byte_len, 41);
        assert_eq!((b.count().np_ecn_marked_roce_packets, b.count().np_cnp_sent), (1, 0));
    }

    rxe_counts_marked_packets_and_sends_no_cnp => "cnp.none" {
        let mut b = bench(Personality::RXE.quirks.cnp_scope, |_| {});
        assert_eq!(cnps_for(&mut b, 0, 0), 0);
        assert_eq!(b.count().np_ecn_marked_roce_packets, 1);
    }
}
