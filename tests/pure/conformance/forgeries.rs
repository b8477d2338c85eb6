//! Conformance cases: a third party that forges packets. It knows both addresses, the UDP port, the queue
//! pair number and the expected PSN, and computes a valid ICRC. The ICRC has no key, so only the checks that
//! the specification requires can stop a forged packet:
//!
//! | forged | rejected by | effect (IBA) |
//! |---|---|---|
//! | another source address | the address check | dropped, the connection continues (9.6, A17) |
//! | SEND or WRITE with a valid key | no check | executed; the peer's own packet with this PSN is then a duplicate (9.7.5) |
//! | wrong key, address or range | the R_Key check (the R_Key is secret) | NAK, the connection ends, memory is untouched (9.7.4) |
//! | duplicate of a request | the PSN | acknowledged again, not executed (9.7.5) |
//! | single request more than 256 packets ahead, any more than 16,384 ahead | the PSN | dropped, no NAK (9.7.5) |
//! | request up to 256 packets ahead | no check | NAK for the gap; the peer retransmits (9.7.5) |
//! | ACK of a sent packet | no check | completes the request (9.7.6) |
//! | ACK with any MSN | no check | the MSN is not evaluated (9.7.7) |
//! | ACK or NAK of a PSN that was not sent | the PSN | dropped (9.7.6) |
//! | ACK of a READ | no check | the READ is retransmitted and not completed (9.7.6) |
//! | reserved syndrome or NAK code | the syndrome | dropped (9.7.6) |
//! | NAK of an error | no check | ends the connection (9.9.2) |
//! | sequence NAK | no check | retransmission, which the responder handles as duplicates; each NAK without progress uses up a retry (9.7.6) |
//! | READ response with the expected PSN | no check | its bytes are placed in the READ's buffer, nowhere else (9.4.4) |
//! | READ response with another PSN or a wrong length | PSN, length | no byte is placed |
//!
//! An attacker that can read the packets of a connection knows all these values. Protection against such an
//! attacker is the task of the network (VLAN, IPsec).

use std::time::Duration;

use urxe::memory::Access;
use urxe::transport::{AsyncEvent, QpState, WcOpcode, WcStatus, WrOp};
use urxe::wire::{Flow, NakCode, RKey};

use crate::bench::{Bench, RQ, SQ, bad, flushed, ok};
use crate::pkt::*;
use urxe_test_support::engine::{PD, encode};

const ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
const VA: u64 = 0x1_0000_0000;
const KEY: RKey = RKey(0x4321);

/// Delivers the packet from `10.0.0.3`, which is not the peer's address.
fn from_other_address(b: &mut Bench, p: &Pkt) {
    let flow = Flow { src: std::net::IpAddr::from([10, 0, 0, 3]), ..b.flow() };
    let mut h = p.h;
    h.bth.dest_qp = b.qpns[0];
    let bytes = encode(&h, &p.data, &flow);
    b.raw(&flow, &bytes);
}

/// Returns a bench with a READ of 600 bytes (PSNs SQ to SQ + 2) in flight.
fn read_in_flight() -> Bench {
    let mut b = Bench::new();
    b.post(1, WrOp::Read { va: VA, rkey: KEY }, 0, 600);
    b.expect(&[read(SQ, (VA, KEY, 600))]);
    b
}

