//! Pacing: spaces what a queue pair sends according to a rate: the configured rate limit, the rate of
//! congestion control or, for unacknowledged services, the rate at which the peer can presumably drain its
//! receive buffer.

use super::congestion::Rate;
use super::tuning::{PacingLimits, Tuning};
use super::{Instant, earliest};
use crate::wire::Mtu;

/// Minimum rate, in bytes per millisecond, that every peer is assumed to sustain.
const MIN_BYTES_PER_MS: usize = 64 << 10;

/// Pacer of a queue pair. It keeps a debt of bits, which sending increases and time reduces at the current
/// rate, so the average rate is exact, and a change of the rate takes effect at once.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    /// Rate limit in kbit/s; 0 for none.
    limit: u32,
    /// Bits sent beyond those that the rate has permitted by `settled`; negative after idle time.
    debt: f64,
    /// Time for which `debt` was computed; `None` if nothing has been sent.
    settled: Option<Instant>,
    /// Time at which waiting packets may be sent; `None` if none are waiting.
    due: Option<Instant>,
}

/// Returns the default rate of unacknowledged services: one window of the link per millisecond. The peer's
/// receive buffer holds several such windows.
pub(super) fn unacknowledged(tuning: &Tuning) -> Rate {
    Rate::from_bits_per_second((tuning.window.max(MIN_BYTES_PER_MS) * 8 * 1000) as f64)
}

impl Pacer {
    /// Sets the rate limit in kbit/s; 0 for none.
    pub fn set(&mut self, limit: u32) {
        *self = Pacer { limit, ..Pacer::default() };
    }

    /// Returns the rate limit in kbit/s; 0 for none.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the configured rate limit, or `default` if there is none.
    pub fn rate(&self, default: Option<Rate>) -> Option<Rate> {
        if self.limit == 0 { default } else { Some(Rate::from_kbps(self.limit)) }
    }

    /// Reduces the debt by what the rate has permitted since the last call.
    fn settle(&mut self, rate: Rate, now: Instant, limits: &PacingLimits) {
        let Some(settled) = self.settled.replace(now) else { return };
        let permitted = rate.bits_in(now.since(settled));
        self.debt = (self.debt - permitted).max(-rate.bits_in(limits.catch_up));
    }

    /// Returns how many packets of size `mtu` the rate permits now.
    pub fn allows(&mut self, rate: Rate, now: Instant, mtu: Mtu, limits: &PacingLimits) -> usize {
        self.settle(rate, now, limits);
        let room = rate.bits_in(limits.burst) - self.debt.max(0.0);
        let packets = (room / (mtu.bytes() * 8) as f64) as usize;
        let packets = if self.debt <= 0.0 { packets.max(1) } else { packets };
        if packets == 0 {
            self.due = Some(now + rate.time_of(self.debt));
        }
        packets
    }

    /// Charges `bytes` sent.
    pub fn spend(&mut self, bytes: usize, now: Instant) {
        if bytes > 0 {
            self.settled.get_or_insert(now);
            self.debt += bytes as f64 * 8.0;
        }
    }

    /// Returns the time at which waiting packets may be sent, or at which the rate changes if that is
    /// earlier; `None` if none are waiting.
    pub fn deadline(&self, rate_change: Option<Instant>) -> Option<Instant> {
        self.due.and_then(|due| earliest([Some(due), rate_change]))
    }

    /// Clears the waiting state if its deadline has passed, and reports whether it has.
    pub fn expire(&mut self, rate_change: Option<Instant>, now: Instant) -> bool {
        let has_expired = self.deadline(rate_change).is_some_and(|at| at <= now);
        if has_expired {
            self.due = None;
        }
        has_expired
    }
}
