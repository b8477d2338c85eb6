//! Conformance cases: congestion control, reaction point (annex A17.9.3).

use std::time::Duration;

use urxe::transport::{
    Congestion, CongestionConfig, CongestionParameter, PacingLimits, QpState, Rate, WcOpcode, WrOp,
};
use urxe::wire::{Flow, NakCode, Operation, Qpn};

use crate::bench::{Bench, RQ, SQ, ok};
use crate::pkt::*;

/// Time that a packet of 256 bytes (300 with its headers) takes at half of 100 Mbit/s, in microseconds.
const INTERVAL: u64 = 48;

/// Returns a bench on a link of 100 Mbit/s with DCQCN, whose rate does not change by itself.
fn dcqcn() -> Bench {
    use CongestionParameter::*;
    let still = [(RpgTimeReset, u32::MAX), (RpgByteReset, 0), (DceTcpRtt, 131_071)];
    controlled(still.into_iter().fold(Congestion::DCQCN_SIGCOMM15, |c, (p, value)| c.with(p, value).unwrap()))
}

/// Returns a bench on a link of 100 Mbit/s with a congestion control.
fn controlled(control: Congestion) -> Bench {
    Bench::with(|s| {
        s.tuning.congestion = CongestionConfig { control, line_rate: Rate::from_mbps(100) };
        s.tuning.pacing = PacingLimits::VIRTUAL_TIME;
        // No timeout within a case.
        s.timeout = 20;
    })
}

fn cnp() -> Pkt {
    send(Only, 0, &[0; 16]).opcode(0x81)
}

/// Advances the clock by `micros` microseconds in steps of one, and returns the packets sent.
fn sent_within(b: &mut Bench, micros: u64) -> Vec<Pkt> {
    let step = |b: &mut Bench| {
        b.advance(Duration::from_micros(1));
        b.sent()
    };
    (0..micros).flat_map(|_| step(b)).collect()
}

fn post_send(b: &mut Bench, packets: u32) {
    b.post(1, WrOp::Send, 0, 256 * packets);
}

/// Lets 5 µs pass in which nothing is sent, so that packets are sent off the limits of the intervals below.
fn pause(b: &mut Bench) {
    assert_eq!(sent_within(b, 5), []);
}

