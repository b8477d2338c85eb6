//! Loss recovery tests: the decision taken on each event, without a requester.

use super::*;
use crate::transport::connection::Connection;
use crate::transport::{QpInit, Quirks};
use crate::wire::{AckTimeout, Qpn};

const MS: Duration = Duration::from_millis(1);

fn conn() -> Connection {
    let init = QpInit { quirks: Quirks { tail_loss_probes: true, ..Quirks::STRICT }, ..QpInit::rc() };
    let mut conn = Connection::new(&init, Qpn::new(2));
    (conn.attr.retry_cnt, conn.attr.rnr_retry, conn.attr.timeout) = (2, 1, AckTimeout::new(14));
    conn
}

fn flight(snd_una: u32, snd_nxt: u32, snd_max: u32) -> Flight {
    Flight { snd_una: Psn::new(snd_una), snd_nxt: Psn::new(snd_nxt), snd_max: Psn::new(snd_max) }
}

/// Returns the loss recovery state of a requester with one RTT sample and packets 1 to 9 in flight, one per
/// work request, the last with AckReq.
fn in_flight(now: Instant, conn: &Connection) -> Recovery {
    let (mut recovery, tuning) = (Recovery::new(conn), Tuning::default());
    recovery.on_sent_with_ack_req(Psn::new(0), Psn::new(0), conn, now - MS, &tuning);
    recovery.on_progress(&flight(1, 1, 1), 1, conn, now, &tuning);
    (1..9).for_each(|_| recovery.on_sent_without_ack_req(conn, now, &tuning));
    recovery.on_sent_with_ack_req(Psn::new(9), Psn::new(9), conn, now, &tuning);
    recovery
}

#[test]
fn retries_are_used_up_by_losses_and_restored_by_progress() {
    let (conn, now, tuning) = (conn(), Instant(1 << 40), Tuning::default());
    let mut recovery = in_flight(now, &conn);
    assert_eq!(recovery.on_loss(Loss::OnPath, &conn), Action::GoBackN);
    recovery.on_progress(&flight(2, 2, 10), 2, &conn, now, &tuning);
    assert_eq!(
        [recovery.on_loss(Loss::OnPath, &conn), recovery.on_loss(Loss::OnPath, &conn)],
        [Action::GoBackN; 2]
    );
    assert_eq!(recovery.on_loss(Loss::OnPath, &conn), Action::Fail(WcStatus::RetryExcErr));
}

#[test]
fn path_fails_when_retries_are_exhausted_if_an_alternate_path_is_armed() {
    let (mut conn, now) = (conn(), Instant(1 << 40));
    let mut recovery = in_flight(now, &conn);
    (conn.attr.retry_cnt, conn.migration) = (0, MigrationState::Armed);
    assert!(recovery.round_trip().is_some());
    recovery.on_new_path(&conn);
    assert!(recovery.round_trip().is_none(), "that of the old path");
    assert_eq!(recovery.on_loss(Loss::OnPath, &conn), Action::FailPath);
}

#[test]
fn sequence_nak_counts_as_a_loss_unless_its_packet_is_next_to_send() {
    let (conn, now) = (conn(), Instant(1 << 40));
    let mut recovery = in_flight(now, &conn);
    assert_eq!(recovery.on_sequence_nak(Psn::new(3), false, &flight(3, 10, 10)), Some(Loss::OnPath));
    assert_eq!(recovery.on_sequence_nak(Psn::new(3), false, &flight(3, 3, 10)), None);
}

#[test]
fn missing_response_counts_as_a_loss_only_once() {
    let (conn, now, tuning) = (conn(), Instant(1 << 40), Tuning::default());
    let mut recovery = in_flight(now, &conn);
    assert_eq!(recovery.on_implied_nak(&flight(3, 10, 10)), Some(Loss::OnPath));
    assert_eq!(recovery.on_implied_nak(&flight(3, 10, 10)), None);
    recovery.on_progress(&flight(4, 10, 10), 4, &conn, now, &tuning);
    assert_eq!(recovery.on_implied_nak(&flight(4, 10, 10)), Some(Loss::OnPath));
}

#[test]
fn go_back_n_retransmits_up_to_snd_max() {
    let (conn, now, tuning) = (conn(), Instant(1 << 40), Tuning::default());
    let mut recovery = in_flight(now, &conn);
    assert_eq!((recovery.state, recovery.is_retransmission(Psn::new(5))), (State::Open, false));
    recovery.on_go_back_n(&flight(3, 10, 10));
    assert_eq!(recovery.state, State::Recovering { end: Psn::new(10) });
    assert!(recovery.is_retransmission(Psn::new(9)) && !recovery.is_retransmission(Psn::new(10)));
    recovery.on_progress(&flight(9, 10, 12), 9, &conn, now, &tuning);
    assert_eq!(recovery.state, State::Recovering { end: Psn::new(10) });
    recovery.on_progress(&flight(10, 12, 12), 10, &conn, now, &tuning);
    assert_eq!(recovery.state, State::Open);
}

