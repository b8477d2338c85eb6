//! Loss recovery of a requester: decides when it retransmits packets, and when it gives up.
//!
//! | Event                          | Function                        | Decision |
//! |--------------------------------|---------------------------------|----------|
//! | sequence error NAK             | [`Recovery::on_sequence_nak`]   | [`Loss`], unless the packet is the next one anyway |
//! | a response is missing          | [`Recovery::on_implied_nak`]    | [`Loss`], once per gap |
//! | local ACK timeout              | [`Recovery::on_ack_timeout`]    | [`Loss`] |
//! | [`Loss`]                       | [`Recovery::on_loss`]           | [`Action`]: go-back-N or one packet while retries are left |
//! | RNR NAK                        | [`Recovery::on_rnr_nak`]        | [`Action`]: go-back-N after the RNR wait |
//! | probe timeout, or ACK silence  | [`Recovery::on_probe_timer`]    | a [`Probe`]; go-back-N if only READs and atomics are in flight, or behind a packet retransmitted alone |
//! | acknowledgement                | [`Recovery::on_progress`]       | restores the retries and restarts the timers |
//! | the path has failed            | [`Recovery::on_new_path`]       | restores the retries before a go-back-N |
//!
//! The [requester](super::requester) carries out the decisions ([`Recovery`] knows no work requests and
//! builds no packets). Timers are in a [`TimerTable`], the round-trip time in an [`RttEstimator`] (RFC 6298),
//! the retry counters in [`Retries`]. How much may be in flight is decided by
//! [`congestion`](super::congestion).

mod deferral;
mod probe;
mod repair;
mod retries;
mod rtt;
#[cfg(test)]
mod tests;
mod timers;

use std::time::Duration;

pub use deferral::TimerDeferral;
pub(super) use probe::Probe;
use probe::Prober;
use repair::Repair;
use retries::Retries;
use rtt::RttEstimator;
pub(super) use timers::Timer;
use timers::{TimerTable, ack_silence};

use super::congestion::RoundTrip;
use super::connection::Connection;
use super::{Instant, MigrationState, Tuning, WcStatus};
use crate::wire::Psn;

/// Loss recovery state. PSNs before `end` have been sent before, so sending them is a retransmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    /// Nothing in flight is known to be lost.
    #[default]
    Open,
    /// A probe timeout has expired, and no acknowledgement has arrived since.
    Probing,
    /// Go-back-N: the packets before `end` are being retransmitted.
    Recovering { end: Psn },
    /// The work request `wqe` was RNR-NAKed; nothing is sent until [`Timer::RnrWait`] expires.
    RnrWait { end: Psn, wqe: u64 },
    /// The RNR wait is over; nothing behind the work request `wqe` is sent until that one is acknowledged.
    RnrProbing { end: Psn, wqe: u64 },
}

/// PSNs that delimit the packets in flight and those to be sent again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flight {
    /// Oldest unacknowledged PSN.
    pub snd_una: Psn,
    /// Next PSN to send, in the range from `snd_una` to `snd_max`.
    pub snd_nxt: Psn,
    /// Highest PSN sent, plus one.
    pub snd_max: Psn,
}

impl Flight {
    /// Reports whether the oldest unacknowledged packet is also the next to send. If so, another indication
    /// of its loss carries no new information and costs no retry.
    fn is_at_snd_una(&self) -> bool {
        self.snd_nxt == self.snd_una
    }
}

/// Packet loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// A packet was lost on the path, which reduces the congestion window.
    OnPath,
    /// Like [`OnPath`](Self::OnPath), and the peer presumably keeps the packets behind the lost one.
    Single,
    /// The peer dropped the packets behind one that it NAKed or RNR-NAKed, which does not indicate
    /// congestion.
    BehindNak,
}

/// Recovery action for the requester to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing to do.
    Continue,
    /// Retransmits everything from `snd_una` on.
    GoBackN,
    /// Retransmits the packet `snd_una`.
    Repair,
    /// Migrates to the alternate path, because the retries are used up.
    FailPath,
    /// Completes the oldest work request with the given status, because the retries are used up.
    Fail(WcStatus),
}

