//! Conformance cases: the responder's checks of keys, ranges and permissions, and atomics.

use urxe::memory::{Access, PdId};
use urxe::transport::{AsyncEvent, QpAttr, QpState, WcOpcode::Recv, WcStatus};
use urxe::wire::{NakCode, RKey};

use crate::bench::{Bench, RQ, bad, flushed, ok};
use crate::pkt::*;
use urxe_test_support::engine::PD;

/// Returns a request for 8 bytes at `va` for each operation that accesses the responder's memory, with the
/// access right that it requires.
fn every_kind(va: u64, key: RKey) -> [(Pkt, Access); 5] {
    let to = (va, key, 8);
    [
        (write(Only, RQ, to, &[5; 8]), Access::REMOTE_WRITE),
        (write_imm(Only, RQ, to, &[5; 8], 1), Access::REMOTE_WRITE),
        (read(RQ, to), Access::REMOTE_READ),
        (fetch_add(RQ, (va, key), 1), Access::REMOTE_ATOMIC),
        (cmp_swap(RQ, (va, key), 0, 1), Access::REMOTE_ATOMIC),
    ]
}

#[track_caller]
fn expect_access_nak(b: &mut Bench, p: Pkt) {
    let before = b.mr.read(0, 1 << 16);
    b.recv(1, 0, 100);
    b.exchange(std::slice::from_ref(&p), &[nak(RQ, 0, NakCode::RemoteAccessError)]);
    b.state(QpState::Err);
    b.events(&[AsyncEvent::QpAccessError]);
    // Only a WRITE with immediate consumes the receive (IBA 11.6.2).
    b.recvs(&[if p.h.imm == 1 { bad(1, WcStatus::LocAccessErr) } else { flushed(1) }]);
    assert_eq!(b.count().resp_remote_access_err, 1);
    assert!(b.mr.read(0, 1 << 16) == before, "memory changed");
}

