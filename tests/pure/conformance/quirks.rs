//! Conformance cases: quirks of the personalities `rxe` and `throughput`.

use urxe::nic::Personality;
use urxe::transport::{QpState, Quirks, WcOpcode, WcStatus, WrOp};
use urxe::wire::{NakCode, RKey, Syndrome};

use crate::bench::{Bench, RQ, SQ, bad, flushed, ok};
use crate::pkt::*;

fn rxe() -> Bench {
    Bench::with(|s| s.quirks = Personality::RXE.quirks)
}

/// Returns a bench with the personality `throughput`, but with end-to-end credits disabled.
fn throughput() -> Bench {
    let quirks = Quirks { credits: false, ..Personality::THROUGHPUT.quirks };
    Bench::with(|s| s.quirks = quirks)
}

/// Memory of the peer.
const TO: (u64, RKey) = (0x9000_0000, RKey(0x77));

/// Returns the packets of a WRITE of `data` as a train, the first with `psn`. The last requests an
/// acknowledgement.
fn train(data: &[u8], psn: u32) -> Vec<Pkt> {
    let count = data.len().div_ceil(256);
    let packet = |(i, part): (usize, &[u8])| {
        let to = (TO.0 + 256 * i as u64, TO.1, part.len() as u32);
        write(Only, psn + i as u32, to, part).ackreq(i + 1 == count)
    };
    data.chunks(256).enumerate().map(packet).collect()
}

fn unmigrated(p: Pkt) -> Pkt {
    p.with(|h| h.bth.mig_req = false)
}