#[test]
fn rnr_nak_starts_a_wait_after_which_only_its_work_request_is_sent() {
    let (conn, now, tuning) = (conn(), Instant(1 << 40), Tuning::default());
    let (psn, mut recovery) = (Psn::new(3), in_flight(now, &conn));
    assert_eq!(recovery.on_rnr_nak(psn, 3, 5 * MS, &conn, now), Action::GoBackN);
    recovery.on_go_back_n(&flight(3, 10, 10));
    assert!(recovery.is_in_rnr_wait() && recovery.is_behind_rnr_nak(3));
    assert_eq!(recovery.next_deadline(), Some(now + 5 * MS));
    // A second RNR NAK is a duplicate of the first: it neither costs a retry nor prolongs the wait.
    assert_eq!(recovery.on_rnr_nak(psn, 3, 9 * MS, &conn, now + MS), Action::Continue);
    assert!(!recovery.take_expired(Timer::RnrWait, now + 4 * MS));
    assert!(recovery.take_expired(Timer::RnrWait, now + 5 * MS));
    recovery.on_rnr_wait_over(&flight(3, 3, 10), 3);
    assert_eq!(recovery.state, State::RnrProbing { end: Psn::new(10), wqe: 3 });
    assert!(!recovery.is_behind_rnr_nak(3) && recovery.is_behind_rnr_nak(4));
    // Packets that the peer dropped behind it are lost, but not on the path.
    assert_eq!(recovery.on_sequence_nak(psn, false, &flight(3, 4, 10)), Some(Loss::BehindNak));
    // The only RNR retry is used up.
    let exhausted = Action::Fail(WcStatus::RnrRetryExcErr);
    assert_eq!(recovery.on_rnr_nak(psn, 3, 5 * MS, &conn, now + 6 * MS), exhausted);
    recovery.on_progress(&flight(4, 4, 10), 4, &conn, now, &tuning);
    assert_eq!(recovery.state, State::Recovering { end: Psn::new(10) });
    assert!(!recovery.is_behind_rnr_nak(4));
}

#[test]
fn rnr_retry_count_of_7_is_infinite() {
    let (mut conn, now) = (conn(), Instant(1 << 40));
    conn.attr.rnr_retry = 7;
    let (psn, mut recovery) = (Psn::new(3), in_flight(now, &conn));
    for _ in 0..100 {
        assert_eq!(recovery.on_rnr_nak(psn, 3, MS, &conn, now), Action::GoBackN);
        recovery.on_rnr_wait_over(&flight(3, 3, 10), 3);
    }
}

#[test]
fn rnr_nak_restores_the_transport_retries() {
    let (conn, now) = (conn(), Instant(1 << 40));
    let mut recovery = in_flight(now, &conn);
    assert_eq!(
        [recovery.on_loss(Loss::OnPath, &conn), recovery.on_loss(Loss::OnPath, &conn)],
        [Action::GoBackN; 2]
    );
    assert_eq!(recovery.on_rnr_nak(Psn::new(3), 3, MS, &conn, now), Action::GoBackN);
    assert_eq!(recovery.on_loss(Loss::OnPath, &conn), Action::GoBackN);
}

#[test]
fn each_probe_timeout_schedules_a_probe_and_doubles_the_next_timeout() {
    let (conn, mut now, tuning) = (conn(), Instant(1 << 40), Tuning::default());
    let mut recovery = in_flight(now, &conn);
    let base = recovery.rtt.probe_timeout(&tuning).unwrap();
    for doublings in 0..12 {
        let timeout = base * (1 << doublings.min(10));
        assert!(!recovery.take_expired(Timer::ProbeTimeout, now + timeout - Duration::from_nanos(1)));
        now = now + timeout;
        assert!(recovery.take_expired(Timer::ProbeTimeout, now));
        assert_eq!(recovery.on_probe_timer(Timer::ProbeTimeout, Psn::new(1), true), Action::Continue);
        assert_eq!(recovery.state, State::Probing);
        assert_eq!(recovery.take_probe(now, &tuning), Some(Probe::Oldest));
    }
    recovery.on_progress(&flight(2, 10, 10), 2, &conn, now, &tuning);
    assert_eq!((recovery.state, recovery.prober.timeouts), (State::Open, 0));
}

