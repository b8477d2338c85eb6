//! Pauses that the neighbour has imposed, by priority. The links of a NIC's shards share them, because the
//! kernel delivers a pause frame to only one of them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::transport::Instant;
use crate::wire::frame::{PRIORITIES, PauseFrame};

/// End of each priority's pause in nanoseconds; 0 if it is not paused.
#[derive(Debug, Default)]
pub(super) struct Pauses([AtomicU64; PRIORITIES]);

impl Pauses {
    /// Carries out a pause frame on a link with the given speed in bits per second. Returns whether it has
    /// ended a pause early, which the other shards must be told.
    pub fn on_frame(&self, now: Instant, frame: &PauseFrame, speed: u64) -> bool {
        let mut has_ended = false;
        for (end, quanta) in self.0.iter().zip(frame.times) {
            let Some(quanta) = quanta else { continue };
            let until = match quanta {
                0 => 0,
                _ => (now + PauseFrame::duration(quanta, speed)).0.max(1),
            };
            has_ended |= end.swap(until, Ordering::SeqCst) > until;
        }
        has_ended
    }

    /// Ends the pauses whose time is over at `now`.
    pub fn expire(&self, now: Instant) {
        for end in &self.0 {
            let until = end.load(Ordering::SeqCst);
            if until != 0 && until <= now.0 {
                // Fails if another shard has just received a further pause.
                let _ = end.compare_exchange(until, 0, Ordering::SeqCst, Ordering::SeqCst);
            }
        }
    }

    /// Ends all pauses.
    pub fn clear(&self) {
        self.0.iter().for_each(|end| end.store(0, Ordering::SeqCst));
    }

    pub fn is_paused(&self, priority: usize) -> bool {
        self.0[priority].load(Ordering::SeqCst) != 0
    }

    /// Returns the time at which [`expire`](Self::expire) must next be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        let ends = self.0.iter().map(|end| end.load(Ordering::SeqCst));
        ends.filter(|until| *until != 0).min().map(Instant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Speed at which a quantum takes 512 ns.
    const SPEED: u64 = 1_000_000_000;

    fn paused(pauses: &Pauses) -> Vec<usize> {
        (0..PRIORITIES).filter(|priority| pauses.is_paused(*priority)).collect()
    }

    #[test]
    fn pause_ends_when_its_time_is_over() {
        let pauses = Pauses::default();
        assert_eq!(pauses.next_deadline(), None);
        assert!(!pauses.on_frame(Instant(1000), &PauseFrame::new(1 << 3, 10), SPEED));
        assert!(!pauses.on_frame(Instant(2000), &PauseFrame::new(1 << 5, 10), SPEED));
        assert_eq!((paused(&pauses), pauses.next_deadline()), (vec![3, 5], Some(Instant(6120))));
        pauses.expire(Instant(6119));
        assert_eq!(paused(&pauses), [3, 5]);
        pauses.expire(Instant(6120));
        assert_eq!((paused(&pauses), pauses.next_deadline()), (vec![5], Some(Instant(7120))));
    }

    #[test]
    fn further_frame_replaces_the_time_and_time_zero_ends_the_pause() {
        let pauses = Pauses::default();
        pauses.on_frame(Instant(0), &PauseFrame::new(0xff, 10), SPEED);
        assert!(!pauses.on_frame(Instant(5000), &PauseFrame::new(1 << 3, 10), SPEED));
        pauses.expire(Instant(5120));
        assert_eq!((paused(&pauses), pauses.next_deadline()), (vec![3], Some(Instant(10_120))));
        // Priorities that the frame does not name keep their pauses.
        assert!(!pauses.on_frame(Instant(6000), &PauseFrame::new(1 << 4, 0), SPEED));
        assert_eq!(paused(&pauses), [3]);
        assert!(pauses.on_frame(Instant(6000), &PauseFrame::new(1 << 3, 1), SPEED), "a shorter time");
        assert!(pauses.on_frame(Instant(6001), &PauseFrame::new(1 << 3, 0), SPEED));
        assert_eq!((paused(&pauses), pauses.next_deadline()), (vec![], None));
        pauses.on_frame(Instant(6001), &PauseFrame::new(0xff, 1), SPEED);
        pauses.clear();
        assert_eq!(paused(&pauses), [0; 0]);
    }
}
