//! Conformance cases: selective repeat.

use urxe::nic::Personality;
use urxe::transport::{Quirks, WcOpcode, WrOp};
use urxe::wire::{NakCode, RKey};

use crate::bench::{Bench, RQ, SQ, Setup, ok};
use crate::pkt::*;

fn selective(change: impl FnOnce(&mut Setup)) -> Bench {
    Bench::with(|s| {
        s.quirks = Quirks { credits: false, ..Personality::DEFAULT.quirks };
        change(s);
    })
}

fn gap(psn: u32, msn: u32) -> Pkt {
    nak(psn, msn, NakCode::PsnSequenceError)
}

/// Returns a bench that has received none of the packets of a WRITE, its data, and the packets.
fn write_of_five_packets(rq_psn: u32) -> (Bench, Vec<u8>, Vec<Pkt>) {
    let b = selective(|s| s.rq_psn = rq_psn);
    let to = b.remote(0, 1100);
    let d: Vec<u8> = b.mr.read(0, 1100).iter().map(|byte| !byte).collect();
    let packets = message(256, &d, |p, n, d| write(p, n, to, d), rq_psn);
    (b, d, packets)
}

fn select(packets: &[Pkt], indices: &[usize]) -> Vec<Pkt> {
    indices.iter().map(|i| packets[*i].clone()).collect()
}

/// Returns a bench with a WRITE of five packets in flight, and the packets.
fn five_in_flight() -> (Bench, Vec<Pkt>) {
    let mut b = selective(|_| {});
    let (va, rkey) = (0x9000_0000, RKey(0x77));
    let d = b.mr.read(0, 1100);
    let packets = message(256, &d, |p, n, d| write(p, n, (va, rkey, 1100), d), SQ);
    b.post(1, WrOp::Write { va, rkey }, 0, 1100);
    b.expect(&packets);
    (b, packets)
}

