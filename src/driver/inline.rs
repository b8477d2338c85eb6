//! Shard turns on application threads: a call that creates work runs them inline, unless another thread is
//! already running them.

use super::Shard;
use super::background::is_background_thread;
use super::policy::Policy;
use super::shard::ShardGuard;
use super::turn::AckDelay;
use crate::nic::Nic;
use crate::transport::Instant;
use crate::wire::Qpn;

/// Maximum number of turns that one call runs inline while other threads keep ringing the doorbell; the
/// background thread then takes over.
pub(super) const MAX_INLINE_TURNS: usize = 64;

impl Shard {
    /// Posts send requests to a queue pair, like [`with_state_and_send`](Self::with_state_and_send). While a
    /// lot is in flight, further requests are sent in batches, because one system call for several
    /// packets costs less than one per packet.
    pub fn post<R>(&self, qpn: Qpn, f: impl FnOnce(&mut Nic) -> R) -> R {
        let now = self.clock.now();
        let mut state = self.lock();
        if let Some(observer) = state.nic.observer() {
            observer.on_time(now);
        }
        let result = f(&mut state.nic);
        state.deliver(now);
        if self.policy == Policy::Adaptive && state.nic.qp(qpn).is_some_and(|qp| qp.may_batch()) {
            self.wake_for_deadline(&state, now);
            drop(state);
            self.drive_remaining(false);
        } else {
            self.send(&mut state, now, false);
            self.release(state, now);
        }
        result
    }

    /// Polls the link once on this thread, for an application that keeps polling. Now and then yields the
    /// core if no packets arrive: the peer may be waiting for it.
    pub fn poll(&self) {
        if self.policy != Policy::Clock {
            let now = self.clock.now();
            self.drive_state.on_poll(now);
            self.drive(now, true);
            if self.policy == Policy::Adaptive && self.drive_state.should_yield(now) {
                std::thread::yield_now();
            }
        }
    }

    /// Polls the link once, like [`poll`](Self::poll), for an application that will not poll again, so that
    /// the background thread continues to poll.
    pub fn poll_once(&self) {
        if self.policy != Policy::Clock {
            self.drive(self.clock.now(), false);
        }
    }

    /// Announces that the application is about to wait, and wakes the background thread if it does not poll:
    /// it takes over polling.
    pub fn stop_polling(&self) {
        if self.drive_state.on_wait() {
            self.wake_thread();
        }
    }

    /// Runs turns until there is no more to send and the doorbell stays silent. Returns false if another
    /// thread is running turns.
    pub(super) fn drive(&self, mut now: Instant, polls: bool) -> bool {
        for _ in 0..MAX_INLINE_TURNS {
            // A polling thread looks again soon: if it rang the doorbell each time, the holder would run
            // turns for nothing.
            let state = if polls { self.try_lock() } else { self.try_lock_or_ring() };
            let Some(mut state) = state else { return false };
            self.drive_state.clear_doorbell();
            if !polls {
                self.extend_polling(now);
            }
            self.turn(&mut state, now, if polls { AckDelay::OneTurn } else { AckDelay::Off });
            let more = self.unlock(state, now);
            if let Some(fabric) = &self.fabric {
                fabric.kick();
                // The peer receives what was sent before this NIC sends more.
                if more && fabric.request_turn() {
                    return true;
                }
            }
            if !more && !self.drive_state.is_doorbell_rung() {
                return true;
            }
            now = self.clock.now();
        }
        self.wake_thread();
        true
    }

    /// Completes the work left after the lock was released: sends if `more` is set, and serves the threads
    /// that have rung the doorbell. In virtual time, the fabric does this.
    pub fn drive_remaining(&self, more: bool) {
        if self.policy == Policy::Clock {
            return;
        }
        if more || self.drive_state.is_doorbell_rung() {
            self.drive(self.clock.now(), false);
        } else if let Some(fabric) = &self.fabric {
            fabric.kick();
        }
    }

    /// Tries to acquire the lock. If another thread holds it, rings the doorbell, which makes that thread run
    /// another turn.
    pub(super) fn try_lock_or_ring(&self) -> Option<ShardGuard<'_>> {
        self.try_lock().or_else(|| {
            self.drive_state.ring_doorbell();
            self.try_lock()
        })
    }

    /// Counts a turn as a poll if this is an application thread (see [`DriveState`](super::DriveState)).
    pub(super) fn extend_polling(&self, now: Instant) {
        if !is_background_thread() {
            self.drive_state.extend_polling(now);
        }
    }
}
