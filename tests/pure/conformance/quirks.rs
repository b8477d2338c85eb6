//! Conformance cases: quirks of the personality `rxe`.

use urxe::nic::Personality;
use urxe::transport::{WcOpcode, WcStatus};
use urxe::wire::NakCode;

use crate::bench::{Bench, RQ, bad, ok};
use crate::pkt::*;

fn rxe() -> Bench {
    Bench::with(|s| s.quirks = Personality::RXE.quirks)
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

    each_personality_is_found_by_its_name => "quirks.rxe" {
        for p in Personality::ALL {
            assert_eq!(Personality::named(p.name), Some(p));
        }
        assert_eq!(Personality::named("efa"), None);
    }
}
