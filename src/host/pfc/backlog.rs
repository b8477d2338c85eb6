//! Decides when to pause the neighbour: while more bytes wait to be received than a threshold (XOFF), until
//! fewer than another (XON) do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::transport::Instant;
use crate::wire::frame::{PRIORITIES, PauseFrame};

/// Time of the pauses sent, in quanta.
pub(super) const QUANTA: u16 = u16::MAX;

/// Shards that need a priority paused, as a bit set for each priority.
#[derive(Debug, Default)]
pub(super) struct Congested([AtomicU64; PRIORITIES]);

impl Congested {
    fn add(&self, priorities: u8, shard: usize) {
        for priority in bits(priorities) {
            self.0[priority].fetch_or(1 << shard, Ordering::SeqCst);
        }
    }

    /// Removes a shard. Returns the priorities that no shard needs paused any more.
    fn remove(&self, priorities: u8, shard: usize) -> u8 {
        let is_last = |priority: &usize| {
            let left = self.0[*priority].fetch_and(!(1 << shard), Ordering::SeqCst) & !(1 << shard);
            left == 0
        };
        bits(priorities).filter(is_last).fold(0, |mask, priority| mask | 1 << priority)
    }
}

/// Iterates over the priorities in a bit mask.
fn bits(priorities: u8) -> impl Iterator<Item = usize> {
    (0..PRIORITIES).filter(move |priority| priorities >> priority & 1 != 0)
}

/// Receive side of one link: its thresholds, and the priorities that it has paused.
#[derive(Debug)]
pub(super) struct Backlog {
    xoff: usize,
    xon: usize,
    /// Index of the link among those of the NIC's shards.
    shard: usize,
    /// Half of the time of a pause, after which it is repeated.
    refresh_interval: Duration,
    /// Priorities of the packets received since the backlog was last below the thresholds, as a bit mask.
    received: u8,
    /// Priorities that this link has paused, as a bit mask.
    paused: u8,
    refresh_at: Instant,
}

impl Backlog {
    pub fn new(xoff: usize, xon: usize, shard: usize, speed: u64) -> Backlog {
        let refresh_interval = PauseFrame::duration(QUANTA, speed) / 2;
        let refresh_at = Instant::default();
        Backlog { xoff, xon, shard, refresh_interval, received: 0, paused: 0, refresh_at }
    }

    /// Records that a packet of a priority has been received.
    pub fn on_received(&mut self, priority: usize) {
        self.received |= 1 << priority;
    }

    /// Returns the frame to send, if any, after a batch was received and `waiting` bytes are left. The queue
    /// is the same for all priorities, so those of the packets received are paused.
    pub fn update(&mut self, now: Instant, waiting: usize, congested: &Congested) -> Option<PauseFrame> {
        if waiting > self.xoff || self.paused != 0 && waiting > self.xon {
            let new = self.received & !self.paused;
            self.paused |= new;
            congested.add(new, self.shard);
            if self.paused == 0 || new == 0 && now < self.refresh_at {
                return None;
            }
            self.refresh_at = now + self.refresh_interval;
            return Some(PauseFrame::new(self.paused, QUANTA));
        }
        self.received = 0;
        match congested.remove(std::mem::take(&mut self.paused), self.shard) {
            0 => None,
            ended => Some(PauseFrame::new(ended, 0)),
        }
    }

    /// Returns the time at which [`update`](Self::update) must be called even if nothing is received.
    pub fn next_deadline(&self) -> Option<Instant> {
        (self.paused != 0).then_some(self.refresh_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Speed at which a pause takes 33,553,920 ns.
    const SPEED: u64 = 1_000_000_000;

    fn pause(priorities: u8) -> Option<PauseFrame> {
        Some(PauseFrame::new(priorities, QUANTA))
    }

    #[test]
    fn priorities_received_are_paused_above_xoff_until_xon() {
        let (mut backlog, congested) = (Backlog::new(1000, 400, 0, SPEED), Congested::default());
        backlog.on_received(6);
        assert_eq!(backlog.update(Instant(0), 1000, &congested), None);
        backlog.on_received(3);
        assert_eq!(backlog.update(Instant(1), 1001, &congested), pause(1 << 3));
        assert_eq!(backlog.update(Instant(2), 401, &congested), None);
        assert!(backlog.paused != 0);
        assert_eq!(backlog.update(Instant(3), 400, &congested), Some(PauseFrame::new(1 << 3, 0)));
        assert_eq!((backlog.update(Instant(4), 0, &congested), backlog.next_deadline()), (None, None));
    }

    #[test]
    fn pause_is_repeated_at_half_of_its_time_and_at_once_for_another_priority() {
        let (mut backlog, congested) = (Backlog::new(1000, 400, 0, SPEED), Congested::default());
        backlog.on_received(3);
        assert_eq!(backlog.update(Instant(0), 2000, &congested), pause(1 << 3));
        assert_eq!(backlog.next_deadline(), Some(Instant(16_776_960)));
        assert_eq!(backlog.update(Instant(16_776_959), 2000, &congested), None);
        assert_eq!(backlog.update(Instant(16_776_960), 500, &congested), pause(1 << 3));
        backlog.on_received(5);
        assert_eq!(backlog.update(Instant(16_776_961), 500, &congested), pause(1 << 5 | 1 << 3));
        assert_eq!(backlog.update(Instant(16_776_962), 500, &congested), None);
    }

    #[test]
    fn priority_is_resumed_when_no_shard_needs_it_paused() {
        let congested = Congested::default();
        let mut shards = [0, 1].map(|shard| Backlog::new(1000, 400, shard, SPEED));
        for shard in &mut shards {
            shard.on_received(3);
            assert_eq!(shard.update(Instant(0), 2000, &congested), pause(1 << 3));
        }
        shards[1].on_received(5);
        assert_eq!(shards[1].update(Instant(1), 2000, &congested), pause(1 << 5 | 1 << 3));
        assert_eq!(shards[1].update(Instant(2), 0, &congested), Some(PauseFrame::new(1 << 5, 0)));
        assert_eq!(shards[0].update(Instant(3), 0, &congested), Some(PauseFrame::new(1 << 3, 0)));
    }
}
