//! Conformance cases: multicast datagrams, and QPs attached to multicast GIDs.

use std::net::IpAddr;

use urxe::nic::{MulticastError, Personality};
use urxe::transport::{AddressVector, Destination, QpState, QpType, RecvWr, SendWr, WcOpcode, WrData, WrOp};
use urxe::wire::{Flow, Gid, PKey, QKey, Qpn, grh};

use crate::bench::{Bench, QKEY, SQ, Setup, ok};
use crate::pkt::*;
use urxe_test_support::engine;

const PEER: Qpn = Qpn::new(0x4321);
const GRH: u32 = grh::LEN as u32;

fn ud(change: impl FnOnce(&mut Setup)) -> Bench {
    Bench::with(|s| {
        s.qp_type = QpType::Ud;
        change(s);
    })
}

/// Returns the addresses of an IPv4 multicast group and an IPv6 one.
fn groups() -> [IpAddr; 2] {
    ["239.1.2.3", "ff15::1:2"].map(|ip| ip.parse().unwrap())
}

fn attach(b: &mut Bench, qp: usize, group: IpAddr) {
    b.nic.attach_mcast(b.qpns[qp], group.into()).unwrap().unwrap();
}

/// Posts a receive of `len` bytes at offset `at` of [`Bench::mr`] to the QP with index `qp`.
fn recv(b: &mut Bench, qp: usize, wr_id: u64, at: usize, len: u32) {
    let sges = [b.mr.sge(at, len)];
    b.nic.post_recv(b.qpns[qp], &RecvWr::new(wr_id, &sges)).unwrap().unwrap();
}

fn path(b: &Bench, dst: IpAddr) -> Flow {
    let src = if dst.is_ipv4() { b.flow().src } else { "fd00::2".parse().unwrap() };
    Flow { src, dst, ..b.flow() }
}

/// Delivers a packet from the peer to the address `dst` and QP number `qpn`.
fn deliver(b: &mut Bench, dst: IpAddr, qpn: Qpn, packet: Pkt) {
    let flow = path(b, dst);
    let packet = packet.with(|h| h.bth.dest_qp = qpn);
    let bytes = engine::encode(&packet.h, &packet.data, &flow);
    b.raw(&flow, &bytes);
}

fn datagram(data: &[u8]) -> Pkt {
    send(Only, 5, data).ud(QKEY, PEER)
}