cases! {
    request_that_qp_does_not_allow_is_nakked => "resp.access.qp" {
        let (va, key, _) = Bench::new().remote(0, 8);
        for (p, needed) in every_kind(va, key) {
            let mut b = Bench::with(|s| s.access = Access::ALL - needed);
            b.recv(1, 100, 100);
            b.exchange(std::slice::from_ref(&p), &[nak(RQ, 0, NakCode::InvalidRequest)]);
            b.events(&[AsyncEvent::QpRequestError]);
            b.recvs(&[flushed(1)]);
            // With just that flag the request is executed.
            let mut b = Bench::with(|s| s.access = needed);
            b.recv(1, 100, 100);
            b.deliver(std::slice::from_ref(&p));
            assert_eq!(b.sent().len(), 1, "{p:?}");
            b.state(QpState::Rts);
            if p.h.imm == 1 {
                b.recvs(&[ok(1, urxe::transport::WcOpcode::RecvRdmaWithImm, 8).imm(1)]);
            }
        }
    }

    write_is_nakked_after_access_is_withdrawn => "resp.access.qp" {
        for rest in [
            write(Middle, RQ + 1, Default::default(), &[7; 256]),
            write(Last, RQ + 1, Default::default(), &[7]),
        ] {
            let mut b = Bench::new();
            let to = b.remote(0, 1000);
            b.exchange(&[write(First, RQ, to, &[1; 256]).ackreq(true)], &[ack(RQ, 0)]);
            b.modify(0, QpAttr::default().access(Access::REMOTE_READ)).unwrap();
            b.exchange(&[rest], &[nak(RQ + 1, 0, NakCode::InvalidRequest)]);
            b.events(&[AsyncEvent::QpRequestError]);
        }
    }

    request_that_region_does_not_allow_is_nakked => "resp.access.region" {
        for i in 0..5 {
            let mut b = Bench::new();
            let r = b.region(PD, 64, 0, Access::ALL);
            let (_, needed) = every_kind(0, b.regions[r].info.rkey)[i];
            let r = b.region(PD, 64, 0, Access::ALL - needed);
            let p = every_kind(0, b.regions[r].info.rkey)[i].0.clone();
            expect_access_nak(&mut b, p);
        }
    }

    unknown_stale_or_foreign_rkey_is_nakked => "resp.access.key" {
        for i in 0..5 {
            // An unused slot; slot 0; another generation of the key.
            let (va, key, _) = Bench::new().remote(0, 8);
            for wrong in [RKey(0x7777_7700), RKey(0), RKey(key.0 + 1)] {
                expect_access_nak(&mut Bench::new(), every_kind(va, wrong)[i].0.clone());
            }
            let mut b = Bench::new();
            let r = b.region(PdId(2), 64, 0, Access::ALL);
            let p = every_kind(0, b.regions[r].info.rkey)[i].0.clone();
            expect_access_nak(&mut b, p);
            // The region is deregistered, and its slot is used again.
            let mut b = Bench::new();
            let r = b.region(PD, 64, 0, Access::ALL);
            let old = b.regions[r].info;
            b.memory.deregister(old.lkey).unwrap();
            let r = b.region(PD, 64, 0, Access::ALL);
            assert_ne!(b.regions[r].info.rkey, old.rkey);
            expect_access_nak(&mut b, every_kind(0, old.rkey)[i].0.clone());
        }
    }

    request_outside_region_is_nakked => "resp.access.range" {
        for i in 0..5 {
            let (_, key, _) = Bench::new().remote(0, 8);
            let end = Bench::IOVA + (1 << 16);
            for va in [Bench::IOVA - 8, end, end - 8 + 8, 0, u64::MAX - 7] {
                expect_access_nak(&mut Bench::new(), every_kind(va, key)[i].0.clone());
            }
        }
        let (_, key, _) = Bench::new().remote(0, 8);
        let end = Bench::IOVA + (1 << 16);
        expect_access_nak(&mut Bench::new(), read(RQ, (end - 7, key, 8)));
        expect_access_nak(&mut Bench::new(), write(Only, RQ, (Bench::IOVA - 1, key, 8), &[5; 8]));
        // The last 8 bytes are inside.
        let mut b = Bench::new();
        b.exchange(&[write(Only, RQ, (end - 8, key, 8), &[5; 8])], &[ack(RQ, 1)]);
    }

    whole_range_of_a_write_is_checked_at_its_first_packet => "resp.access.range" {
        let mut b = Bench::new();
        let (va, key, _) = b.remote((1 << 16) - 300, 0);
        expect_access_nak(&mut b, write(First, RQ, (va, key, 301), &[5; 256]));
    }

    request_of_length_0_needs_no_key => "resp.zero_length" {
        let mut b = Bench::with(|s| s.access = Access::ALL);
        let unmapped = (0xdead_beef, RKey(0xbad), 0);
        b.exchange(&[write(Only, RQ, unmapped, &[])], &[ack(RQ, 1)]);
        b.exchange(&[read(RQ + 1, unmapped)], &[resp(Only, RQ + 1, 2, &[])]);
        b.exchange(&[read(RQ + 1, unmapped)], &[resp(Only, RQ + 1, 2, &[])]);
        b.recv_sges(1, &[]).unwrap();
        b.exchange(&[write_imm(Only, RQ + 2, unmapped, &[], 9)], &[ack(RQ + 2, 3)]);
        b.recvs(&[ok(1, urxe::transport::WcOpcode::RecvRdmaWithImm, 0).imm(9)]);
        b.recv_sges(2, &[]).unwrap();
        b.exchange(&[send(Only, RQ + 3, &[])], &[ack(RQ + 3, 4)]);
        b.recvs(&[ok(2, Recv, 0)]);
    }

    write_is_nakked_if_its_region_is_deregistered_before_its_last_packet => "resp.access.deregistered" {
        let mut b = Bench::new();
        let r = b.region(PD, 600, 0, Access::ALL);
        let (key, lkey) = (b.regions[r].info.rkey, b.regions[r].info.lkey);
        b.exchange(&[write(First, RQ, (0, key, 600), &[1; 256])], &[]);
        b.memory.deregister(lkey).unwrap();
        b.exchange(
            &[write(Middle, RQ + 1, (0, key, 600), &[2; 256])],
            &[nak(RQ + 1, 0, NakCode::RemoteAccessError)],
        );
        b.events(&[AsyncEvent::QpAccessError]);
        b.state(QpState::Err);
        assert_eq!(b.regions[r].read(0, 256), [1; 256]);
        assert_eq!(b.regions[r].read(256, 1), [urxe_test_support::engine::pattern(256)]);
    }

    read_whose_region_is_deregistered_during_the_response_is_nakked => "resp.access.deregistered" {
        let (mut b, from, response) = Bench::long_read();
        // The receive of a SEND in progress, which follows the READ, is flushed.
        b.recv(1, 0, 10_000);
        b.deliver(&[read(RQ, from), send(First, RQ + response.len() as u32, &[0; 4096]).ackreq(false)]);
        let sent = b.turn();
        assert!(!sent.is_empty() && sent == response[..sent.len()]);
        let lkey = b.regions[0].info.lkey;
        b.memory.deregister(lkey).unwrap();
        b.expect(&[nak(RQ + sent.len() as u32, 0, NakCode::RemoteAccessError)]);
        b.events(&[AsyncEvent::QpAccessError]);
        b.state(QpState::Err);
        b.recvs(&[flushed(1)]);
    }

    write_with_immediate_and_bad_rkey_completes_receive_with_loc_access_err => "resp.immediate" {
        // With the error in the only packet, and with the region deregistered before the last packet.
        let mut b = Bench::new();
        let (va, key, _) = b.remote(0, 300);
        b.recv(1, 1000, 100);
        b.recv(2, 1000, 100);
        b.exchange(
            &[write_imm(Only, RQ, (va, RKey(key.0 ^ 1), 8), &[5; 8], 1)],
            &[nak(RQ, 0, NakCode::RemoteAccessError)],
        );
        b.recvs(&[bad(1, WcStatus::LocAccessErr), flushed(2)]);
        b.events(&[AsyncEvent::QpAccessError]);
        b.state(QpState::Err);

        let mut b = Bench::new();
        b.recv(1, 1000, 100);
        b.recv(2, 1000, 100);
        let region = b.region(PD, 300, 0, Access::ALL);
        let info = b.regions[region].info;
        let to = (0, info.rkey, 300);
        b.exchange(&[write(First, RQ, to, &[1; 256]).ackreq(true)], &[ack(RQ, 0)]);
        b.memory.deregister(info.lkey).unwrap();
        b.exchange(
            &[write_imm(Last, RQ + 1, Default::default(), &[2; 44], 1)],
            &[nak(RQ + 1, 0, NakCode::RemoteAccessError)],
        );
        b.events(&[AsyncEvent::QpAccessError]);
        b.recvs(&[bad(1, WcStatus::LocAccessErr), flushed(2)]);
        b.state(QpState::Err);
    }

    send_longer_than_receive_buffer_is_nakked => "resp.receive.too_short" {
        let mut b = Bench::new();
        b.recv(1, 0, 9);
        b.recv(2, 0, 100);
        b.exchange(&[send(Only, RQ, &[3; 10])], &[nak(RQ, 0, NakCode::InvalidRequest)]);
        b.recvs(&[bad(1, WcStatus::LocLenErr), flushed(2)]);
        b.state(QpState::Err);
        // The error is detected at the packet that does not fit, not before.
        let mut b = Bench::new();
        b.recv(1, 0, 300);
        b.exchange(&[send(First, RQ, &[3; 256]).ackreq(true)], &[ack(RQ, 0)]);
        b.exchange(&[send(Last, RQ + 1, &[3; 45])], &[nak(RQ + 1, 0, NakCode::InvalidRequest)]);
        // The completion has the opcode of a receive.
        let c = b.raw_recv();
        assert_eq!((c.wr_id, c.status, c.opcode), (1, WcStatus::LocLenErr, Recv));
        assert_ne!(b.mr.read(300, 1), [3]);
    }

    receive_with_invalid_sge_fails_with_protection_error => "resp.receive.protection" {
        let mut b = Bench::new();
        let read_only = b.region(PD, 64, 0, Access::LOCAL_READ);
        let foreign = b.region(PdId(2), 64, 0, Access::ALL);
        let good = b.mr.sge(0, 4);
        let wrong = [
            urxe::transport::Sge { lkey: urxe::wire::LKey(0x4444), ..good },
            b.regions[read_only].sge(0, 8),
            b.regions[foreign].sge(0, 8),
            b.mr.sge((1 << 16) - 3, 8),
        ];
        for sge in wrong {
            let mut b = Bench::new();
            b.region(PD, 64, 0, Access::LOCAL_READ);
            b.region(PdId(2), 64, 0, Access::ALL);
            b.recv_sges(1, &[good, sge]).unwrap();
            b.recv(2, 100, 100);
            b.exchange(&[send(Only, RQ, &[3; 8])], &[nak(RQ, 0, NakCode::RemoteOperationalError)]);
            b.recvs(&[bad(1, WcStatus::LocProtErr), flushed(2)]);
            b.state(QpState::Err);
        }
        // Data that fits into the valid SGEs does not touch the invalid one.
        let mut b = Bench::new();
        b.recv_sges(1, &[good, wrong[0]]).unwrap();
        b.exchange(&[send(Only, RQ, &[3; 4])], &[ack(RQ, 1)]);
        b.recvs(&[ok(1, Recv, 4)]);
    }

    atomics_add_and_swap_and_return_the_original_value => "resp.atomic" {
        let mut b = Bench::new();
        b.mr.write(8, &10u64.to_ne_bytes());
        let (va, key, _) = b.remote(8, 8);
        let word = |b: &Bench| u64::from_ne_bytes(b.mr.read(8, 8).try_into().unwrap());
        b.exchange(&[fetch_add(RQ, (va, key), u64::MAX)], &[atomic_ack(RQ, 1, 10)]);
        assert_eq!(word(&b), 9);
        b.exchange(&[cmp_swap(RQ + 1, (va, key), 8, 1)], &[atomic_ack(RQ + 1, 2, 9)]);
        assert_eq!(word(&b), 9);
        b.exchange(&[cmp_swap(RQ + 2, (va, key), 9, 1)], &[atomic_ack(RQ + 2, 3, 9)]);
        assert_eq!(word(&b), 1);
    }

    unaligned_atomic_is_nakked => "resp.atomic.aligned" {
        for i in [1, 4, 7] {
            let mut b = Bench::new();
            let (va, key, _) = b.remote(i, 8);
            b.exchange(&[fetch_add(RQ, (va, key), 1)], &[nak(RQ, 0, NakCode::InvalidRequest)]);
            b.events(&[AsyncEvent::QpRequestError]);
            assert_eq!(b.mr.read(i, 1), [urxe_test_support::engine::pattern(i as u64)]);
        }
        // The address is aligned for the peer but not in local memory: the operation is impossible, although
        // the request is valid.
        let mut b = Bench::new();
        let r = b.region(PD, 64, 4, Access::ALL);
        let key = b.regions[r].info.rkey;
        b.exchange(&[fetch_add(RQ, (8, key), 1)], &[nak(RQ, 0, NakCode::RemoteOperationalError)]);
        b.events(&[AsyncEvent::QpFatal]);
    }
}
