//! Conformance cases: the responder's handling of duplicate requests, RNR NAKs, and the limit on outstanding
//! READs.

use urxe::transport::{AsyncEvent, QpState, WcOpcode::Recv, WcOpcode::RecvRdmaWithImm};
use urxe::wire::{NakCode, RKey};

use crate::bench::{Bench, RQ, flushed, ok};
use crate::pkt::*;

cases! {
    duplicate_send_or_write_is_acked_and_not_executed => "resp.dup.send" {
        let mut b = Bench::new();
        b.recv(1, 0, 10);
        b.recv(2, 0, 10);
        let to = b.remote(100, 2);
        b.exchange(&[send(Only, RQ, &[1]), write(Only, RQ + 1, to, &[2; 2])], &[ack(RQ + 1, 2)]);
        b.recvs(&[ok(1, Recv, 1)]);
        b.mr.write(100, &[0; 2]);
        b.exchange(&[send(Only, RQ, &[1])], &[ack(RQ + 1, 2)]);
        // Also without AckReq or with other contents: the contents of a duplicate are ignored.
        b.exchange(&[write(Only, RQ + 1, to, &[2; 2]).ackreq(false)], &[ack(RQ + 1, 2)]);
        b.exchange(&[send(Middle, RQ, &[1; 3])], &[ack(RQ + 1, 2)]);
        assert_eq!(b.mr.read(100, 2), [0; 2]);
        assert_eq!(b.count().duplicate_request, 3);
    }

    burst_of_duplicates_is_acknowledged_once => "resp.dup.send" {
        let mut b = Bench::new();
        let to = b.remote(100, 2);
        b.exchange(&[write(Only, RQ, to, &[1; 2]), write(Only, RQ + 1, to, &[1; 2])], &[ack(RQ + 1, 2)]);
        let copies: Vec<_> = (0..50).map(|i| write(Only, RQ + i % 2, to, &[2; 2])).collect();
        b.exchange(&copies, &[ack(RQ + 1, 2)]);
        assert_eq!(b.count().duplicate_request, 50);
    }

    duplicate_packet_of_unfinished_message_is_acked_and_not_executed => "resp.dup.send" {
        let mut b = Bench::new();
        b.recv(1, 0, 300);
        b.exchange(&[send(First, RQ, &[1; 256])], &[]);
        b.exchange(&[send(First, RQ, &[2; 256])], &[ack(RQ, 0)]);
        b.exchange(&[send(Last, RQ + 1, &[3; 4])], &[ack(RQ + 1, 1)]);
        b.recvs(&[ok(1, Recv, 260)]);
        assert_eq!(b.mr.read(0, 256), [1; 256]);
    }

    ack_of_duplicate_does_not_cover_an_unanswered_read => "resp.dup.send" {
        let mut b = Bench::new();
        let (to, d) = (b.remote(0, 1), b.mr.read(500, 257));
        let from = b.remote(500, 257);
        let all = [
            write(Only, RQ, to, &[1]),
            write(Only, RQ + 1, to, &[1]),
            read(RQ + 2, from),
            write(Only, RQ + 4, to, &[1]),
        ];
        let response = message(256, &d, |p, n, d| resp(p, n, 3, d), RQ + 2);
        b.exchange(&all, &[ack(RQ + 1, 2), response[0].clone(), response[1].clone(), ack(RQ + 4, 4)]);
        // The response is lost; the requester retransmits from the first request.
        b.exchange(&all[..1], &[ack(RQ + 1, 2)]);
        b.exchange(&all[1..2], &[ack(RQ + 1, 2)]);
        b.exchange(&all[2..3], &response);
        b.exchange(&all[3..], &[ack(RQ + 4, 4)]);
        // All requests in one burst.
        b.exchange(&all, &[ack(RQ + 1, 2), response[0].clone(), response[1].clone(), ack(RQ + 4, 4)]);
    }

    duplicate_read_of_all_or_part_of_the_data_is_answered_again => "resp.dup.read" {
        let mut b = Bench::new();
        let d = b.mr.read(0, 900);
        let (va, key, _) = b.remote(0, 900);
        let whole = message(256, &d, |p, n, d| resp(p, n, 1, d), RQ);
        b.exchange(&[read(RQ, (va, key, 900))], &whole);
        b.exchange(&[read(RQ, (va, key, 900))], &whole);
        let rest = message(256, &d[512..], |p, n, d| resp(p, n, 1, d), RQ + 2);
        b.exchange(&[read(RQ + 2, (va + 512, key, 388))], &rest);
        let part = message(256, &d[256..512], |p, n, d| resp(p, n, 1, d), RQ + 1);
        b.exchange(&[read(RQ + 1, (va + 256, key, 256))], &part);
        // The MSN and the next PSN are unchanged.
        b.exchange(&[write(Only, RQ + 4, (va, key, 0), &[])], &[ack(RQ + 4, 2)]);
        // A replay reads memory again.
        b.mr.write(0, &[0xaa; 4]);
        b.exchange(&[read(RQ, (va, key, 4))], &[resp(Only, RQ, 1, &[0xaa; 4])]);
    }

    duplicate_that_matches_no_executed_read_is_dropped => "resp.dup.read.mismatch" {
        let mut b = Bench::new();
        let (va, key, _) = b.remote(0, 600);
        b.deliver(&[read(RQ, (va, key, 600))]);
        assert_eq!(b.sent().len(), 3);
        let others = [
            read(RQ, (va, RKey(key.0 + 1), 600)),
            read(RQ, (va + 8, key, 600)),
            read(RQ, (va, key, 601)),
            read(RQ + 1, (va, key, 344)),
            read(RQ + 2, (va + 512, key, 89)),
            read(RQ - 1, (va, key, 600)),
            fetch_add(RQ, (va, key), 1),
        ];
        for other in others {
            b.exchange(&[other], &[]);
        }
        b.state(QpState::Rts);
    }

    duplicate_of_queued_read_is_answered_once => "resp.dup.read.queued" {
        let mut b = Bench::new();
        let from = b.remote(0, 300);
        let d = b.mr.read(0, 300);
        let response = message(256, &d, |p, n, d| resp(p, n, 1, d), RQ);
        b.exchange(&[read(RQ, from), read(RQ, from)], &response);
        // Half of the response is sent. A duplicate of the part still to be sent does not restart it ...
        let (mut b, (va, key, len), all) = Bench::long_read();
        b.deliver(&[read(RQ, (va, key, len))]);
        let n = b.turn().len();
        assert!(n > 0 && n < all.len());
        let rest = |n: usize| read(RQ + n as u32, (va + 4096 * n as u64, key, len - 4096 * n as u32));
        b.exchange(&[rest(n)], &all[n..]);
        // ... and a duplicate of the part that the requester has not received causes one response, followed
        // by the rest.
        b.deliver(&[read(RQ, (va, key, len))]);
        let n = b.turn().len();
        b.deliver(&[rest(n - 1)]);
        let got = b.sent();
        let psns: Vec<_> = got.iter().map(|p| p.h.bth.psn.get() - RQ).collect();
        assert_eq!(psns, (n as u32 - 1..all.len() as u32).collect::<Vec<_>>());
    }

    duplicate_read_of_a_deregistered_region_is_not_answered => "resp.dup.read.deregistered" {
        let mut b = Bench::new();
        let r = b.region(urxe_test_support::engine::PD, 64, 0, urxe::memory::Access::ALL);
        let info = b.regions[r].info;
        b.deliver(&[read(RQ, (0, info.rkey, 8))]);
        assert_eq!(b.sent().len(), 1);
        b.memory.deregister(info.lkey).unwrap();
        // The NIC sends no response: the requester may have received its response long ago, and this packet
        // may be an old duplicate.
        b.exchange(&[read(RQ, (0, info.rkey, 8))], &[]);
        b.state(QpState::Rts);
        b.events(&[]);
        b.exchange(&[write(Only, RQ + 1, b.remote(0, 1), &[1])], &[ack(RQ + 1, 2)]);
    }

    duplicate_atomic_returns_the_saved_result => "resp.dup.atomic" {
        let mut b = Bench::new();
        b.mr.write(8, &5u64.to_ne_bytes());
        let word = (b.mr.va(8), b.mr.info.rkey);
        b.exchange(&[fetch_add(RQ, word, 1)], &[atomic_ack(RQ, 1, 5)]);
        b.exchange(&[cmp_swap(RQ + 1, word, 6, 100)], &[atomic_ack(RQ + 1, 2, 6)]);
        b.exchange(&[fetch_add(RQ, word, 1)], &[atomic_ack(RQ, 1, 5)]);
        b.exchange(&[cmp_swap(RQ + 1, word, 6, 100)], &[atomic_ack(RQ + 1, 2, 6)]);
        assert_eq!(b.mr.read(8, 8), 100u64.to_ne_bytes());
        // Two duplicates before the response is sent.
        b.exchange(&[fetch_add(RQ + 2, word, 1), fetch_add(RQ + 2, word, 1)], &[atomic_ack(RQ + 2, 3, 100)]);
        assert_eq!(b.mr.read(8, 8), 101u64.to_ne_bytes());
    }

    duplicate_of_evicted_read_or_atomic_is_dropped => "resp.dup.evicted" {
        let mut b = Bench::with(|s| s.max_dest_rd = 2);
        let word = (b.mr.va(8), b.mr.info.rkey);
        for i in 0..3 {
            b.deliver(&[fetch_add(RQ + i, word, 1)]);
            assert_eq!(b.sent().len(), 1);
        }
        b.exchange(&[fetch_add(RQ, word, 1)], &[]);
        b.deliver(&[fetch_add(RQ + 1, word, 1), fetch_add(RQ + 2, word, 1)]);
        assert_eq!(b.sent().len(), 2);
        b.state(QpState::Rts);
    }

    queued_later_responses_are_discarded_on_a_duplicate_read => "resp.dup.go_back" {
        // Responses due for later requests would only arrive twice.
        let (mut b, from, all) = Bench::long_read();
        let next = RQ + all.len() as u32;
        let requests = [read(RQ, from), write(Only, next, b.remote(0, 1), &[1])];
        b.deliver(&requests);
        let n = b.turn().len();
        assert!(n > 0 && n < all.len());
        let expected: Vec<_> = all.into_iter().chain([ack(next, 2)]).collect();
        b.exchange(&requests, &expected);
    }

    reads_beyond_responder_resources_are_nakked => "resp.depth" {
        let mut b = Bench::with(|s| s.max_dest_rd = 2);
        let (from, word) = (b.remote(0, 8), (b.mr.va(0), b.mr.info.rkey));
        let d = b.mr.read(0, 8);
        b.recv(1, 0, 1);
        b.deliver(&[read(RQ, from), fetch_add(RQ + 1, word, 0), read(RQ + 2, from)]);
        b.expect(&[
            resp(Only, RQ, 1, &d),
            atomic_ack(RQ + 1, 2, u64::from_ne_bytes(d.clone().try_into().unwrap())),
            nak(RQ + 2, 2, NakCode::InvalidRequest),
        ]);
        b.events(&[AsyncEvent::QpRequestError]);
        b.recvs(&[flushed(1)]);
        // One after the other, any number is accepted.
        let mut b = Bench::with(|s| s.max_dest_rd = 1);
        for i in 0..5 {
            b.exchange(&[read(RQ + i, from)], &[resp(Only, RQ + i, i + 1, &d)]);
        }
    }

    read_replays_do_not_use_up_responder_resources => "resp.depth" {
        // The first response was only late: the requester has received it and continues while the replay is
        // still due.
        let mut b = Bench::with(|s| s.max_dest_rd = 1);
        let (from, d) = (b.remote(0, 8), b.mr.read(0, 8));
        b.exchange(&[read(RQ, from)], &[resp(Only, RQ, 1, &d)]);
        b.exchange(
            &[read(RQ, from), read(RQ + 1, from)],
            &[resp(Only, RQ, 1, &d), resp(Only, RQ + 1, 2, &d)],
        );
    }

    read_without_responder_resources_is_nakked => "resp.depth" {
        let mut b = Bench::with(|s| s.max_dest_rd = 0);
        b.exchange(&[read(RQ, b.remote(0, 8))], &[nak(RQ, 0, NakCode::InvalidRequest)]);
        b.events(&[AsyncEvent::QpRequestError]);
    }

    send_is_rnr_nakked_if_no_receive_is_posted => "resp.rnr" {
        let mut b = Bench::with(|s| s.rnr_timer = 7);
        let m = message(256, &[1; 600], send, RQ);
        // One RNR NAK, and none for the following packets.
        b.exchange(&m, &[rnr(RQ, 0, 7)]);
        b.exchange(&m[1..], &[]);
        assert_eq!((b.count().send_rnr_err, b.count().out_of_seq_request), (1, 4));
        // Still no receive: another RNR NAK.
        b.exchange(&m, &[rnr(RQ, 0, 7)]);
        b.recv(1, 0, 600);
        b.exchange(&m, &[ack(RQ + 2, 1)]);
        b.recvs(&[ok(1, Recv, 600)]);
        // The next gap is NAKed again.
        b.exchange(&[send(Only, RQ + 4, &[1])], &[nak(RQ + 3, 1, NakCode::PsnSequenceError)]);
    }

    write_with_immediate_is_rnr_nakked_if_no_receive_is_posted => "resp.rnr" {
        let mut b = Bench::new();
        let to = b.remote(0, 300);
        let last = write_imm(Last, RQ + 1, to, &[2; 44], 5);
        b.exchange(&[write(First, RQ, to, &[1; 256]), last.clone()], &[rnr(RQ + 1, 0, 12)]);
        assert_eq!(b.mr.read(0, 1), [1]);
        assert_ne!(b.mr.read(256, 2), [2; 2]);
        b.recv(1, 0, 0);
        b.exchange(&[last], &[ack(RQ + 1, 1)]);
        b.recvs(&[ok(1, RecvRdmaWithImm, 300).imm(5)]);
        b.exchange(&[write_imm(Only, RQ + 2, b.remote(0, 1), &[2], 5)], &[rnr(RQ + 2, 1, 12)]);
    }

    duplicates_are_answered_after_an_rnr_nak => "resp.rnr" {
        let mut b = Bench::new();
        let to = b.remote(0, 1);
        b.exchange(&[write(Only, RQ, to, &[1])], &[ack(RQ, 1)]);
        b.exchange(&[send(Only, RQ + 1, &[1])], &[rnr(RQ + 1, 1, 12)]);
        b.exchange(&[write(Only, RQ, to, &[1]), send(Only, RQ + 2, &[1])], &[ack(RQ, 1)]);
    }

    no_response_follows_a_fatal_nak => "resp.fatal" {
        let mut b = Bench::new();
        let to = b.remote(0, 1);
        // Responses due before it are still sent, in order.
        b.deliver(&[write(Only, RQ, to, &[1]), send(Middle, RQ + 1, &[0; 256]), write(Only, RQ, to, &[1])]);
        b.expect(&[ack(RQ, 1), nak(RQ + 1, 1, NakCode::InvalidRequest)]);
        b.events(&[AsyncEvent::QpRequestError]);
        b.exchange(&[write(Only, RQ, to, &[1]), write(Only, RQ + 1, to, &[1])], &[]);
        assert_eq!(b.count().rx_wrong_state, 3);
    }
}