cases! {
    rxe_acks_each_message_and_advertises_no_credits => "quirks.rxe" {
        let mut b = rxe();
        b.recv(1, 0, 4);
        b.recv(2, 0, 4);
        b.exchange(
            &[send(Only, RQ, &[1]), send(Only, RQ + 1, &[1])],
            &[unmigrated(ack(RQ, 1)), unmigrated(ack(RQ + 1, 2))],
        );
        b.recvs(&[ok(1, WcOpcode::Recv, 1), ok(2, WcOpcode::Recv, 1)]);
    }

    rxe_naks_message_longer_than_receive_buffer_as_remote_operational_error => "quirks.rxe" {
        let mut b = rxe();
        b.recv(1, 0, 4);
        b.exchange(&[send(Only, RQ, &[1; 5])], &[unmigrated(nak(RQ, 0, NakCode::RemoteOperationalError))]);
        b.recvs(&[bad(1, WcStatus::LocLenErr)]);
    }

    rxe_accepts_short_first_packet_and_long_only_packet => "quirks.rxe" {
        let mut b = rxe();
        b.recv(1, 0, 600);
        b.recv(2, 0, 600);
        b.exchange(&[send(First, RQ, &[1; 100]), send(Last, RQ + 1, &[2; 8])], &[unmigrated(ack(RQ + 1, 1))]);
        b.exchange(&[send(Only, RQ + 2, &[1; 300])], &[unmigrated(ack(RQ + 2, 2))]);
        b.recvs(&[ok(1, WcOpcode::Recv, 108), ok(2, WcOpcode::Recv, 300)]);
        // A WRITE Only packet longer than the path MTU is refused.
        let to = b.remote(0, 300);
        b.exchange(
            &[write(Only, RQ + 3, to, &[1; 300])],
            &[unmigrated(nak(RQ + 3, 2, NakCode::InvalidRequest))],
        );
        b.events(&[urxe::transport::AsyncEvent::QpRequestError]);
    }

    rxe_answers_more_outstanding_reads_than_negotiated => "quirks.rxe" {
        let mut b = rxe();
        let (from, d) = (b.remote(0, 4), b.mr.read(0, 4));
        let all: Vec<_> = (0..6).map(|i| read(RQ + i, from)).collect();
        b.exchange(&all, &(0..6).map(|i| unmigrated(resp(Only, RQ + i, i + 1, &d))).collect::<Vec<_>>());
    }

    long_write_is_a_train_that_completes_once => "req.trains" {
        let mut b = throughput();
        let (va, rkey) = TO;
        let d = b.mr.read(0, 2000);
        // The middle packets are sent in bulk, and the last is not full.
        b.post(1, WrOp::Write { va, rkey }, 0, 2000);
        b.expect(&train(&d, SQ));
        b.exchange(&[ack(SQ + 3, 4)], &[]);
        b.sends(&[]);
        b.exchange(&[ack(SQ + 7, 8)], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 2000)]);
        // Nothing changes for a WRITE of one packet or of none.
        b.post(2, WrOp::Write { va, rkey }, 0, 256);
        b.post(3, WrOp::Write { va, rkey }, 0, 0);
        b.expect(&[write(Only, SQ + 8, (va, rkey, 256), &d[..256]), write(Only, SQ + 9, (va, rkey, 0), &[])]);
        b.exchange(&[ack(SQ + 9, 10)], &[]);
        b.sends(&[ok(2, WcOpcode::RdmaWrite, 256), ok(3, WcOpcode::RdmaWrite, 0)]);
    }

    write_with_immediate_is_no_train => "req.trains" {
        let mut b = throughput();
        let (va, rkey) = TO;
        let d = b.mr.read(0, 600);
        b.post(1, WrOp::WriteWithImm { va, rkey, imm: 7 }, 0, 600);
        let to = (va, rkey, 600);
        b.expect(&[
            write(First, SQ, to, &d[..256]),
            write(Middle, SQ + 1, to, &d[256..512]),
            write_imm(Last, SQ + 2, to, &d[512..], 7),
        ]);
        b.exchange(&[ack(SQ + 2, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 600)]);
    }

    train_is_retransmitted_from_the_lost_packet => "req.trains" {
        let quirks = Quirks { credits: false, selective_repeat: false, ..Personality::THROUGHPUT.quirks };
        let mut b = Bench::with(|s| s.quirks = quirks);
        let (va, rkey) = TO;
        let d = b.mr.read(0, 1000);
        b.post(1, WrOp::Write { va, rkey }, 0, 1000);
        let all = train(&d, SQ);
        b.expect(&all);
        b.exchange(&[nak(SQ + 1, 1, NakCode::PsnSequenceError)], &all[1..]);
        b.exchange(&[ack(SQ + 3, 4)], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 1000)]);
    }

    refused_packet_of_a_train_fails_its_work_request => "req.trains" {
        let mut b = throughput();
        let (va, rkey) = TO;
        let d = b.mr.read(0, 600);
        b.post(1, WrOp::Write { va, rkey }, 0, 600);
        b.post(2, WrOp::Send, 0, 1);
        b.expect(&[train(&d, SQ), vec![send(Only, SQ + 3, &d[..1])]].concat());
        b.exchange(&[nak(SQ + 1, 1, NakCode::RemoteAccessError)], &[]);
        b.sends(&[bad(1, WcStatus::RemAccessErr), flushed(2)]);
        b.state(QpState::Err);
    }

    each_packet_of_a_train_counts_as_a_message_towards_the_credits => "req.trains" {
        let mut b = Bench::with(|s| s.quirks = Personality::THROUGHPUT.quirks);
        let (va, rkey) = TO;
        let d = b.mr.read(0, 600);
        b.post(1, WrOp::Write { va, rkey }, 0, 600);
        b.expect(&train(&d, SQ));
        // One receive: the SEND that is the fourth message has it, and the fifth is beyond the limit.
        b.exchange(&[ack(SQ + 2, 3).with(|h| h.aeth.syndrome = Syndrome::Ack { credits: 1 })], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 600)]);
        b.post(2, WrOp::Send, 0, 1);
        b.post(3, WrOp::Send, 0, 1);
        b.expect(&[send(Only, SQ + 3, &d[..1])]);
        b.exchange(&[ack(SQ + 3, 4).with(|h| h.aeth.syndrome = Syndrome::Ack { credits: 1 })], &[send(Only, SQ + 4, &d[..1])]);
        b.exchange(&[ack(SQ + 4, 5)], &[]);
        b.sends(&[ok(2, WcOpcode::Send, 1), ok(3, WcOpcode::Send, 1)]);
    }

    read_of_few_packets_is_requested_in_pairs => "req.trains" {
        let mut b = throughput();
        let (va, rkey) = TO;
        b.post(0, WrOp::Read { va, rkey }, 0, 9 * 256);
        b.expect(&[read(SQ, (va, rkey, 9 * 256))]);
        b.exchange(&message(256, &[1; 9 * 256], |p, n, d| resp(p, n, 1, d), SQ), &[]);
        b.sends(&[ok(0, WcOpcode::RdmaRead, 9 * 256)]);
        b.post(1, WrOp::Read { va, rkey }, 0, 1100);
        b.expect(&[
            read(SQ + 9, (va, rkey, 512)),
            read(SQ + 11, (va + 512, rkey, 512)),
            read(SQ + 13, (va + 1024, rkey, 76)),
        ]);
        let d: Vec<u8> = (0..1100).map(|i| (i / 5) as u8).collect();
        for (i, part) in d.chunks(512).enumerate() {
            let (psn, msn) = (SQ + 9 + 2 * i as u32, 2 + i as u32);
            b.exchange(&message(256, part, |p, n, d| resp(p, n, msn, d), psn), &[]);
        }
        b.sends(&[ok(1, WcOpcode::RdmaRead, 1100)]);
        assert_eq!(b.mr.read(0, 1100), d);
    }

    responder_stores_a_train_and_checks_the_access_of_each_packet => "req.trains" {
        let mut b = throughput();
        let (va, rkey, _) = b.remote(0, 600);
        let to = |at: u32, len| (va + u64::from(at), rkey, len);
        let parts = [
            write(Only, RQ, to(0, 256), &[1; 256]).ackreq(false),
            write(Only, RQ + 1, to(256, 256), &[2; 256]).ackreq(false),
            write(Only, RQ + 2, to(512, 88), &[3; 88]),
        ];
        b.exchange(&parts, &[ack(RQ + 2, 3)]);
        assert_eq!(b.mr.read(0, 600), [vec![1; 256], vec![2; 256], vec![3; 88]].concat());
        let beyond = write(Only, RQ + 4, to(65_500, 256), &[5; 256]);
        let within = write(Only, RQ + 3, to(65_244, 256), &[4; 256]).ackreq(false);
        b.exchange(&[within, beyond], &[nak(RQ + 4, 4, NakCode::RemoteAccessError)]);
        assert_eq!(b.mr.read(65_244, 256), [4; 256]);
        b.events(&[urxe::transport::AsyncEvent::QpAccessError]);
    }

    each_personality_is_found_by_its_name => "quirks.rxe" {
        for p in Personality::ALL {
            assert_eq!(Personality::named(p.name), Some(p));
        }
        assert_eq!(Personality::named("efa"), None);
    }
}