/// Loss recovery state of one requester.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    state: State,
    timers: TimerTable,
    retries: Retries,
    prober: Prober,
    repair: Repair,
    rtt: RttEstimator,
    /// Time of the last advance of `snd_una`.
    pub last_progress: Option<Instant>,
    /// PSN of the packet most recently RNR-NAKed by the peer.
    rnr_nakked: Option<Psn>,
    /// PSN of a missing response that has already triggered a retransmission.
    missing_response: Option<Psn>,
    /// Whether tail loss probes are sent. Without them, only packets with AckReq start the local ACK timer.
    sends_probes: bool,
    /// Last PSN that the newest packet sent with AckReq covers.
    ack_requested: Psn,
}

impl Recovery {
    /// Creates the loss recovery state of a connection that enters RTS.
    pub fn new(conn: &Connection) -> Recovery {
        Recovery {
            retries: Retries::new(conn),
            sends_probes: conn.quirks().tail_loss_probes,
            ack_requested: conn.attr.sq_psn.prev(),
            ..Recovery::default()
        }
    }

    /// Stops all timers and discards a pending probe, because nothing is in flight any longer.
    pub fn stop(&mut self) {
        self.state = State::Open;
        self.timers = TimerTable::default();
        self.prober = Prober::default();
        self.missing_response = None;
        self.rtt.discard_sample();
    }

    /// Records packets sent without AckReq, and starts the ACK silence timer if it is not running.
    #[inline]
    pub fn on_sent_without_ack_req(&mut self, conn: &Connection, now: Instant, tuning: &Tuning) {
        let ack_timer_runs = !self.sends_probes || self.timers.is_armed(Timer::LocalAck);
        if !self.awaits_ack_request() || !ack_timer_runs {
            self.start_unrequested_timers(conn, now, tuning);
        }
    }

    fn start_unrequested_timers(&mut self, conn: &Connection, now: Instant, tuning: &Tuning) {
        if !self.awaits_ack_request() {
            let silence = match self.sends_probes {
                true => ack_silence(conn.attr.timeout, tuning),
                // Sending may stop before the packet that is to carry AckReq, in SQD for example.
                false => self.ack_timeout(conn, tuning).unwrap_or(tuning.max_ack_silence),
            };
            self.prober.overdue = Some(now + silence / 2);
            self.timers.set(Timer::AckSilence, Some(now + silence));
        }
        if self.sends_probes {
            self.start_ack_timer(conn, now, tuning);
        }
    }

    /// Records a packet sent with AckReq, and starts the probe timer if it is not running. `last` is the last
    /// PSN that the packet covers: that of the response, for a READ. Only the first transmission of a
    /// packet is timed.
    #[inline]
    pub fn on_sent_with_ack_req(
        &mut self,
        psn: Psn,
        last: Psn,
        conn: &Connection,
        now: Instant,
        tuning: &Tuning,
    ) {
        self.on_ack_requested(now, tuning);
        self.ack_requested = last;
        if !self.is_retransmission(psn) {
            self.rtt.on_sent(psn, now);
        }
        self.start_ack_timer(conn, now, tuning);
    }

    /// Records the transmission of a packet or probe with AckReq.
    fn on_ack_requested(&mut self, now: Instant, tuning: &Tuning) {
        self.timers.stop(Timer::AckSilence);
        (self.prober.overdue, self.prober.due) = (None, None);
        if self.sends_probes && !self.timers.is_armed(Timer::ProbeTimeout) {
            self.restart_probe_timer(now, tuning);
        }
    }

    /// Restarts the probe timer, or stops it if there is no RTT sample yet.
    fn restart_probe_timer(&mut self, now: Instant, tuning: &Tuning) {
        let timeout = self.rtt.probe_timeout(tuning);
        self.timers.set(Timer::ProbeTimeout, timeout.map(|timeout| now + self.prober.back_off(timeout)));
    }

    /// Starts the local ACK timer if it is not running. Called only after a packet was sent, so never during
    /// an RNR wait.
    fn start_ack_timer(&mut self, conn: &Connection, now: Instant, tuning: &Tuning) {
        if !self.timers.is_armed(Timer::LocalAck) {
            self.restart_ack_timer(conn, now, tuning);
        }
    }

    fn restart_ack_timer(&mut self, conn: &Connection, now: Instant, tuning: &Tuning) {
        let timeout = self.ack_timeout(conn, tuning);
        self.timers.set(Timer::LocalAck, timeout.map(|timeout| now + timeout));
    }

