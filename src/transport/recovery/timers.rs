//! Timer table of a requester: one expiry time per [`Timer`].

use std::time::Duration;

use crate::transport::{Instant, Tuning};
use crate::wire::AckTimeout;

/// Timer of a requester. Timers that have expired at the same time are handled in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) enum Timer {
    /// End of the wait requested by an RNR NAK (IBA 9.7.5.2.8).
    RnrWait,
    /// Probe timeout (PTO): a requested acknowledgement is overdue.
    ProbeTimeout,
    /// ACK silence: no acknowledgement has been requested for a packet in flight
    /// ([`Tuning::max_ack_silence`]).
    AckSilence,
    /// Local ACK timeout (IBA 9.7.6.1.3).
    LocalAck,
}

impl Timer {
    pub const ALL: [Timer; 4] = [Timer::RnrWait, Timer::ProbeTimeout, Timer::AckSilence, Timer::LocalAck];
}

/// Expiry times of a requester's timers.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimerTable {
    /// Expiry time of each timer; [`NEVER`] if the timer is not armed, which makes comparisons branch-free.
    expiry: [Instant; Timer::ALL.len()],
}

const NEVER: Instant = Instant(u64::MAX);

impl Default for TimerTable {
    fn default() -> Self {
        TimerTable { expiry: [NEVER; Timer::ALL.len()] }
    }
}

impl TimerTable {
    /// Arms a timer, or stops it if `expiry` is `None`.
    pub fn set(&mut self, timer: Timer, expiry: Option<Instant>) {
        self.expiry[timer as usize] = expiry.unwrap_or(NEVER);
    }

    pub fn stop(&mut self, timer: Timer) {
        self.expiry[timer as usize] = NEVER;
    }

    pub fn is_armed(&self, timer: Timer) -> bool {
        self.expiry[timer as usize] != NEVER
    }

    /// Reports whether a timer has expired, and if so stops it.
    pub fn take_expired(&mut self, timer: Timer, now: Instant) -> bool {
        let expired = self.is_armed(timer) && self.expiry[timer as usize] <= now;
        if expired {
            self.stop(timer);
        }
        expired
    }

    /// Returns the earliest expiry time of `timers`; `None` if none of them is armed.
    pub fn earliest(&self, timers: &[Timer]) -> Option<Instant> {
        let first = timers.iter().fold(NEVER, |first, timer| first.min(self.expiry[*timer as usize]));
        (first != NEVER).then_some(first)
    }
}

/// Returns the ACK silence: the time after which a probe requests an acknowledgement if no packet has
/// requested one. It is well below the local ACK timeout, if there is one.
pub(super) fn ack_silence(timeout: AckTimeout, tuning: &Tuning) -> Duration {
    match timeout.duration() {
        Some(t) => tuning.max_ack_silence.min(t.max(tuning.min_timeout) / 4),
        None => tuning.max_ack_silence,
    }
}
