//! How a program waits for completion events: in calls or for the descriptor of the channel, and with how
//! many threads.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time for which a waiting thread polls the links before it sleeps, provided that its last sleep was
/// shorter.
pub(super) const SPIN_TIME: Duration = Duration::from_micros(200);

/// Number of events taken without a wait after which the program is no longer expected to wait in calls. A
/// program that waits in calls finds some events raised already, and one that has changed to waiting for the
/// descriptor receives this many events only after the back-off of the background thread. Not measured
/// against other values.
const MAX_EVENTS_WITHOUT_WAIT: u64 = 16;

/// How a program waits for the events of a channel: in calls, which poll the links themselves, or for the
/// descriptor.
///
/// A program that waits in calls and is woken soon needs no background thread, whose wake-ups cost more than
/// a message: READs of 256 KiB by fio reach 49 to 55 instead of 30 to 34 Gb/s in rings and 25 instead of 20
/// to 22 over sockets, and 64 KiB SENDs by `ib_send_bw -e` 4.7 instead of 4.0 GB/s over sockets.
pub(super) struct ChannelWait {
    created: Instant,
    /// Number of events still to be taken without a wait.
    waits_left: AtomicU64,
    /// Time at which a thread began to sleep, in nanoseconds since `created`; 0 if none sleeps.
    asleep_since: AtomicU64,
    woke_soon: AtomicBool,
}

impl ChannelWait {
    pub fn new() -> ChannelWait {
        ChannelWait {
            created: Instant::now(),
            waits_left: AtomicU64::new(0),
            asleep_since: AtomicU64::new(0),
            woke_soon: AtomicBool::new(false),
        }
    }

    /// Reports whether the program, if it waits, will do so in a call. A thread that sleeps already announces
    /// nothing.
    pub fn is_announced(&self) -> bool {
        self.is_in_calls() && self.asleep_since.load(Ordering::Relaxed) == 0
    }

    fn is_in_calls(&self) -> bool {
        self.waits_left.load(Ordering::Relaxed) > 0
    }

    /// Records that a call is about to wait. Returns whether an event may follow so soon that the call polls
    /// for it.
    pub fn on_wait(&self) -> bool {
        self.waits_left.store(MAX_EVENTS_WITHOUT_WAIT, Ordering::Relaxed);
        self.woke_soon.load(Ordering::Relaxed)
    }

    /// Records that the thread is about to sleep at time `now`.
    pub fn on_sleep(&self, now: Instant) {
        self.asleep_since.store(self.nanoseconds(now), Ordering::Relaxed);
    }

    /// Records that an event was taken; `now` returns the time.
    pub fn on_event(&self, now: impl FnOnce() -> Instant) {
        if !self.is_in_calls() {
            return;
        }
        match self.asleep_since.swap(0, Ordering::Relaxed) {
            0 => {
                let one_less = |left: u64| left.checked_sub(1);
                let _ = self.waits_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
            }
            since => {
                let slept = Duration::from_nanos(self.nanoseconds(now()).saturating_sub(since));
                self.woke_soon.store(slept < SPIN_TIME, Ordering::Relaxed);
            }
        }
    }

    fn nanoseconds(&self, at: Instant) -> u64 {
        (at.saturating_duration_since(self.created).as_nanos() as u64).max(1)
    }
}

/// Detector of programs in which several threads wait for events of one device.
///
/// The background thread backs off while a thread polls before it sleeps in a call. If that thread finds an
/// event and then computes, the packets for another waiting thread are received only after the back-off.
#[derive(Default)]
pub(super) struct WaitingThreads {
    /// Address of a thread-local value of the thread that announced a wait last.
    last: AtomicUsize,
    changes: AtomicU32,
}

/// Number of times that the waiting thread may change: a program may set up connections in one thread and use
/// them in another.
const MAX_CHANGES: u32 = 4;

impl WaitingThreads {
    /// Records that the calling thread is about to wait. Returns false if several threads take turns to wait.
    pub fn on_wait(&self) -> bool {
        thread_local!(static HERE: u8 = const { 0 });
        // A thread that is ending counts as another one.
        let this = HERE.try_with(|here| std::ptr::from_ref(here).addr()).unwrap_or(0);
        let changes = self.changes.load(Ordering::Relaxed);
        if changes <= MAX_CHANGES && self.last.load(Ordering::Relaxed) != this {
            self.last.store(this, Ordering::Relaxed);
            self.changes.store(changes + 1, Ordering::Relaxed);
        }
        changes <= MAX_CHANGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_has_several_waiting_threads_once_they_have_alternated() {
        let threads = WaitingThreads::default();
        let other = || std::thread::scope(|scope| scope.spawn(|| threads.on_wait()).join().unwrap());
        assert!((0..100).all(|_| threads.on_wait()));
        assert!(other() && threads.on_wait());
        other();
        threads.on_wait();
        other();
        assert!((0..100).all(|_| !threads.on_wait()));
    }

    #[test]
    fn call_polls_before_it_sleeps_only_after_a_short_sleep() {
        let (wait, start) = (ChannelWait::new(), Instant::now());
        let polls_after = |sleep: Duration| {
            wait.on_wait();
            wait.on_sleep(start);
            wait.on_event(|| start + sleep);
            wait.on_wait()
        };
        assert!(!wait.on_wait(), "it has not slept yet");
        assert!(polls_after(SPIN_TIME / 2));
        assert!(!polls_after(SPIN_TIME));
        assert!(polls_after(SPIN_TIME / 2));
    }

    #[test]
    fn program_waits_in_calls_until_many_events_were_taken_without_a_wait() {
        let wait = ChannelWait::new();
        let event = || wait.on_event(Instant::now);
        event();
        assert!(!wait.is_announced());
        for _ in 0..2 {
            wait.on_wait();
            assert!(wait.is_announced());
            wait.on_sleep(Instant::now());
            assert!(!wait.is_announced(), "it sleeps");
            event();
            for _ in 0..MAX_EVENTS_WITHOUT_WAIT {
                assert!(wait.is_announced());
                event();
            }
            assert!(!wait.is_announced());
        }
    }
}
