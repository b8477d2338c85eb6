//! Conformance cases: partition keys other than the default one.

use urxe::nic::PKeyTableSize;
use urxe::transport::{AsyncEvent, ModifyError, QpAttr, QpState, QpType, WcOpcode, WrOp};
use urxe::wire::{PKey, Qpn};

use crate::bench::{Bench, QKEY, RQ, SQ, Setup, ok};
use crate::pkt::*;

const KEYS: [PKey; 3] = [PKey(0xffff), PKey(0x8123), PKey(0x0456)];

/// Returns a bench with one QP in RTS that uses entry `index` of [`KEYS`].
fn with_pkey_index(index: u16, change: impl FnOnce(&mut Setup)) -> Bench {
    let mut b = Bench::with(|s| {
        s.state = QpState::Reset;
        change(s);
    });
    b.nic.set_pkeys(&KEYS).unwrap();
    b.events(&[|_| AsyncEvent::PKeyChange]);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let attr = b.attr(0, state);
        let attr = if state == QpState::Init { attr.pkey_index(index) } else { attr };
        b.modify(0, attr).unwrap();
    }
    b
}

cases! {
    packets_carry_the_pkey_at_the_pkey_index_of_the_qp => "pkey.index" {
        for (index, key) in (0..).zip(KEYS) {
            let mut b = with_pkey_index(index, |_| {});
            b.post(1, WrOp::Send, 0, 1);
            let d = b.mr.read(0, 1);
            b.expect(&[send(Only, SQ, &d).pkey(key.0)]);
            b.exchange(&[ack(SQ, 1).pkey(key.0 | 0x8000)], &[]);
            b.sends(&[ok(1, WcOpcode::Send, 1)]);
            b.recv(2, 0, 10);
            b.exchange(&[send(Only, RQ, &[1]).pkey(key.0 | 0x8000)], &[ack(RQ, 1).pkey(key.0)]);
            assert_eq!(b.raw_recv().pkey_index, index);
        }
    }

    packets_of_other_partitions_are_dropped => "packet.pkey" {
        let mut b = with_pkey_index(1, |_| {});
        b.recv(1, 0, 10);
        for key in [0xffff, 0x8124, 0x0124, 0x8456, 0] {
            b.exchange(&[send(Only, RQ, &[1]).pkey(key)], &[]);
        }
        assert_eq!(b.count().rx_pkey_violation, 5);
        b.exchange(&[send(Only, RQ, &[1]).pkey(0x0123)], &[ack(RQ, 1).pkey(0x8123)]);
        b.recvs(&[ok(1, WcOpcode::Recv, 1)]);
        // Two limited members cannot communicate.
        let mut b = with_pkey_index(2, |_| {});
        b.exchange(&[send(Only, RQ, &[1]).pkey(0x0456)], &[]);
        assert_eq!(b.count().rx_pkey_violation, 1);
    }

    packet_with_foreign_pkey_after_an_admitted_packet_of_its_burst_is_dropped => "packet.pkey" {
        let mut b = with_pkey_index(1, |_| {});
        let to = b.remote(0, 1);
        let packets = [(0, 0x0123), (1, 0xffff), (1, 0x0123)];
        let packets = packets.map(|(n, key)| write(Only, RQ + n, to, &[1]).pkey(key));
        b.exchange(&packets, &[ack(RQ + 1, 2).pkey(0x8123)]);
        assert_eq!(b.count().rx_pkey_violation, 1);
    }

    datagrams_of_other_partitions_are_dropped => "packet.pkey" {
        let mut b = with_pkey_index(1, |s| s.qp_type = QpType::Ud);
        let from = Qpn::new(7);
        b.recv(1, 0, 100);
        b.exchange(
            &[send(Only, 0, &[1]).ud(QKEY, from), send(Only, 0, &[1]).ud(QKEY, from).pkey(0x8123)],
            &[],
        );
        b.recvs(&[ok(1, WcOpcode::Recv, 41)]);
        assert_eq!(b.count().rx_pkey_violation, 1);
    }

    pkey_table_change_applies_to_existing_qps => "pkey.change" {
        let mut b = with_pkey_index(1, |_| {});
        b.nic.set_pkeys(&[PKey(0xffff), PKey(0x8999)]).unwrap();
        b.events(&[|_| AsyncEvent::PKeyChange]);
        b.post(1, WrOp::Send, 0, 1);
        let d = b.mr.read(0, 1);
        b.expect(&[send(Only, SQ, &d).pkey(0x8999)]);
        b.exchange(&[ack(SQ, 1).pkey(0x8123)], &[]);
        b.sends(&[]);
        b.exchange(&[ack(SQ, 1).pkey(0x8999)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
    }

    setting_a_pkey_table_of_invalid_size_fails => "pkey.change" {
        let mut b = with_pkey_index(2, |_| {});
        let error = b.nic.set_pkeys(&KEYS[..2]).unwrap_err();
        assert_eq!(error, PKeyTableSize { given: 2, needed: 3, max: 128 });
        b.nic.set_pkeys(&[PKey(1); 129]).unwrap_err();
        assert_eq!(b.nic.pkeys(), KEYS);
        let attr = QpAttr::default().pkey_index(3);
        b.set_state(QpState::Sqd);
        assert_eq!(b.modify(0, attr), Err(ModifyError::Value { name: "pkey_index", value: 3, min: 0, max: 2 }));
    }
}
