//! State shared by the threads that run a shard's turns.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use super::adaptive::timing::{SPIN_TIME, YIELD_INTERVAL};
use crate::transport::Instant;

/// State shared by the threads that run a shard's turns. Instants are in nanoseconds on the shard's clock; 0
/// means none.
#[derive(Default)]
pub(super) struct DriveState {
    /// Set by a thread that wants to run a turn but finds the lock taken; checked by the lock's holder after
    /// releasing the lock.
    doorbell: AtomicBool,
    /// Number of threads waiting for a fair release of the lock; after an ordinary release, the releasing
    /// thread may reacquire the lock at once.
    fair_waiters: AtomicU32,
    /// Time at which an application thread last polled; 0 if the application has since announced that it
    /// will wait.
    last_poll: AtomicU64,
    /// Whether the background thread must be woken when the application is about to wait: it backs off, or
    /// acknowledgements are delayed. Otherwise it receives the next packets anyway.
    must_wake_to_wait: AtomicBool,
    /// Time at which a turn last received packets.
    last_packet: AtomicU64,
    /// Time at which a polling application thread last yielded its core.
    last_yield: AtomicU64,
    /// Whether the application responds to received packets without polling for them, as determined by the
    /// background thread ([`PollDetector::is_distrusted`](super::adaptive::PollDetector::is_distrusted)).
    pub responds_without_polling: AtomicBool,
    /// Time until which the background thread sleeps; 0 while it is awake or backing off for a thread that
    /// uses the NIC and serves the timers.
    sleeping_until: AtomicU64,
}

impl DriveState {
    /// Records that the application polls at time `now`.
    pub fn on_poll(&self, now: Instant) {
        self.last_poll.store(now.0, Ordering::Relaxed);
    }

    /// Records that a turn has received packets at time `now`.
    pub fn on_packets(&self, now: Instant) {
        self.last_packet.store(now.0, Ordering::Relaxed);
    }

    /// Reports whether a polling thread should yield its core at time `now`; if so, counts it as done.
    pub fn should_yield(&self, now: Instant) -> bool {
        let since = |at: &AtomicU64| now.since(Instant(at.load(Ordering::Relaxed)));
        let due = since(&self.last_packet) >= SPIN_TIME && since(&self.last_yield) >= YIELD_INTERVAL;
        if due {
            self.last_yield.store(now.0, Ordering::Relaxed);
        }
        due
    }

    /// Records that the application is about to wait. Returns true if the background thread must be woken.
    pub fn on_wait(&self) -> bool {
        self.last_poll.store(0, Ordering::SeqCst);
        self.must_wake_to_wait.swap(false, Ordering::SeqCst)
    }

    /// Sets whether the background thread must be woken when the application is about to wait. The thread
    /// sets it before it reads the time of the last poll, and resets it with the lock held.
    pub fn set_must_wake_to_wait(&self, must: bool) {
        self.must_wake_to_wait.store(must, Ordering::SeqCst);
    }

    /// Sets that the background thread must be woken when the application is about to wait; called with the
    /// lock held. Most calls find it set, and a load costs less than a sequentially consistent store.
    pub fn request_wake_to_wait(&self) {
        if !self.must_wake_to_wait.load(Ordering::Relaxed) {
            self.set_must_wake_to_wait(true);
        }
    }

    /// Returns the time of the last poll, or `None` if the application has since announced that it will wait.
    pub fn last_poll(&self) -> Option<Instant> {
        Some(Instant(self.last_poll.load(Ordering::SeqCst))).filter(|at| at.0 != 0)
    }