#[test]
fn probe_timeout_causes_go_back_n_if_only_reads_are_in_flight() {
    let (conn, now) = (conn(), Instant(1 << 40));
    let mut recovery = in_flight(now, &conn);
    let local_ack = recovery.timers.earliest(&[Timer::LocalAck]);
    assert_eq!(recovery.on_probe_timer(Timer::ProbeTimeout, Psn::new(1), false), Action::GoBackN);
    recovery.on_go_back_n(&flight(1, 10, 10));
    assert_eq!((recovery.probe_due(), recovery.timers.earliest(&[Timer::LocalAck])), (None, local_ack));
}

#[test]
fn probe_timeout_behind_a_packet_retransmitted_alone_causes_go_back_n() {
    let (conn, mut now, tuning) = (conn(), Instant(1 << 40), Tuning::default());
    let mut recovery = in_flight(now, &conn);
    now = now + MS;
    let local_ack = now + conn.attr.timeout.duration().unwrap();
    assert_eq!(recovery.on_sequence_nak(Psn::new(3), true, &flight(3, 10, 10)), Some(Loss::Single));
    assert_eq!(recovery.on_loss(Loss::Single, &conn), Action::Repair);
    recovery.on_repair(&conn, now, &tuning);
    assert_eq!(recovery.timers.earliest(&[Timer::LocalAck]), Some(local_ack), "a retry has begun");
    assert_eq!(recovery.take_probe(now, &tuning), Some(Probe::Missing));
    recovery.on_progress(&flight(4, 10, 10), 4, &conn, now, &tuning);
    assert_eq!(recovery.on_probe_timer(Timer::ProbeTimeout, Psn::new(4), true), Action::GoBackN);
    recovery.on_go_back_n(&flight(4, 10, 10));
    // The next attempt waits for two losses.
    let loss = |recovery: &mut Recovery| recovery.on_sequence_nak(Psn::new(6), true, &flight(6, 10, 10));
    assert_eq!([(); 3].map(|()| loss(&mut recovery).unwrap()), [Loss::OnPath, Loss::OnPath, Loss::Single]);
}

#[test]
fn probe_of_a_packet_without_ackreq_is_scheduled_after_the_probe_interval() {
    let (conn, now, tuning) = (conn(), Instant(1 << 40), Tuning::default());
    let mut recovery = Recovery::new(&conn);
    recovery.on_sent_without_ack_req(&conn, now, &tuning);
    assert!(recovery.awaits_ack_request() && !recovery.awaits_ack());
    let silence = tuning.max_ack_silence;
    assert!(!recovery.is_ack_request_overdue(now) && recovery.is_ack_request_overdue(now + silence / 2));
    assert_eq!(recovery.next_deadline(), Some(now + silence));
    assert!(recovery.take_expired(Timer::AckSilence, now + silence));
    assert_eq!(recovery.on_probe_timer(Timer::AckSilence, Psn::new(1), true), Action::Continue);
    assert_eq!((recovery.state, recovery.prober.timeouts), (State::Open, 0));
    assert_eq!(recovery.take_probe(now + silence, &tuning), Some(Probe::Newest));
}

#[test]
fn local_ack_timeout_is_1_5_times_as_long_after_an_expiry() {
    let (conn, now, tuning) = (conn(), Instant(1 << 40), Tuning::default());
    let (timeout, mut recovery) = (conn.attr.timeout.duration().unwrap(), in_flight(now, &conn));
    let local_ack = |recovery: &Recovery| recovery.timers.earliest(&[Timer::LocalAck]);
    assert_eq!(local_ack(&recovery), Some(now + timeout));
    assert!(recovery.take_expired(Timer::LocalAck, now + timeout));
    assert_eq!(recovery.on_ack_timeout(), Loss::OnPath);
    assert_eq!(recovery.on_loss(Loss::OnPath, &conn), Action::GoBackN);
    recovery.on_go_back_n(&flight(1, 10, 10));
    recovery.on_sent_with_ack_req(Psn::new(1), Psn::new(1), &conn, now, &tuning);
    assert_eq!(local_ack(&recovery), Some(now + timeout * 3 / 2));
    recovery.on_progress(&flight(2, 2, 10), 2, &conn, now, &tuning);
    assert_eq!(local_ack(&recovery), Some(now + timeout));
}

#[test]
fn no_timer_is_armed_when_nothing_is_in_flight() {
    let (conn, now, tuning) = (conn(), Instant(1 << 40), Tuning::default());
    let mut recovery = in_flight(now, &conn);
    recovery.on_progress(&flight(10, 10, 10), 10, &conn, now, &tuning);
    assert_eq!(recovery.next_deadline(), None);
    let mut recovery = in_flight(now, &conn);
    recovery.stop();
    assert_eq!(recovery.next_deadline(), None);
}

#[test]
fn expired_timers_are_deferred_at_most_64_times_while_packets_arrive() {
    let mut deferral = TimerDeferral::default();
    assert!((0..64).all(|_| deferral.defers(true)));
    assert!(!deferral.defers(true) && deferral.defers(true) && !deferral.defers(false));
}
