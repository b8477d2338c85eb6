//! The pace of a queue pair: requests leave no faster than its rate limit, and where nobody acknowledges them no faster
//! than the peer's receive buffer is likely to be emptied.

use std::time::Duration;

use super::{Instant, Tuning};
use crate::wire::Mtu;

/// So much goes out at once at most, as long as that is a packet.
const BURST: Duration = Duration::from_micros(100);

/// Time that was lost, to a late timer or for want of data, and may be made up for.
const CATCH_UP: Duration = Duration::from_millis(1);

/// Bytes in a millisecond that any peer takes.
const LEAST: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The rate limit in kbit/s; 0 for none.
    limit: u32,
    /// What was sent takes until then.
    until: Option<Instant>,
    /// Something waits for that.
    waiting: bool,
}

/// Bits in a millisecond, which are kbit/s.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate(u64);

impl Rate {
    /// With nobody to push back: what may be in flight to a peer, a millisecond. Its buffer holds several times that.
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

impl Pace {
    /// Sets the rate limit: kbit/s, or 0 for none.
    pub fn set(&mut self, limit: u32) {
        *self = Pace { limit, ..Pace::default() };
    }

    /// The rate limit.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The limit, or `default` if there is none.
    pub fn rate(&self, default: Option<Rate>) -> Option<Rate> {
        if self.limit == 0 { default } else { Some(Rate(self.limit.into())) }
    }

    /// Packets that may go now.
    pub fn allows(&mut self, rate: Rate, now: Instant, mtu: Mtu) -> usize {
        let owed = self.until.map_or(Duration::ZERO, |until| until.since(now));
        let room = rate.bytes_in(BURST.saturating_sub(owed)) as usize / mtu.bytes();
        let packets = if owed.is_zero() { room.max(1) } else { room };
        self.waiting |= packets == 0;
        packets
    }

    /// So many bytes have gone.
    pub fn spend(&mut self, rate: Rate, now: Instant, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let earliest = Instant(now.0.saturating_sub(CATCH_UP.as_nanos() as u64));
        let from = self.until.map_or(now, |until| until.max(earliest));
        self.until = Some(from + rate.time_of(bytes));
    }

    /// When what waits may go.
    pub fn deadline(&self) -> Option<Instant> {
        self.until.filter(|_| self.waiting)
    }

    /// Acts on a deadline that has passed.
    pub fn expire(&mut self, now: Instant) {
        self.waiting &= self.until.is_some_and(|until| until > now);
    }
}