    /// Counts a turn on an application thread as a poll if the application polls at all. Otherwise the
    /// application would seem absent during a long turn, and the background thread would take over and move
    /// the data to another core's cache.
    pub fn extend_polling(&self, now: Instant) {
        let last_poll = self.last_poll.load(Ordering::Relaxed);
        if last_poll != 0 {
            // Fails if another thread has just announced that the application no longer polls.
            let _ = self.last_poll.compare_exchange(last_poll, now.0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Rings the doorbell. The caller must then try the lock once more, because the holder may have checked
    /// the doorbell just before.
    pub fn ring_doorbell(&self) {
        self.doorbell.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Resets the doorbell, because the turn that follows serves all threads that have rung it so far.
    pub fn clear_doorbell(&self) {
        if self.doorbell.load(Ordering::SeqCst) {
            self.doorbell.store(false, Ordering::SeqCst);
        }
    }

    /// Reports whether a thread has found the lock taken and rung the doorbell. Must be called after
    /// releasing the lock.
    pub fn is_doorbell_rung(&self) -> bool {
        // Pairs with the fence in `ring_doorbell`.
        fence(Ordering::SeqCst);
        self.doorbell.load(Ordering::SeqCst)
    }

    /// Runs `lock`, which waits for the lock, and requests a fair release from the holder in the meantime.
    pub fn wait_fairly<R>(&self, lock: impl FnOnce() -> R) -> R {
        self.fair_waiters.fetch_add(1, Ordering::Relaxed);
        let locked = lock();
        self.fair_waiters.fetch_sub(1, Ordering::Relaxed);
        locked
    }

    /// Reports whether a thread needs a fair release of the lock.
    pub fn has_fair_waiters(&self) -> bool {
        self.fair_waiters.load(Ordering::Relaxed) != 0
    }

    /// Records that the background thread is about to sleep; called with the lock held, so that any thread
    /// that sets an earlier deadline sees the record and wakes the background thread.
    pub fn on_sleep(&self, until: Option<Instant>) {
        self.sleeping_until.store(until.map_or(u64::MAX, |at| at.0), Ordering::SeqCst);
    }

    /// Records that the background thread is awake.
    pub fn on_awake(&self) {
        self.sleeping_until.store(0, Ordering::SeqCst);
    }

    /// Reports whether the background thread sleeps beyond `deadline`.
    pub fn sleeps_beyond(&self, deadline: impl FnOnce() -> Option<Instant>) -> bool {
        let until = self.sleeping_until.load(Ordering::SeqCst);
        until != 0 && deadline().is_some_and(|at| at.0 < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(1_000_000_000);

    #[test]
    fn extend_polling_has_no_effect_if_the_application_does_not_poll() {
        let state = DriveState::default();
        state.extend_polling(START);
        assert_eq!(state.last_poll(), None);
        state.on_poll(START);
        state.extend_polling(START + SPIN_TIME);
        assert_eq!(state.last_poll(), Some(START + SPIN_TIME));
    }

    #[test]
    fn polling_thread_yields_at_intervals_once_no_packets_have_arrived_for_the_spin_time() {
        let state = DriveState::default();
        state.on_packets(START);
        let idle = START + SPIN_TIME;
        assert!(!state.should_yield(Instant(idle.0 - 1)));
        assert!(state.should_yield(idle) && !state.should_yield(Instant((idle + YIELD_INTERVAL).0 - 1)));
        assert!(state.should_yield(idle + YIELD_INTERVAL));
        state.on_packets(idle + YIELD_INTERVAL);
        assert!(!state.should_yield(Instant((idle + YIELD_INTERVAL + SPIN_TIME).0 - 1)));
    }

    #[test]
    fn sleeping_thread_is_woken_only_for_an_earlier_deadline() {
        let state = DriveState::default();
        assert!(!state.sleeps_beyond(|| Some(START)), "it is awake");
        state.on_sleep(Some(START));
        assert!(state.sleeps_beyond(|| Some(Instant(START.0 - 1))));
        assert!(!state.sleeps_beyond(|| Some(START)) && !state.sleeps_beyond(|| None));
        state.on_sleep(None);
        assert!(state.sleeps_beyond(|| Some(START)));
    }
}