    /// Returns the local ACK timeout with backoff; `None` if it is infinite.
    pub fn ack_timeout(&self, conn: &Connection, tuning: &Tuning) -> Option<Duration> {
        conn.attr.timeout.duration().map(|t| self.retries.back_off(t.max(tuning.min_timeout)))
    }

    /// Returns the time at which the local ACK timer was started, if it is running: that of the last advance
    /// of `snd_una` or of the first packet sent since.
    pub fn ack_timer_start(&self, conn: &Connection, tuning: &Tuning) -> Option<Instant> {
        Some(self.timers.earliest(&[Timer::LocalAck])? - self.ack_timeout(conn, tuning)?)
    }

    /// Handles an advance of `snd_una`. `oldest_wqe` is the oldest incomplete work request.
    pub fn on_progress(
        &mut self,
        flight: &Flight,
        oldest_wqe: u64,
        conn: &Connection,
        now: Instant,
        tuning: &Tuning,
    ) {
        self.missing_response = None;
        self.last_progress = Some(now);
        self.repair.on_progress(flight.snd_una);
        self.rtt.on_ack(flight.snd_una, now);
        self.state = self.state.on_progress(flight.snd_una, oldest_wqe);
        if flight.is_at_snd_una() {
            self.prober = Prober::default();
            self.timers.stop(Timer::ProbeTimeout);
            self.timers.stop(Timer::AckSilence);
        } else {
            self.prober.timeouts = 0;
            if self.timers.is_armed(Timer::ProbeTimeout) {
                self.restart_probe_timer(now, tuning);
            }
        }
        self.retries = Retries::new(conn);
        let awaits_ack = self.sends_probes || !self.ack_requested.is_before(flight.snd_una);
        if flight.snd_una.is_before(flight.snd_max) && awaits_ack && !self.is_in_rnr_wait() {
            self.restart_ack_timer(conn, now, tuning);
        } else {
            self.timers.stop(Timer::LocalAck);
        }
    }

    /// Decides whether a sequence error NAK for `psn`, the oldest unacknowledged PSN, is treated as a loss.
    /// `is_repairable` tells whether this packet may be retransmitted alone.
    pub fn on_sequence_nak(&mut self, psn: Psn, is_repairable: bool, flight: &Flight) -> Option<Loss> {
        // Already going back to this PSN: rxe, for example, sends this NAK after an RNR NAK for the packets
        // behind it.
        if flight.is_at_snd_una() || self.prober.due == Some(Probe::Missing) {
            return None;
        }
        if self.rnr_nakked == Some(psn) {
            return Some(Loss::BehindNak);
        }
        let is_behind_nak = self.repair.has_failed(psn);
        let is_behind_rnr_nak = matches!(self.state, State::RnrWait { .. } | State::RnrProbing { .. });
        Some(match is_repairable && !is_behind_rnr_nak && self.repair.attempts(psn) {
            true => Loss::Single,
            false if is_behind_nak => Loss::BehindNak,
            false => Loss::OnPath,
        })
    }

    /// Decides whether a missing response, revealed by a later response (implied NAK, IBA 9.7.5.2.8), is
    /// treated as a loss. Only the first response after a gap triggers a retransmission; the responses behind
    /// it do not.
    pub fn on_implied_nak(&mut self, flight: &Flight) -> Option<Loss> {
        if flight.is_at_snd_una() || self.missing_response == Some(flight.snd_una) {
            return None;
        }
        self.missing_response = Some(flight.snd_una);
        Some(Loss::OnPath)
    }

    /// Handles the expiry of the local ACK timer, which is treated as a loss on the path.
    pub fn on_ack_timeout(&mut self) -> Loss {
        self.retries.ack_timeouts += 1;
        Loss::OnPath
    }

    /// Decides how to recover from a loss: by retransmission if retries are left, otherwise by migrating to
    /// the alternate path if one is armed, otherwise by failing with RETRY_EXC_ERR.
    pub fn on_loss(&mut self, loss: Loss, conn: &Connection) -> Action {
        if self.retries.take() {
            if loss == Loss::Single {
                return Action::Repair;
            }
            self.timers.stop(Timer::LocalAck);
            return Action::GoBackN;
        }
        match conn.migration {
            MigrationState::Armed => Action::FailPath,
            _ => Action::Fail(WcStatus::RetryExcErr),
        }
    }