cases! {
    requests_behind_a_gap_are_executed_when_the_missing_one_arrives => "quirks.selective_repeat" {
        // The second time, the PSNs wrap within the message.
        for first in [RQ, 0xff_fffe] {
            let (mut b, d, p) = write_of_five_packets(first);
            let psn = |i| (first + i) & 0xff_ffff;
            let before = b.mr.read(0, 1100);
            b.exchange(&select(&p, &[0, 3, 2, 4, 3]), &[gap(psn(1), 0)]);
            assert_eq!(b.mr.read(0, 1100), [&d[..256], &before[256..]].concat());
            b.exchange(&p[1..2], &[ack(psn(4), 1)]);
            assert_eq!(b.mr.read(0, 1100), d);
            // A requester that goes back to the missing packet sends the others again.
            b.mr.write(600, &[9]);
            b.exchange(&p[2..], &[ack(psn(4), 1)]);
            assert_eq!(b.mr.read(600, 1), [9]);
        }
    }

    next_gap_is_nakked_when_a_request_behind_it_arrives => "quirks.selective_repeat" {
        let (mut b, d, p) = write_of_five_packets(RQ);
        b.exchange(&select(&p, &[0, 2, 4]), &[gap(RQ + 1, 0)]);
        b.exchange(&p[1..2], &[ack(RQ + 2, 0)]);
        // A duplicate fills no gap.
        b.exchange(&p[1..2], &[ack(RQ + 2, 0)]);
        b.exchange(&p[4..], &[gap(RQ + 3, 0)]);
        b.exchange(&p[3..4], &[ack(RQ + 4, 1)]);
        assert_eq!(b.mr.read(0, 1100), d);
    }

    requests_behind_two_missing_ones_are_dropped => "quirks.selective_repeat" {
        let (mut b, d, p) = write_of_five_packets(RQ);
        b.exchange(&select(&p, &[0, 3, 4]), &[gap(RQ + 1, 0)]);
        b.exchange(&[p[1].clone().ackreq(true)], &[ack(RQ + 1, 0)]);
        b.exchange(&p[4..], &[gap(RQ + 2, 0)]);
        b.exchange(&p[2..], &[ack(RQ + 4, 1)]);
        assert_eq!(b.mr.read(0, 1100), d);
    }

    forged_request_ahead_is_dropped_when_the_next_one_arrives => "quirks.selective_repeat" {
        let mut b = selective(|_| {});
        let all: Vec<_> = (0..5).map(|i| write(Only, RQ + i, b.remote(i as usize, 1), &[i as u8])).collect();
        // Without access to memory, it would be refused, and the queue pair would fail.
        let forged = write(Only, RQ + 3, (0, RKey(1), 1), &[0; 1]);
        b.exchange(&[forged], &[gap(RQ, 0)]);
        let acks: Vec<_> = (0..5).map(|i| ack(RQ + i, i + 1)).collect();
        all.iter().zip(&acks).for_each(|(request, ack)| b.exchange(std::slice::from_ref(request), std::slice::from_ref(ack)));
        assert_eq!(b.mr.read(0, 5), [0, 1, 2, 3, 4]);
    }

    requests_behind_one_without_a_receive_are_dropped => "quirks.selective_repeat" {
        let mut b = selective(|_| {});
        let all: Vec<_> = (0..4).map(|i| send(Only, RQ + i, &[i as u8; 1])).collect();
        b.recv(1, 0, 1);
        b.exchange(&all[1..3], &[gap(RQ, 0)]);
        b.exchange(&all[..1], &[ack(RQ, 1), rnr(RQ + 1, 1, 12)]);
        b.exchange(&all[3..], &[]);
        (2..5).for_each(|id| b.recv(id, id as usize, 1));
        b.exchange(&all[1..2], &[ack(RQ + 1, 2)]);
        b.recvs(&[ok(1, WcOpcode::Recv, 1), ok(2, WcOpcode::Recv, 1)]);
        b.exchange(&all[2..], &[ack(RQ + 3, 4)]);
        b.recvs(&[ok(3, WcOpcode::Recv, 1), ok(4, WcOpcode::Recv, 1)]);
    }

    reads_behind_a_gap_are_dropped => "quirks.selective_repeat" {
        let mut b = selective(|_| {});
        let d = b.mr.read(0, 2);
        let writes: Vec<_> = (0..3).map(|i| write(Only, RQ + i, b.remote(8, 1), &[i as u8])).collect();
        let from = b.remote(0, 2);
        b.exchange(&[read(RQ + 1, from), writes[2].clone()], &[gap(RQ, 0)]);
        b.exchange(&writes[..1], &[ack(RQ, 1)]);
        b.exchange(&[read(RQ + 1, from)], &[resp(Only, RQ + 1, 2, &d)]);
        b.exchange(&writes[2..], &[ack(RQ + 2, 3)]);
        assert_eq!(b.mr.read(8, 1), [2]);
    }

    kept_requests_are_limited_to_the_window_of_a_peer => "quirks.selective_repeat" {
        // A short packet counts as 1 KiB.
        let mut b = selective(|s| s.tuning.window = 3 << 10);
        let to = b.remote(0, 1);
        let all: Vec<_> = (0..6).map(|i| write(Only, RQ + i, to, &[i as u8; 1])).collect();
        b.exchange(&all[1..], &[gap(RQ, 0)]);
        b.exchange(&all[..1], &[ack(RQ + 3, 4)]);
        assert_eq!(b.mr.read(0, 1), [3]);
        b.exchange(&all[5..], &[gap(RQ + 4, 4)]);
        b.exchange(&all[4..5], &[ack(RQ + 5, 6)]);
        assert_eq!(b.mr.read(0, 1), [5]);
    }

    reset_drops_kept_requests => "quirks.selective_repeat" {
        let (mut b, d, p) = write_of_five_packets(RQ);
        b.exchange(&select(&p, &[0, 2, 3, 4]), &[gap(RQ + 1, 0)]);
        b.set_state(urxe::transport::QpState::Reset);
        b.connect(0, urxe::transport::QpState::Rts);
        b.exchange(&p[..2], &[]);
        b.exchange(&p[2..], &[ack(RQ + 4, 1)]);
        assert_eq!(b.mr.read(0, 1100), d);
    }

    sequence_nak_triggers_retransmission_of_its_packet_and_the_newest => "quirks.selective_repeat" {
        let (mut b, p) = five_in_flight();
        // The second NAK is a duplicate.
        b.exchange(&[gap(SQ + 1, 0), gap(SQ + 1, 0)], &[p[1].clone().ackreq(true), p[4].clone()]);
        b.exchange(&[gap(SQ + 3, 0)], &[p[3].clone().ackreq(true), p[4].clone()]);
        assert_eq!((b.count().retransmitted_pkts, b.count().requester_retry), (2, 2));
        b.exchange(&[ack(SQ + 4, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 1100)]);
    }

    everything_is_retransmitted_if_a_read_is_in_flight => "quirks.selective_repeat" {
        let (mut b, p) = five_in_flight();
        b.post(2, WrOp::Read { va: 0x9000_0000, rkey: RKey(0x77) }, 0, 1);
        let request = read(SQ + 5, (0x9000_0000, RKey(0x77), 1));
        b.expect(std::slice::from_ref(&request));
        b.exchange(&[gap(SQ + 3, 0)], &[&p[3..], &[request]].concat());
    }

    everything_is_retransmitted_if_the_peer_misses_the_next_packet => "quirks.selective_repeat" {
        let (mut b, p) = five_in_flight();
        b.exchange(&[gap(SQ, 0)], &[p[0].clone().ackreq(true), p[4].clone()]);
        b.exchange(&[gap(SQ + 1, 0)], &p[1..]);
        // The peer is not expected to keep anything after the next loss.
        b.exchange(&[gap(SQ + 3, 0)], &p[3..]);
        b.exchange(&[ack(SQ + 4, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 1100)]);
    }

    new_packet_is_sent_instead_of_the_newest_one_in_flight => "quirks.selective_repeat" {
        let (mut b, p) = five_in_flight();
        b.deliver(&[gap(SQ + 1, 0)]);
        b.post(2, WrOp::Send, 0, 1);
        let d = b.mr.read(0, 1);
        b.expect(&[p[1].clone().ackreq(true), send(Only, SQ + 5, &d)]);
        b.exchange(&[ack(SQ + 5, 2)], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaWrite, 1100), ok(2, WcOpcode::Send, 1)]);
    }
}
