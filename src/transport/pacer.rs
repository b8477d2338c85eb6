//! Pacing: limits a queue pair's requests to its configured rate or, for unacknowledged services, to the rate
//! at which the peer can presumably drain its receive buffer.

use std::time::Duration;

use super::{Instant, Tuning};
use crate::wire::Mtu;

/// Burst duration: as much traffic as the rate permits in this time may be sent back to back. A single packet
/// may exceed it.
const BURST: Duration = Duration::from_micros(100);

/// Maximum idle time, caused by a late timer or a lack of data, that later traffic may make up for.
const CATCH_UP: Duration = Duration::from_millis(1);

/// Minimum rate, in bytes per millisecond, that every peer is assumed to sustain.
const LEAST: usize = 64 << 10;

/// Pacer of a queue pair, which spaces its requests according to a rate.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    /// Rate limit in kbit/s; 0 for none.
    limit: u32,
    /// Time by which the rate permits all traffic sent so far; `None` if nothing has been sent.
    until: Option<Instant>,
    /// Whether packets are waiting for the pacer.
    waiting: bool,
}

/// Rate in bits per millisecond, which equals kbit/s.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate(u64);

impl Rate {
    /// Returns the default rate of unacknowledged services: one per-peer window per millisecond. The peer's
    /// receive buffer holds several such windows.
    pub fn unacknowledged(tuning: &Tuning) -> Rate {
        Rate(tuning.window.max(LEAST) as u64 * 8)
    }

    fn bytes_in(self, time: Duration) -> u64 {
        self.0 * time.as_micros() as u64 / 8000
    }

    fn time_of(self, bytes: usize) -> Duration {
        Duration::from_nanos(bytes as u64 * 8 * 1_000_000 / self.0)
    }
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
        if self.limit == 0 { default } else { Some(Rate(self.limit.into())) }
    }

    /// Returns how many packets of size `mtu` the rate permits now.
    pub fn allows(&mut self, rate: Rate, now: Instant, mtu: Mtu) -> usize {
        let owed = self.until.map_or(Duration::ZERO, |until| until.since(now));
        let room = rate.bytes_in(BURST.saturating_sub(owed)) as usize / mtu.bytes();
        let packets = if owed.is_zero() { room.max(1) } else { room };
        self.waiting |= packets == 0;
        packets
    }

    /// Charges `bytes` sent.
    pub fn spend(&mut self, rate: Rate, now: Instant, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let earliest = Instant(now.0.saturating_sub(CATCH_UP.as_nanos() as u64));
        let from = self.until.map_or(now, |until| until.max(earliest));
        self.until = Some(from + rate.time_of(bytes));
    }

    /// Returns the time at which waiting packets may be sent; `None` if none are waiting.
    pub fn deadline(&self) -> Option<Instant> {
        self.until.filter(|_| self.waiting)
    }

    /// Clears the waiting state if its deadline has passed.
    pub fn expire(&mut self, now: Instant) {
        self.waiting &= self.until.is_some_and(|until| until > now);
    }
}