cases! {
    first_cnp_halves_the_rate_of_requests => "congestion.rate" {
        let mut b = dcqcn();
        b.exchange(&[cnp()], &[]);
        assert_eq!((b.count().rp_cnp_handled, b.count().rp_cnp_ignored), (1, 0));
        post_send(&mut b, 201);
        assert_eq!(b.sent().len(), 1);
        pause(&mut b);
        // No packet too many or too few, however long it takes.
        for n in 1..=20 {
            assert_eq!(sent_within(&mut b, 10 * INTERVAL).len(), 10, "in interval {n}");
        }
        b.exchange(&[ack(SQ + 200, 1)], &[]);
        b.sends(&[ok(1, WcOpcode::Send, 256 * 201)]);
    }

    cnp_during_a_message_halves_the_rate_again => "congestion.rate" {
        let mut b = dcqcn();
        b.exchange(&[cnp()], &[]);
        post_send(&mut b, 200);
        assert_eq!(b.sent().len() + sent_within(&mut b, 10 * INTERVAL).len(), 11);
        b.deliver(&[cnp()]);
        let n = sent_within(&mut b, 40 * INTERVAL).len();
        // α has been updated once: the cut is a little more or less than by half.
        assert!((19..=21).contains(&n), "{n} packets");
        b.set_state(QpState::Reset);
    }

    rate_recovers_by_the_timer => "congestion.rate" {
        let mut b = controlled(Congestion::DCQCN_SIGCOMM15);
        (0..20).for_each(|_| b.deliver(&[cnp()]));
        post_send(&mut b, 250);
        let first = b.sent().len() + sent_within(&mut b, 100).len();
        assert!(first <= 3, "{first} packets at the minimum rate");
        // Additive increase by 40 Mbit/s every 55 µs after five of them.
        let later = sent_within(&mut b, 1000).len();
        assert!((20..=42).contains(&later), "{later} packets");
        // At the speed of the link the pacer has no effect.
        b.advance(Duration::from_millis(20));
        assert_eq!(b.sent().len(), 250 - first - later);
        b.set_state(QpState::Reset);
    }

    cnp_reduces_the_rate_of_read_responses => "congestion.responses" {
        let mut b = dcqcn();
        b.exchange(&[cnp()], &[]);
        let from = b.remote(0, 256 * 101);
        b.deliver(&[read(RQ, from)]);
        assert_eq!(b.sent().len(), 1);
        pause(&mut b);
        assert_eq!(sent_within(&mut b, 40 * INTERVAL).len(), 40);
        // The acknowledgement of the peer's next request follows the responses, without a delay of its own.
        let to = b.remote(0, 1);
        b.deliver(&[write(Only, RQ + 101, to, &[1])]);
        let rest = sent_within(&mut b, 60 * INTERVAL);
        assert_eq!(rest.len(), 61);
        assert_eq!(rest[60].h.bth.opcode.row().operation, Operation::Acknowledge);
    }

    paced_requests_and_read_responses_take_turns => "congestion.responses" {
        let mut b = dcqcn();
        b.exchange(&[cnp()], &[]);
        let from = b.remote(0, 256 * 100);
        b.deliver(&[read(RQ, from)]);
        post_send(&mut b, 100);
        let mut sent = b.sent();
        sent.extend(sent_within(&mut b, 99 * INTERVAL + 5));
        let is_request = |p: &&Pkt| p.h.bth.opcode.row().operation.is_request();
        let requests = sent.iter().filter(is_request).count();
        assert_eq!(sent.len(), 100);
        assert!((49..=51).contains(&requests), "{requests} requests");
        b.set_state(QpState::Reset);
    }

    cnp_from_another_address_or_for_another_qp_is_dropped => "congestion.source" {
        let mut b = dcqcn();
        let flow = b.flow();
        let other = Flow { src: [10, 9, 9, 9].into(), ..flow };
        let mut h = cnp().h;
        h.bth.dest_qp = b.qpns[0];
        b.raw(&other, &urxe_test_support::engine::encode(&h, &[0; 16], &other));
        assert_eq!((b.count().rx_wrong_source, b.count().rp_cnp_handled), (1, 0));
        h.bth.dest_qp = Qpn::new(b.qpns[0].get() ^ 1);
        b.raw(&flow, &urxe_test_support::engine::encode(&h, &[0; 16], &flow));
        assert_eq!((b.count().rx_unknown_qp, b.count().rp_cnp_ignored), (1, 0));
        post_send(&mut b, 50);
        assert_eq!(b.sent().len(), 50);
        b.set_state(QpState::Reset);
    }

    congestion_control_of_a_connection_is_chosen_in_rtr => "congestion.source" {
        let mut b = Bench::with(|s| s.state = QpState::Rtr);
        b.nic.set_congestion(Congestion::DCQCN_CONNECTX);
        b.modify(0, b.attr(0, QpState::Rts)).unwrap();
        b.exchange(&[cnp()], &[]);
        assert_eq!((b.count().rp_cnp_handled, b.count().rp_cnp_ignored), (0, 1));
    }

    cnp_is_ignored_without_dcqcn => "congestion.source" {
        // The delay-based control begins with one packet.
        for (control, first) in [(Congestion::NONE, 50), (Congestion::LOSS_DRIVEN, 50), (Congestion::DELAY, 1)] {
            let mut b = controlled(control);
            b.exchange(&[cnp()], &[]);
            assert_eq!((b.count().rp_cnp_handled, b.count().rp_cnp_ignored), (0, 1), "{control}");
            post_send(&mut b, 50);
            assert_eq!(b.sent().len(), first, "{control}");
            b.set_state(QpState::Reset);
        }
    }

    window_without_congestion_control_does_not_depend_on_losses => "congestion.none" {
        let mut b = controlled(Congestion::NONE);
        for round in 0..3 {
            b.post(round, WrOp::Send, 0, 256 * 50);
            let first = SQ + 50 * round as u32;
            assert_eq!(b.sent().len(), 50);
            b.deliver(&[nak(first, round as u32, NakCode::PsnSequenceError)]);
            assert_eq!(b.sent().len(), 50);
            b.exchange(&[ack(first + 49, round as u32 + 1)], &[]);
            b.sends(&[ok(round, WcOpcode::Send, 256 * 50)]);
        }
    }
}
