//! History of a queue pair: its newest slow events in a ring, and the record of its first failure.
//!
//! Nothing is recorded while a connection works: an event is a state change, a timeout, a NAK, a
//! retransmission or an error. The ring is allocated when the queue pair leaves RESET, so that an event costs
//! no allocation.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;

use super::failure::{Failure, LocalCheck, PastEvent};
use super::slow_event::{EventKind, SlowEvent};
use super::{Instant, QpCounters};
use crate::wire::{NakCode, Psn};

/// Number of events that a queue pair remembers: more than a work request with 7 retries causes.
const EVENTS: usize = 24;

/// Number of the newest events among which a repetition is looked for. Timers, NAKs and retransmissions
/// alternate.
const RECENT: usize = 3;

/// History of a queue pair. It is recorded through a shared reference, because requester and responder share
/// the connection that contains it.
#[derive(Default)]
pub(super) struct History(Cell<Option<Box<Records>>>);

#[derive(Default)]
struct Records {
    events: VecDeque<SlowEvent>,
    /// Index of the work request that failed a local check, and that check.
    failed_check: Option<(u64, LocalCheck)>,
    failure: Option<Box<Failure>>,
    /// Counters of slow events and dropped packets.
    counters: QpCounters,
}

impl History {
    /// Runs `f` on the records, which are allocated by the first call.
    fn with<R>(&self, f: impl FnOnce(&mut Records) -> R) -> R {
        let mut records = self.0.take().unwrap_or_else(|| {
            Box::new(Records { events: VecDeque::with_capacity(EVENTS), ..Records::default() })
        });
        let result = f(&mut records);
        self.0.set(Some(records));
        result
    }

    /// Records an event. One that repeats a recent event is only counted, except for ACK timeouts, whose
    /// number is limited by the retries.
    #[cold]
    pub fn record(&self, at: Instant, psn: Psn, sent: Option<Instant>, kind: EventKind) {
        let merges = !matches!(kind, EventKind::AckTimeout { .. });
        self.with(|Records { events, counters, .. }| {
            count(kind, counters);
            let recent = events.len().saturating_sub(RECENT);
            if let Some(same) = events.range_mut(recent..).find(|e| merges && e.kind == kind && e.psn == psn)
            {
                (same.at, same.sent, same.times) = (at, sent, same.times.saturating_add(1));
                return;
            }
            if events.len() == EVENTS {
                events.pop_front();
            }
            events.push_back(SlowEvent { at, psn, times: 1, sent, kind });
        });
    }

    /// Counts a slow event or a dropped packet.
    #[cold]
    pub fn count(&self, count: impl FnOnce(&mut QpCounters)) {
        self.with(|records| count(&mut records.counters));
    }

    /// Returns the counters of slow events and dropped packets.
    pub fn counters(&self) -> QpCounters {
        self.with(|records| records.counters)
    }

    /// Returns an empty history, for a queue pair that is reset, with the counters of this one.
    pub fn renewed(&self) -> History {
        let history = History::default();
        let counters = self.counters();
        if counters != QpCounters::default() {
            history.count(|new| *new = counters);
        }
        history
    }

    /// Returns the remembered events, oldest first, with times before a failure at `failed`.
    pub fn past(&self, failed: Instant) -> Vec<PastEvent> {
        self.with(|records| records.events.iter().map(|event| PastEvent::new(event, failed)).collect())
    }

    /// Returns the kind of the newest event that `filter` accepts.
    pub fn newest(&self, filter: impl Fn(&EventKind) -> bool) -> Option<EventKind> {
        self.with(|records| records.events.iter().rev().map(|e| e.kind).find(filter))
    }

    /// Records the local check that the work request with index `wqe` failed.
    #[cold]
    pub fn set_failed_check(&self, wqe: u64, check: LocalCheck) {
        self.with(|records| records.failed_check = Some((wqe, check)));
    }

    /// Takes the local check that the work request with index `wqe` failed.
    pub fn take_failed_check(&self, wqe: u64) -> Option<LocalCheck> {
        self.with(|records| records.failed_check.take()).filter(|(index, _)| *index == wqe).map(|(_, c)| c)
    }

    /// Records a failure, which replaces an earlier one.
    #[cold]
    pub fn set_failure(&self, failure: Failure) {
        self.with(|records| records.failure = Some(Box::new(failure)));
    }

    /// Reports whether a failure is recorded.
    pub fn has_failure(&self) -> bool {
        self.with(|records| records.failure.is_some())
    }

    /// Returns the recorded failure.
    pub fn failure(&self) -> Option<Failure> {
        self.with(|records| records.failure.as_deref().cloned())
    }

    /// Forgets the failure, because the queue pair works again.
    pub fn forget_failure(&self) {
        self.with(|records| records.failure = None);
    }
}

/// Counts a slow event. Local ACK timeouts and NAKs are rare compared with packets, so that this costs nothing on the
/// data path.
fn count(kind: EventKind, counters: &mut QpCounters) {
    let counter = match kind {
        EventKind::StateChange { .. } | EventKind::Resent { .. } => return,
        EventKind::AckTimeout { .. } => &mut counters.local_ack_timeout_err,
        EventKind::Probe => &mut counters.ack_probe,
        EventKind::SequenceNak => &mut counters.rcvd_seq_err,
        EventKind::MissingResponse => &mut counters.implied_nak_seq_err,
        EventKind::RnrNak { .. } => &mut counters.rcvd_rnr_err,
        EventKind::Nak(_) => &mut counters.req_remote_err,
        EventKind::NakSent(NakCode::PsnSequenceError) => &mut counters.sent_seq_err,
        EventKind::NakSent(_) => &mut counters.sent_nak_err,
        EventKind::RnrNakSent(_) => &mut counters.send_rnr_err,
    };
    *counter += 1;
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with(|records| write!(f, "History({} events)", records.events.len()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn repeated_events_are_counted_and_the_oldest_is_forgotten() {
        let history = History::default();
        let psn = Psn::new(7);
        for at in 0..1000 {
            history.record(Instant(at), psn, None, EventKind::RnrNak { wait: Duration::ZERO, left: 7 });
            history.record(Instant(at), psn, None, EventKind::Probe);
        }
        let events = history.past(Instant(1000));
        assert_eq!(events.len(), 2);
        assert!(events.iter().all(|e| (e.ago, e.times) == (Duration::from_nanos(1), 1000)));
        for at in 1..=EVENTS as u32 {
            history.record(Instant(at.into()), psn + at, None, EventKind::SequenceNak);
        }
        let psns: Vec<_> = history.past(Instant(0)).iter().map(|e| e.psn).collect();
        assert_eq!(psns, (1..=EVENTS as u32).map(|n| psn + n).collect::<Vec<_>>());
    }

    #[test]
    fn failed_check_belongs_to_one_work_request() {
        let history = History::default();
        history.set_failed_check(3, LocalCheck::Faulted);
        assert_eq!(history.take_failed_check(2), None);
        history.set_failed_check(3, LocalCheck::Faulted);
        assert_eq!(history.take_failed_check(3), Some(LocalCheck::Faulted));
        assert_eq!(history.take_failed_check(3), None);
    }
}