cases! {
    each_member_of_a_multicast_group_receives_a_copy => "mcast.deliver" {
        for group in groups() {
            let mut b = ud(|s| s.qps = 3);
            for qp in [0, 2] {
                attach(&mut b, qp, group);
            }
            for qp in 0..3 {
                recv(&mut b, qp, qp as u64, 1000 * qp, 200);
            }
            deliver(&mut b, group, Qpn::MULTICAST, datagram(&[7; 30]));
            b.recvs(&[ok(0, WcOpcode::Recv, GRH + 30), ok(2, WcOpcode::Recv, GRH + 30)]);
            let header = grh::of(&path(&b, group), 12 + 8 + 30 + 2 + 4);
            for at in [0, 2000] {
                assert_eq!(b.mr.read(at, grh::LEN), header);
                assert_eq!(b.mr.read(at + grh::LEN, 30), [7; 30]);
            }
            // One packet arrived, and two members received it.
            assert_eq!((b.count().rcvd_pkts, b.count().rdma_recvs), (1, 2));
        }
    }

    datagram_reaches_members_of_its_group_only => "mcast.deliver" {
        let mut b = ud(|s| s.qps = 2);
        let [v4, v6] = groups();
        attach(&mut b, 0, v4);
        attach(&mut b, 1, v6);
        recv(&mut b, 0, 1, 0, 200);
        recv(&mut b, 1, 2, 1000, 200);
        deliver(&mut b, v6, Qpn::MULTICAST, datagram(&[]));
        b.recvs(&[ok(2, WcOpcode::Recv, GRH)]);
        deliver(&mut b, "239.1.2.4".parse().unwrap(), Qpn::MULTICAST, datagram(&[]));
        assert_eq!(b.count().rx_unknown_group, 1);
        b.recvs(&[]);
        deliver(&mut b, v4, Qpn::MULTICAST, datagram(&[]));
        b.recvs(&[ok(1, WcOpcode::Recv, GRH)]);
    }

    completion_of_a_multicast_datagram_names_its_sender => "mcast.deliver" {
        let mut b = ud(|_| {});
        let [group, _] = groups();
        attach(&mut b, 0, group);
        b.recv(1, 0, 100);
        deliver(&mut b, group, Qpn::MULTICAST, send_imm(Only, 0, &[1], 9).ud(QKEY, PEER));
        let wc = b.raw_recv();
        assert_eq!((wc.qpn, wc.src_qpn, wc.imm, wc.grh), (b.qpns[0], PEER, Some(9), true));
    }

    group_member_that_rejects_a_datagram_receives_no_copy => "mcast.checks" {
        let mut b = ud(|s| {
            s.qps = 5;
            s.state = QpState::Reset;
        });
        b.nic.set_pkeys(&[PKey::DEFAULT, PKey(0x8123)]).unwrap();
        b.next_event().unwrap();
        let [group, _] = groups();
        for qp in 0..5 {
            let mut init = b.attr(qp, QpState::Init);
            init.pkey_index = Some(u16::from(qp == 1));
            init.qkey = Some(QKey(if qp == 2 { 7 } else { QKEY }));
            b.modify(qp, init).unwrap();
            if qp != 4 {
                b.modify(qp, b.attr(qp, QpState::Rtr)).unwrap();
            }
            attach(&mut b, qp, group);
            if qp != 3 {
                recv(&mut b, qp, qp as u64, 0, 100);
            }
        }
        deliver(&mut b, group, Qpn::MULTICAST, datagram(&[1]));
        b.recvs(&[ok(0, WcOpcode::Recv, GRH + 1)]);
        let c = *b.count();
        let each = [c.rx_pkey_violation, c.rx_qkey_violation, c.rx_no_receive, c.rx_wrong_state];
        assert_eq!(each, [1, 1, 1, 1]);
        for qp in [1, 2, 4] {
            assert!(b.nic.destroy_qp(b.qpns[qp]).is_some());
        }
    }

    failure_of_one_member_does_not_affect_others => "mcast.checks" {
        let mut b = ud(|s| s.qps = 2);
        let [group, _] = groups();
        attach(&mut b, 0, group);
        attach(&mut b, 1, group);
        recv(&mut b, 0, 1, 0, 50);
        recv(&mut b, 1, 2, 1000, 100);
        deliver(&mut b, group, Qpn::MULTICAST, datagram(&[1; 20]));
        b.recvs(&[ok(2, WcOpcode::Recv, GRH + 20)]);
        assert_eq!(b.count().rx_no_receive, 1);
        b.state(QpState::Rts);
    }

    packet_with_only_group_address_or_only_multicast_qpn_is_dropped => "mcast.qpn" {
        let mut b = ud(|_| {});
        b.recv(1, 0, 100);
        let own = (b.qpns[0], b.flow().dst);
        for group in groups() {
            attach(&mut b, 0, group);
            deliver(&mut b, group, own.0, datagram(&[1]));
        }
        assert_eq!(b.count().rx_not_multicast, 2);
        deliver(&mut b, own.1, Qpn::MULTICAST, datagram(&[1]));
        assert_eq!(b.count().rx_not_multicast, 3);
        b.recvs(&[]);
        deliver(&mut b, own.1, own.0, datagram(&[1]));
        b.recvs(&[ok(1, WcOpcode::Recv, GRH + 1)]);
    }

    packets_other_than_ud_to_a_group_are_dropped => "mcast.qpn" {
        let mut b = ud(|_| {});
        let [group, _] = groups();
        attach(&mut b, 0, group);
        b.recv(1, 0, 100);
        for packet in [send(Only, 0, &[1]), send(Only, 0, &[1]).uc(), read(0, b.remote(0, 8))] {
            deliver(&mut b, group, Qpn::MULTICAST, packet);
        }
        assert_eq!(b.count().rx_not_multicast, 3);
        b.recvs(&[]);
        // A connected QP does not accept its own packets from a group address either.
        let mut rc = Bench::new();
        rc.recv(1, 0, 100);
        let own = rc.qpns[0];
        deliver(&mut rc, group, own, send(Only, 0x100, &[1]));
        assert_eq!(rc.count().rx_not_multicast, 1);
    }

    datagram_is_sent_to_group_address_with_hop_limit => "mcast.send" {
        let mut b = ud(|_| {});
        let [group, _] = groups();
        // A hop limit of 0 in the address handle means 1 for a group: the local link only.
        for (given, sent) in [(0, 1), (1, 1), (64, 64), (255, 255)] {
            let av = AddressVector::to(group.into()).hop_limit(given);
            let to = Some(Destination::Qp { pd: engine::PD, av, qpn: Qpn::MULTICAST, qkey: QKey(QKEY) });
            let data = WrData::Inline(b"abc");
            let wr = SendWr::new(1, WrOp::Send, &[]).data(data).to(to);
            b.post_on(0, &wr).unwrap();
            b.nic.transmit(b.now, &b.memory, &mut b.tx);
            let mut packets = 0;
            engine::drain(&mut b.tx, |flow, bytes| {
                let (h, data) = engine::decode(&bytes);
                assert_eq!((flow.dst, flow.hop_limit, h.bth.dest_qp), (group, sent, Qpn::MULTICAST));
                assert_eq!((h.deth.qkey.0, &data[..]), (QKEY, &b"abc"[..]));
                packets += 1;
            });
            assert_eq!(packets, 1);
            b.nic.emitted();
            b.sends(&[ok(1, WcOpcode::Send, 3)]);
        }
        // For a unicast destination it means 64.
        let av = AddressVector::to(b.flow().src.into()).hop_limit(0);
        assert_eq!(b.nic.config().port.flow(&av, PEER, PEER).unwrap().hop_limit, 64);
        assert_eq!(b.first_psn(), SQ);
    }

    attach_of_a_non_ud_qp_or_to_a_unicast_gid_fails => "mcast.attach" {
        let [group, _] = groups();
        for service in [QpType::Rc, QpType::Uc] {
            let mut b = Bench::with(|s| s.qp_type = service);
            let error = b.nic.attach_mcast(b.qpns[0], group.into()).unwrap();
            assert_eq!(error, Err(MulticastError::Service(service)));
        }
        let mut b = ud(|_| {});
        for host in ["10.0.0.1", "223.255.255.255", "240.0.0.1", "255.255.255.255", "fd00::1", "::"] {
            let gid = Gid::from(host.parse::<IpAddr>().unwrap());
            let error = b.nic.attach_mcast(b.qpns[0], gid).unwrap();
            assert_eq!(error, Err(MulticastError::NotMulticast(gid)), "{host}");
        }
        assert!(b.nic.attach_mcast(Qpn::new(0x99_9999), group.into()).is_err());
    }

    second_attach_of_a_qp_to_a_group_has_no_effect => "mcast.attach" {
        let mut b = ud(|_| {});
        let [group, _] = groups();
        let own = b.qpns[0];
        assert_eq!(b.nic.attach_mcast(own, group.into()).unwrap(), Ok(true));
        assert_eq!(b.nic.attach_mcast(own, group.into()).unwrap(), Ok(false));
        b.recv(1, 0, 100);
        b.recv(2, 100, 100);
        deliver(&mut b, group, Qpn::MULTICAST, datagram(&[1]));
        b.recvs(&[ok(1, WcOpcode::Recv, GRH + 1)]);
        // One detach suffices, although the QP was attached twice.
        assert_eq!(b.nic.detach_mcast(own, group.into()), Ok(true));
        deliver(&mut b, group, Qpn::MULTICAST, datagram(&[1]));
        assert_eq!(b.count().rx_unknown_group, 1);
        let error = MulticastError::NotAttached(group.into());
        assert_eq!(b.nic.detach_mcast(own, group.into()), Err(error));
    }

    destroyed_qp_is_detached_from_its_multicast_groups => "mcast.attach" {
        let mut b = ud(|s| s.qps = 2);
        for group in groups() {
            attach(&mut b, 0, group);
            attach(&mut b, 1, group);
        }
        b.nic.destroy_qp(b.qpns[1]).unwrap();
        for group in groups() {
            b.recv(1, 0, 100);
            deliver(&mut b, group, Qpn::MULTICAST, datagram(&[1]));
            b.recvs(&[ok(1, WcOpcode::Recv, GRH + 1)]);
            assert_eq!(b.nic.detach_mcast(b.qpns[0], group.into()), Ok(true), "the QP was still attached");
        }
        assert_eq!(b.count().rx_unknown_qp, 0);
    }

    reset_qp_remains_in_its_multicast_groups => "mcast.attach" {
        let mut b = ud(|_| {});
        let [group, _] = groups();
        attach(&mut b, 0, group);
        b.set_state(QpState::Reset);
        b.connect(0, QpState::Rtr);
        b.recv(1, 0, 100);
        deliver(&mut b, group, Qpn::MULTICAST, datagram(&[1]));
        b.recvs(&[ok(1, WcOpcode::Recv, GRH + 1)]);
    }

    attach_beyond_the_group_limit_fails => "mcast.attach" {
        let max = Personality::STRICT.limits.max_mcast_qp_attach;
        let mut b = ud(|s| {
            s.qps = max as usize + 1;
            s.state = QpState::Reset;
        });
        let [group, other] = groups();
        for qp in 0..max as usize {
            attach(&mut b, qp, group);
        }
        let last = b.qpns[max as usize];
        assert_eq!(b.nic.attach_mcast(last, group.into()).unwrap(), Err(MulticastError::GroupFull(max)));
        assert_eq!(b.nic.attach_mcast(last, other.into()).unwrap(), Ok(true));
    }
}