    /// Handles an RNR NAK for `psn`, the oldest unacknowledged PSN, which belongs to the work request `wqe`.
    /// Starts the RNR wait if RNR retries are left.
    pub fn on_rnr_nak(
        &mut self,
        psn: Psn,
        wqe: u64,
        wait: Duration,
        conn: &Connection,
        now: Instant,
    ) -> Action {
        // Nothing is sent during the RNR wait, so a second RNR NAK is a duplicate of the first.
        if self.is_in_rnr_wait() {
            return Action::Continue;
        }
        if !self.retries.take_rnr(conn) {
            return Action::Fail(WcStatus::RnrRetryExcErr);
        }
        // Only timeouts and losses use up the transport retries. rxe sends a sequence error NAK for each
        // packet train behind an RNR NAK, so with a short RNR timer the retries would run out during the RNR
        // wait.
        self.retries.on_arrival(conn);
        self.rnr_nakked = Some(psn);
        self.state = State::RnrWait { end: psn, wqe };
        self.timers.stop(Timer::LocalAck);
        self.timers.set(Timer::RnrWait, Some(now + wait));
        Action::GoBackN
    }

    /// Handles the end of the RNR wait.
    pub fn on_rnr_wait_over(&mut self, flight: &Flight, oldest_wqe: u64) {
        if let State::RnrWait { end, wqe } = self.state {
            self.state = State::RnrProbing { end, wqe }.on_progress(flight.snd_una, oldest_wqe);
        }
    }

    /// Handles the expiry of the probe timer, which increases the backoff and schedules the oldest packet as
    /// a probe, or of the ACK silence timer, which schedules the newest packet. If `has_newest` is false,
    /// only READs and atomics are in flight, which cannot serve as [`Probe::Newest`]. Everything is then
    /// retransmitted, because rxe forgets the parts of a READ before the one requested last. This go-back
    /// neither costs a retry nor postpones the local ACK timeout. The same happens if the packet before
    /// `oldest`, the oldest in flight, was retransmitted alone: the peer has kept nothing behind it.
    pub fn on_probe_timer(&mut self, timer: Timer, oldest: Psn, has_newest: bool) -> Action {
        let is_timeout = timer == Timer::ProbeTimeout;
        self.prober.timeouts += u32::from(is_timeout);
        if !has_newest || is_timeout && self.repair.count_failure(oldest) {
            return Action::GoBackN;
        }
        if is_timeout && self.state == State::Open {
            self.state = State::Probing;
        }
        self.prober.due = Some(if is_timeout { Probe::Oldest } else { Probe::Newest });
        Action::Continue
    }

    /// Restores the retries for a new path, on which everything in flight will be retransmitted, and forgets
    /// the round-trip times of the old one.
    pub fn on_new_path(&mut self, conn: &Connection) {
        self.retries = Retries::new(conn);
        self.rtt = RttEstimator::default();
        self.timers.stop(Timer::LocalAck);
    }

    /// Starts the retransmission of everything in flight (go-back-N): stops the probe and ACK silence timers,
    /// keeping the backoff, and discards the running RTT measurement (Karn's algorithm).
    pub fn on_go_back_n(&mut self, flight: &Flight) {
        let end = flight.snd_max;
        self.state = match self.state {
            State::Open | State::Probing | State::Recovering { .. } => State::Recovering { end },
            State::RnrWait { wqe, .. } => State::RnrWait { end, wqe },
            State::RnrProbing { wqe, .. } => State::RnrProbing { end, wqe },
        };
        self.timers.stop(Timer::ProbeTimeout);
        self.timers.stop(Timer::AckSilence);
        self.prober = Prober { timeouts: self.prober.timeouts, ..Prober::default() };
        // The go-back hides the outcome of the last attempt.
        self.repair.last = None;
        self.rtt.discard_sample();
    }

    /// Schedules the retransmission of the oldest packet alone. The probe timer is restarted when it is sent.
    pub fn on_repair(&mut self, conn: &Connection, now: Instant, tuning: &Tuning) {
        self.timers.stop(Timer::ProbeTimeout);
        self.prober.due = Some(Probe::Missing);
        self.restart_ack_timer(conn, now, tuning);
        self.rtt.discard_later_sample();
    }

    /// Reports whether a timer has expired, and if so stops it. The probe and ACK silence timers do not
    /// expire while a probe is pending.
    pub fn take_expired(&mut self, timer: Timer, now: Instant) -> bool {
        let waits = matches!(timer, Timer::ProbeTimeout | Timer::AckSilence) && self.prober.due.is_some();
        !waits && self.timers.take_expired(timer, now)
    }

