//! The rate limit of a queue pair: requests leave no faster than that.

use std::time::Duration;

use super::Instant;
use crate::wire::Mtu;

/// So much goes out at once at most, as long as that is a packet.
const BURST: Duration = Duration::from_micros(100);

/// Time that was lost, to a late timer or for want of data, and may be made up for.
const CATCH_UP: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// kbit/s; 0 for no limit.
    rate: u32,
    /// What was sent takes until then.
    until: Option<Instant>,
    /// Something waits for that.
    waiting: bool,
}

impl Pace {
    pub fn set(&mut self, rate: u32) {
        *self = Pace { rate, ..Pace::default() };
    }

    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Packets that may go now.
    pub fn allows(&mut self, now: Instant, mtu: Mtu) -> usize {
        match (self.rate, self.until) {
            (0, _) => usize::MAX,
            (_, Some(until)) if until > now => {
                self.waiting = true;
                0
            }
            (rate, _) => {
                let bytes = u64::from(rate) * BURST.as_micros() as u64 / 8000;
                (bytes as usize / mtu.bytes()).max(1)
            }
        }
    }

    /// So many bytes have gone.
    pub fn spend(&mut self, now: Instant, bytes: usize) {
        if self.rate == 0 || bytes == 0 {
            return;
        }
        let earliest = Instant(now.0.saturating_sub(CATCH_UP.as_nanos() as u64));
        let from = self.until.map_or(now, |until| until.max(earliest));
        let takes = bytes as u64 * 8 * 1_000_000 / u64::from(self.rate);
        self.until = Some(from + Duration::from_nanos(takes));
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
