//! Conformance cases: the packets that the requester sends for each work request.

use urxe::memory::AtomicOp;
use urxe::transport::{PostError, SendFlags, SendWr, WcOpcode, WrOp};
use urxe::wire::{Mtu, RKey};

use crate::bench::{Bench, RQ, SQ, ok};
use crate::pkt::*;

const TO: (u64, RKey) = (0x1_0000_0000, RKey(0x4321));

fn lengths(mtu: Mtu) -> [u32; 7] {
    let m = mtu.bytes() as u32;
    [0, 1, m - 1, m, m + 1, 2 * m, 3 * m - 3]
}

cases! {
    sends_and_writes_are_segmented_at_every_mtu => "req.segments" {
        let (va, rkey) = TO;
        for mtu in Mtu::ALL {
            for n in lengths(mtu) {
                for kind in 0..4 {
                    let mut b = Bench::with(|s| s.mtu = mtu);
                    let d = b.mr.read(7, n as usize);
                    let op = match kind {
                        0 => WrOp::Send,
                        1 => WrOp::SendWithImm(0x0a0b_0c0d),
                        2 => WrOp::Write { va, rkey },
                        _ => WrOp::WriteWithImm { va, rkey, imm: 0x0a0b_0c0d },
                    };
                    b.post(1, op, 7, n);
                    let m = message(
                        mtu.bytes(),
                        &d,
                        |p, psn, d| match (kind, p) {
                            (0, _) | (1, First | Middle) => send(p, psn, d),
                            (1, _) => send_imm(p, psn, d, 0x0a0b_0c0d),
                            (2, _) | (3, First | Middle) => write(p, psn, (va, rkey, n), d),
                            _ => write_imm(p, psn, (va, rkey, n), d, 0x0a0b_0c0d),
                        },
                        SQ,
                    );
                    b.expect(&m);
                    b.exchange(&[ack(SQ + m.len() as u32 - 1, 1)], &[]);
                    let opcode = if kind < 2 { WcOpcode::Send } else { WcOpcode::RdmaWrite };
                    b.sends(&[ok(1, opcode, n)]);
                }
            }
        }
    }

    psns_continue_from_message_to_message_and_wrap => "req.psn" {
        let mut b = Bench::with(|s| s.sq_psn = 0xff_fffe);
        let d = b.mr.read(0, 600);
        b.post(1, WrOp::Send, 0, 600);
        b.post(2, WrOp::Read { va: TO.0, rkey: TO.1 }, 1000, 600);
        b.post(3, WrOp::Send, 0, 1);
        let mut expected = message(256, &d, send, 0xff_fffe);
        expected.push(read(1, (TO.0, TO.1, 600)));
        expected.push(send(Only, 4, &d[..1]));
        b.expect(&expected);
        b.exchange(&[ack(0, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 600)]);
        b.exchange(&message(256, &[6; 600], |p, n, d| resp(p, n, 2, d), 1), &[]);
        b.exchange(&[ack(4, 3)], &[]);
        b.sends(&[ok(2, WcOpcode::RdmaRead, 600), ok(3, WcOpcode::Send, 1)]);
    }

    atomic_returns_the_original_value => "req.atomic" {
        let mut b = Bench::new();
        let (va, rkey) = TO;
        b.post(1, WrOp::Atomic { va, rkey, op: AtomicOp::FetchAdd(7) }, 64, 8);
        b.post(2, WrOp::Atomic { va, rkey, op: AtomicOp::CompareSwap { compare: 3, swap: 4 } }, 72, 8);
        b.expect(&[fetch_add(SQ, TO, 7), cmp_swap(SQ + 1, TO, 3, 4)]);
        b.exchange(&[atomic_ack(SQ, 1, 0x0102_0304_0506_0708), atomic_ack(SQ + 1, 2, 11)], &[]);
        b.sends(&[ok(1, WcOpcode::FetchAdd, 8), ok(2, WcOpcode::CompSwap, 8)]);
        assert_eq!(b.mr.read(64, 8), 0x0102_0304_0506_0708u64.to_ne_bytes());
        assert_eq!(b.mr.read(72, 8), 11u64.to_ne_bytes());
    }

    atomic_result_is_scattered_over_sges => "req.atomic" {
        let mut b = Bench::new();
        let sges = [b.mr.sge(1, 3), b.mr.sge(100, 0), b.mr.sge(11, 5)];
        let op = WrOp::Atomic { va: TO.0, rkey: TO.1, op: AtomicOp::FetchAdd(1) };
        b.post_sges(1, op, &sges, SendFlags::SIGNALED).unwrap();
        b.expect(&[fetch_add(SQ, TO, 1)]);
        b.exchange(&[atomic_ack(SQ, 1, 0x1122_3344_5566_7788)], &[]);
        b.sends(&[ok(1, WcOpcode::FetchAdd, 8)]);
        let got = [b.mr.read(1, 3), b.mr.read(11, 5)].concat();
        assert_eq!(got, 0x1122_3344_5566_7788u64.to_ne_bytes());
        assert_eq!(b.mr.read(4, 1), [urxe_test_support::engine::pattern(4)]);
    }

    sges_are_gathered_into_one_message => "req.sges" {
        let mut b = Bench::new();
        let sges = [b.mr.sge(1000, 255), b.mr.sge(5, 0), b.mr.sge(3000, 2), b.mr.sge(500, 300)];
        let d = [b.mr.read(1000, 255), b.mr.read(3000, 2), b.mr.read(500, 300)].concat();
        b.post_sges(1, WrOp::Send, &sges, SendFlags::SIGNALED).unwrap();
        b.expect(&message(256, &d, send, SQ));
        b.exchange(&[ack(SQ + 2, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 557)]);
    }

    inline_data_is_copied_when_posted => "req.inline" {
        let mut b = Bench::new();
        let mut d = vec![5u8; 600];
        fn wr(d: &[u8]) -> SendWr<'_> {
            SendWr::new(1, WrOp::Send, &[]).inline(d)
        }
        b.post_on(0, &wr(&d)).unwrap();
        d.fill(6);
        b.post_on(0, &wr(&d[..3])).unwrap();
        let mut all = message(256, &[5; 600], send, SQ);
        all.push(send(Only, SQ + 3, &[6; 3]));
        b.expect(&all);
        // The retransmission uses the copy too.
        b.exchange(&[nak(SQ + 1, 0, urxe::wire::NakCode::PsnSequenceError)], &all[1..]);
        b.exchange(&[ack(SQ + 3, 2)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 600), ok(1, WcOpcode::Send, 3)]);
        let long = vec![0; 601];
        assert_eq!(b.post_on(0, &wr(&long)), Err(PostError::InlineTooLong { got: 601, max: 600 }));
        let mut read = wr(&[]);
        read.op = WrOp::Read { va: 0, rkey: RKey(0) };
        let err = b.post_on(0, &read).unwrap_err();
        assert_eq!(err, PostError::InlineNotAllowed(WcOpcode::RdmaRead));
    }

    solicited_event_is_set_on_last_packet_of_sends_and_writes_with_immediate => "req.solicited" {
        let mut b = Bench::new();
        let flags = SendFlags { solicited: true, ..SendFlags::SIGNALED };
        let (va, rkey) = TO;
        let (long, short) = ([b.mr.sge(0, 300)], [b.mr.sge(0, 4)]);
        let d = b.mr.read(0, 300);
        b.post_sges(1, WrOp::Send, &long, flags).unwrap();
        b.post_sges(2, WrOp::Write { va, rkey }, &short, flags).unwrap();
        b.post_sges(3, WrOp::WriteWithImm { va, rkey, imm: 1 }, &short, flags).unwrap();
        b.expect(&[
            send(First, SQ, &d[..256]),
            send(Last, SQ + 1, &d[256..]).solicited(),
            write(Only, SQ + 2, (va, rkey, 4), &d[..4]),
            write_imm(Only, SQ + 3, (va, rkey, 4), &d[..4], 1).solicited(),
        ]);
        b.exchange(&[ack(SQ + 3, 3)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 300), ok(2, WcOpcode::RdmaWrite, 4), ok(3, WcOpcode::RdmaWrite, 4)]);
    }

    unsignaled_requests_raise_no_completion => "req.unsignaled" {
        let mut b = Bench::new();
        let sge = [b.mr.sge(0, 1)];
        for i in 0..64 {
            b.post_sges(i, WrOp::Send, &sge, SendFlags::default()).unwrap();
        }
        assert_eq!(b.post_sges(9, WrOp::Send, &sge, SendFlags::default()), Err(PostError::QueueFull(64)));
        assert_eq!(b.sent().len(), 64);
        b.exchange(&[ack(SQ + 62, 63)], &[]);
        b.sends(&[]);
        // Their slots in the send queue are free again.
        b.post(100, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 1);
        b.exchange(&[ack(SQ + 64, 65)], &[]);
        b.sends(&[ok(100, WcOpcode::Send, 1)]);
        // A QP with `signal_all` signals every request.
        let mut b = Bench::with(|s| s.signal_all = true);
        b.post_sges(1, WrOp::Send, &sge, SendFlags::default()).unwrap();
        assert_eq!(b.sent().len(), 1);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
    }

    fenced_request_waits_for_reads_and_atomics => "req.fence" {
        let mut b = Bench::new();
        let (va, rkey) = TO;
        let sge = [b.mr.sge(0, 1)];
        let d = b.mr.read(0, 1);
        b.post(1, WrOp::Read { va, rkey }, 100, 4);
        b.post(2, WrOp::Atomic { va, rkey, op: AtomicOp::FetchAdd(1) }, 104, 8);
        b.post_sges(3, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        let fenced = SendFlags { fence: true, ..SendFlags::SIGNALED };
        b.post_sges(4, WrOp::Send, &sge, fenced).unwrap();
        b.post_sges(5, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        b.expect(&[read(SQ, (va, rkey, 4)), fetch_add(SQ + 1, TO, 1), send(Only, SQ + 2, &d)]);
        b.exchange(&[resp(Only, SQ, 1, &[1; 4])], &[]);
        // SENDs before the fence need not be complete.
        b.exchange(&[atomic_ack(SQ + 1, 2, 0)], &[send(Only, SQ + 3, &d), send(Only, SQ + 4, &d)]);
        b.exchange(&[ack(SQ + 4, 5)], &[]);
        b.sends(&[
            ok(1, WcOpcode::RdmaRead, 4),
            ok(2, WcOpcode::FetchAdd, 8),
            ok(3, WcOpcode::Send, 1),
            ok(4, WcOpcode::Send, 1),
            ok(5, WcOpcode::Send, 1),
        ]);
    }

    reads_and_atomics_in_flight_are_limited_to_max_rd_atomic => "req.depth" {
        let mut b = Bench::with(|s| s.max_rd = 2);
        let (va, rkey) = TO;
        b.post(1, WrOp::Read { va, rkey }, 0, 300);
        b.post(2, WrOp::Atomic { va, rkey, op: AtomicOp::FetchAdd(1) }, 304, 8);
        b.post(3, WrOp::Read { va, rkey }, 312, 8);
        b.post(4, WrOp::Send, 0, 1);
        b.expect(&[read(SQ, (va, rkey, 300)), fetch_add(SQ + 2, TO, 1)]);
        b.exchange(&[resp(First, SQ, 1, &[1; 256])], &[]);
        let d = b.mr.read(0, 1);
        b.exchange(
            &[resp(Last, SQ + 1, 1, &[1; 44])],
            &[read(SQ + 3, (va, rkey, 8)), send(Only, SQ + 4, &d)],
        );
        b.sends(&[ok(1, WcOpcode::RdmaRead, 300)]);
        b.exchange(&[atomic_ack(SQ + 2, 2, 9), resp(Only, SQ + 3, 3, &[1; 8]), ack(SQ + 4, 4)], &[]);
        b.sends(&[ok(2, WcOpcode::FetchAdd, 8), ok(3, WcOpcode::RdmaRead, 8), ok(4, WcOpcode::Send, 1)]);
        // Without READ resources, READs are refused when they are posted.
        let mut b = Bench::with(|s| s.max_rd = 0);
        let sge = [b.mr.sge(0, 8)];
        let err = b.post_sges(1, WrOp::Read { va, rkey }, &sge, SendFlags::SIGNALED);
        assert_eq!(err, Err(PostError::NoReadResources));
    }

    long_read_is_split_into_several_requests => "req.chunks" {
        let mut b = Bench::with(|s| s.tuning.read_chunk = 512);
        let (va, rkey) = TO;
        b.post(1, WrOp::Read { va, rkey }, 0, 1100);
        b.post(2, WrOp::Read { va, rkey }, 2000, 600);
        b.expect(&[
            read(SQ, (va, rkey, 512)),
            read(SQ + 2, (va + 512, rkey, 512)),
            read(SQ + 4, (va + 1024, rkey, 76)),
            read(SQ + 5, (va, rkey, 512)),
        ]);
        let d: Vec<u8> = (0..1100).map(|i| (i / 5) as u8).collect();
        let parts: Vec<_> = [0..512, 512..1024, 1024..1100]
            .into_iter()
            .enumerate()
            .flat_map(|(i, r)| message(256, &d[r], |p, n, d| resp(p, n, 1 + i as u32, d), SQ + 2 * i as u32))
            .collect();
        b.exchange(&parts[..2], &[read(SQ + 7, (va + 512, rkey, 88))]);
        b.exchange(&parts[2..], &[]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 1100)]);
        assert_eq!(b.mr.read(0, 1100), d);
        let rest = [
            resp(First, SQ + 5, 4, &[1; 256]),
            resp(Last, SQ + 6, 4, &[2; 256]),
            resp(Only, SQ + 7, 5, &[3; 88]),
        ];
        b.exchange(&rest, &[]);
        b.sends(&[ok(2, WcOpcode::RdmaRead, 600)]);
    }

    read_is_retransmitted_only_from_its_first_lost_response => "req.chunks" {
        let mut b = Bench::with(|s| s.tuning.read_chunk = 512);
        let (va, rkey) = TO;
        b.post(1, WrOp::Read { va, rkey }, 0, 1024);
        b.expect(&[read(SQ, (va, rkey, 512)), read(SQ + 2, (va + 512, rkey, 512))]);
        // The second response of the first part is lost. The responder remembers two requests, so a
        // retransmitted request that spanned both parts would match neither of them.
        b.exchange(
            &[resp(First, SQ, 1, &[1; 256]), resp(First, SQ + 2, 2, &[3; 256])],
            &[read(SQ + 1, (va + 256, rkey, 256)), read(SQ + 2, (va + 512, rkey, 512))],
        );
        b.exchange(
            &[
                resp(Only, SQ + 1, 1, &[2; 256]),
                resp(First, SQ + 2, 2, &[3; 256]),
                resp(Last, SQ + 3, 2, &[4; 256]),
            ],
            &[],
        );
        b.sends(&[ok(1, WcOpcode::RdmaRead, 1024)]);
        assert_eq!(b.mr.read(0, 1024), [[1u8; 256], [2; 256], [3; 256], [4; 256]].concat());
    }

    receive_queue_slot_is_freed_when_message_completes => "req.post" {
        let mut b = Bench::new();
        for i in 0..64 {
            b.recv(i, 0, 300);
        }
        let full = Err(PostError::QueueFull(64));
        assert_eq!(b.recv_sges(64, &[]), full);
        b.exchange(&[send(First, RQ, &[1; 256])], &[]);
        assert_eq!(b.recv_sges(64, &[]), full);
        b.exchange(&[send(Last, RQ + 1, &[1; 44])], &[ack(RQ + 1, 1)]);
        b.recvs(&[ok(0, WcOpcode::Recv, 300)]);
        assert_eq!((b.recv_sges(64, &[]), b.recv_sges(65, &[])), (Ok(()), full));
    }

    posting_a_work_request_with_invalid_length_or_too_many_sges_fails => "req.post" {
        let mut b = Bench::new();
        let (va, rkey) = TO;
        let huge = [b.mr.sge(0, 1 << 31), b.mr.sge(0, 1)];
        let err = b.post_sges(1, WrOp::Send, &huge, SendFlags::SIGNALED);
        assert_eq!(err, Err(PostError::TooLong((1 << 31) + 1)));
        let op = WrOp::Atomic { va, rkey, op: AtomicOp::FetchAdd(1) };
        let seven = [b.mr.sge(0, 7)];
        assert_eq!(b.post_sges(1, op, &seven, SendFlags::SIGNALED), Err(PostError::AtomicLength(7)));
        let five = [b.mr.sge(0, 1); 5];
        let err = Err(PostError::TooManySges { got: 5, max: 4 });
        assert_eq!(b.post_sges(1, WrOp::Send, &five, SendFlags::SIGNALED), err);
        assert_eq!(b.recv_sges(1, &five), err);
        for i in 0..64 {
            b.recv(i, 0, 1);
        }
        assert_eq!(b.recv_sges(65, &[]), Err(PostError::QueueFull(64)));
        // The rejected work requests have no effect on later ones.
        b.post(2, WrOp::Send, 0, 1);
        let d = b.mr.read(0, 1);
        b.expect(&[send(Only, SQ, &d)]);
        b.exchange(&[ack(SQ, 1)], &[]);
        b.sends(&[ok(2, WcOpcode::Send, 1)]);
    }
}