cases! {
    forged_packets_of_every_kind_from_another_address_are_dropped => "packet.source" {
        let mut b = read_in_flight();
        b.recv(2, 1000, 100);
        let (to, before) = (b.remote(2000, 8), b.mr.read(0, 1 << 16));
        let forged = [
            send(Only, RQ, &[1; 8]),
            write(Only, RQ, to, &[1; 8]),
            write(Only, RQ, (0, RKey(1), 8), &[1; 8]),
            read(RQ, to),
            fetch_add(RQ, (to.0, to.1), 1),
            ack(SQ + 2, 1),
            nak(SQ, 0, NakCode::RemoteAccessError),
            nak(SQ, 0, NakCode::PsnSequenceError),
            rnr(SQ, 0, 1),
            resp(First, SQ, 1, &[9; 256]),
            atomic_ack(SQ, 1, 1),
        ];
        for p in &forged {
            from_other_address(&mut b, p);
            b.expect_nothing();
        }
        assert_eq!(b.count().rx_wrong_source, forged.len() as u64);
        assert!(b.mr.read(0, 1 << 16) == before, "memory changed");
        b.sends(&[]);
        b.recvs(&[]);
        b.state(QpState::Rts);
        // Both directions continue.
        b.exchange(&[write(Only, RQ, to, &[5; 8])], &[ack(RQ, 1)]);
        b.exchange(&message(256, &[3; 600], |p, n, d| resp(p, n, 1, d), SQ), &[]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 600)]);
    }

    forged_write_at_expected_psn_makes_the_genuine_write_a_duplicate => "resp.psn.expected" {
        let mut b = Bench::new();
        let to = b.remote(0, 8);
        b.exchange(&[write(Only, RQ, to, &[0xbb; 8])], &[ack(RQ, 1)]);
        b.exchange(&[write(Only, RQ, to, &[0xaa; 8])], &[ack(RQ, 1)]);
        assert_eq!(b.mr.read(0, 8), [0xbb; 8]);
        assert_eq!(b.count().duplicate_request, 1);
        // The connection continues with the next PSN.
        b.exchange(&[write(Only, RQ + 1, to, &[0xaa; 8])], &[ack(RQ + 1, 2)]);
        assert_eq!(b.mr.read(0, 8), [0xaa; 8]);
    }

    forged_write_with_invalid_key_or_range_ends_the_connection_without_effect => "resp.access.key" {
        let sample = Bench::new();
        let (va, key, _) = sample.remote(0, 8);
        let end = Bench::IOVA + (1 << 16);
        let wrong = [
            (va, RKey(key.0 ^ 1), 8),
            (va, RKey(key.0 ^ 0x100), 8),
            (va - 1, key, 8),
            (end - 7, key, 8),
            (u64::MAX - 3, key, 8),
        ];
        drop(sample);
        for to in wrong {
            let mut b = Bench::new();
            let before = b.mr.read(0, 1 << 16);
            b.exchange(&[write(Only, RQ, to, &[0xbb; 8])], &[nak(RQ, 0, NakCode::RemoteAccessError)]);
            b.state(QpState::Err);
            b.events(&[AsyncEvent::QpAccessError]);
            assert!(b.mr.read(0, 1 << 16) == before, "memory changed");
        }
        // A valid key does not suffice: the region must allow the kind of access.
        let mut b = Bench::new();
        let r = b.region(PD, 64, 0, Access::REMOTE_READ);
        let to = (0, b.regions[r].info.rkey, 8);
        b.exchange(&[write(Only, RQ, to, &[0xbb; 8])], &[nak(RQ, 0, NakCode::RemoteAccessError)]);
        b.state(QpState::Err);
        b.events(&[AsyncEvent::QpAccessError]);
    }

    forged_duplicate_with_other_contents_is_acknowledged_and_not_executed => "resp.dup.send" {
        let mut b = Bench::new();
        let to = b.remote(0, 8);
        b.exchange(&[write(Only, RQ, to, &[0xaa; 8])], &[ack(RQ, 1)]);
        // Contents and key of a duplicate are ignored.
        for p in [write(Only, RQ, to, &[0xbb; 8]), write(Only, RQ, (0, RKey(7), 8), &[0xbb; 8])] {
            b.exchange(&[p], &[ack(RQ, 1)]);
        }
        assert_eq!(b.mr.read(0, 8), [0xaa; 8]);
        b.state(QpState::Rts);
    }

    forged_ack_of_sent_request_completes_it_regardless_of_msn => "req.ack.fields" {
        for msn in [0, 1, 7, 0x80_0000, 0xff_ffff] {
            let mut b = Bench::new();
            b.post(1, WrOp::Send, 0, 8);
            b.post(2, WrOp::Send, 8, 8);
            assert_eq!(b.sent().len(), 2);
            b.exchange(&[ack(SQ, msn)], &[]);
            b.sends(&[ok(1, WcOpcode::Send, 8)]);
            b.exchange(&[ack(SQ + 1, 2)], &[]);
            b.sends(&[ok(2, WcOpcode::Send, 8)]);
        }
    }

    forged_ack_of_a_read_does_not_complete_it => "req.ack.kind" {
        let mut b = read_in_flight();
        let before = b.mr.read(0, 600);
        // The ACK implies that the response was lost: the READ is retransmitted, once.
        b.exchange(&[ack(SQ, 1), ack(SQ + 1, 1), ack(SQ + 2, 1)], &[read(SQ, (VA, KEY, 600))]);
        b.sends(&[]);
        assert_eq!(b.mr.read(0, 600), before);
        b.state(QpState::Rts);
        b.exchange(&message(256, &[3; 600], |p, n, d| resp(p, n, 1, d), SQ), &[]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 600)]);
    }

    forged_naks_outside_packets_in_flight_are_dropped => "req.ack.unsent" {
        let mut b = Bench::new();
        b.post(1, WrOp::Send, 0, 8);
        assert_eq!(b.sent().len(), 1);
        for psn in [SQ - 1, SQ + 1, SQ + 1000, SQ + (1 << 23)] {
            let codes =
                [NakCode::InvalidRequest, NakCode::RemoteAccessError, NakCode::RemoteOperationalError];
            for code in codes {
                b.exchange(&[nak(psn, 0, code)], &[]);
            }
        }
        b.state(QpState::Rts);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 8)]);
    }

    forged_error_nak_of_request_in_flight_ends_the_connection => "req.nak.fatal" {
        let codes = [
            (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
            (NakCode::RemoteAccessError, WcStatus::RemAccessErr),
            (NakCode::RemoteOperationalError, WcStatus::RemOpErr),
        ];
        for (code, status) in codes {
            let mut b = Bench::new();
            b.post(1, WrOp::Send, 0, 8);
            b.post(2, WrOp::Send, 0, 8);
            assert_eq!(b.sent().len(), 2);
            b.exchange(&[nak(SQ, 0, code)], &[]);
            b.sends(&[bad(1, status), flushed(2)]);
            b.state(QpState::Err);
        }
    }

    forged_read_response_with_expected_psn_fills_only_the_read_buffer => "req.read" {
        let mut b = read_in_flight();
        let rest = b.mr.read(600, (1 << 16) - 600);
        b.exchange(&message(256, &[0xbb; 600], |p, n, d| resp(p, n, 1, d), SQ), &[]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 600)]);
        // The peer's own responses arrive too late.
        b.exchange(&message(256, &[0xaa; 600], |p, n, d| resp(p, n, 1, d), SQ), &[]);
        assert_eq!(b.mr.read(0, 600), [0xbb; 600]);
        assert!(b.mr.read(600, (1 << 16) - 600) == rest, "memory behind the READ changed");
        b.state(QpState::Rts);
    }

    forged_read_response_without_a_read_is_dropped => "req.ack.kind" {
        let mut b = Bench::new();
        let before = b.mr.read(0, 1 << 16);
        b.post(1, WrOp::Send, 0, 8);
        assert_eq!(b.sent().len(), 1);
        b.exchange(&[resp(Only, SQ + 1, 1, &[0xbb; 256]), resp(First, SQ - 1, 1, &[0xbb; 256])], &[]);
        b.sends(&[]);
        assert!(b.mr.read(0, 1 << 16) == before, "memory changed");
        b.state(QpState::Rts);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 8)]);
    }

    forged_sequence_nak_causes_only_retransmission => "req.nak.sequence" {
        let mut b = Bench::new();
        b.post(1, WrOp::Send, 0, 8);
        let first = b.sent();
        for _ in 0..3 {
            b.deliver(&[nak(SQ, 0, NakCode::PsnSequenceError)]);
            assert!(b.sent().len() <= first.len());
            b.state(QpState::Rts);
        }
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 8)]);
        b.advance(10 * ACK_TIMEOUT);
    }
}