    /// Returns the time at which the next timer expires.
    pub fn next_deadline(&self) -> Option<Instant> {
        let waits = self.prober.due.is_some();
        self.timers.earliest(if waits { &[Timer::RnrWait, Timer::LocalAck] } else { &Timer::ALL })
    }

    /// Schedules a probe.
    pub fn schedule_probe(&mut self, probe: Probe) {
        self.prober.due = Some(probe);
    }

    /// Returns the pending probe.
    #[inline]
    pub fn probe_due(&self) -> Option<Probe> {
        self.prober.due
    }

    /// Takes the pending probe, if any, for the requester to send.
    pub fn take_probe(&mut self, now: Instant, tuning: &Tuning) -> Option<Probe> {
        let due = self.prober.due?;
        self.on_ack_requested(now, tuning);
        Some(due)
    }

    /// Records that a probe requests the acknowledgement of the packets before `snd_nxt`.
    pub fn on_probe_sent(&mut self, snd_nxt: Psn, conn: &Connection, now: Instant, tuning: &Tuning) {
        self.ack_requested = snd_nxt.prev();
        self.start_ack_timer(conn, now, tuning);
    }

    /// Reports whether a packet is in flight for which no acknowledgement has been requested.
    pub fn awaits_ack_request(&self) -> bool {
        self.timers.is_armed(Timer::AckSilence)
    }

    /// Reports whether the next packet must carry AckReq, so that no probe is needed, or in place of one.
    #[inline]
    pub fn is_ack_request_overdue(&self, now: Instant) -> bool {
        self.prober.due.is_some() || self.prober.overdue.is_some_and(|at| at <= now)
    }

    /// Reports whether a requested acknowledgement is outstanding, as the probe timer tells, or without
    /// probes the local ACK timer.
    pub fn awaits_ack(&self) -> bool {
        self.timers.is_armed(if self.sends_probes { Timer::ProbeTimeout } else { Timer::LocalAck })
    }

    /// Reports whether nothing may be sent because of an RNR NAK.
    #[inline]
    pub fn is_in_rnr_wait(&self) -> bool {
        matches!(self.state, State::RnrWait { .. })
    }

    /// Reports whether an RNR NAK holds back the work request `wqe`. The RNR wait holds back all work
    /// requests; after it, only those behind the RNR-NAKed one are held back.
    #[inline]
    pub fn is_behind_rnr_nak(&self, wqe: u64) -> bool {
        matches!(self.state, State::RnrWait { .. })
            || matches!(self.state, State::RnrProbing { wqe: nakked, .. } if wqe > nakked)
    }

    /// Reports whether sending the packet `psn` would be a retransmission.
    #[inline]
    pub fn is_retransmission(&self, psn: Psn) -> bool {
        match self.state {
            State::Open | State::Probing => false,
            State::Recovering { end } | State::RnrWait { end, .. } | State::RnrProbing { end, .. } => {
                psn.is_before(end)
            }
        }
    }

    /// Returns the numbers of transport retries and of RNR retries left.
    pub fn retries(&self) -> (u8, u8) {
        (self.retries.transport, self.retries.rnr)
    }

    /// Returns the round-trip time statistics; `None` before the first sample.
    pub fn round_trip(&self) -> Option<RoundTrip> {
        self.rtt.measured
    }
}

impl State {
    /// Returns the state after the peer has acknowledged everything before `snd_una`.
    fn on_progress(self, snd_una: Psn, oldest_wqe: u64) -> State {
        // Keeps `end` within half of the PSN space of `snd_una`, beyond which it would compare as ahead
        // again.
        let forward = |end: Psn| if end.is_before(snd_una) { snd_una } else { end };
        match self {
            State::Open | State::Probing => State::Open,
            State::RnrWait { end, wqe } => State::RnrWait { end: forward(end), wqe },
            State::RnrProbing { end, wqe } if wqe >= oldest_wqe => {
                State::RnrProbing { end: forward(end), wqe }
            }
            State::Recovering { end } | State::RnrProbing { end, .. } => {
                if snd_una.is_before(end) {
                    State::Recovering { end }
                } else {
                    State::Open
                }
            }
        }
    }
}
