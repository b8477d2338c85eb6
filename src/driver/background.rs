//! A shard's background thread: runs turns while no application thread polls, and sleeps while there is
//! nothing to do.
//!
//! On a fabric the sending thread drives the receiving NIC, and the background thread does only what is left
//! over or due later: two threads that alternate would move all data from core to core.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::Shard;
use super::adaptive::Adaptive;
use super::adaptive::timing::{IDLE_TIMEOUT, TIMER_GRANULARITY};
use super::shard::ShardGuard;
use crate::fabric::FabricHandle;
use crate::transport::{Instant, earliest};

thread_local! {
    /// Whether the current thread is a shard's background thread.
    static IN_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Reports whether the current thread is a shard's background thread.
pub(super) fn is_background_thread() -> bool {
    IN_BACKGROUND.get()
}

impl Shard {
    /// Executes the background thread's loop until [`stop`](Self::stop) is called.
    pub fn run(&self) {
        let _guard = OnPanic(self);
        IN_BACKGROUND.set(true);
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let port_state = self.state_fd.as_ref().map_or(self.no_port_state(), |fd| input(fd.as_fd()));
        let link = self.link_fds.iter().map(|fd| input(fd.as_fd()));
        let fds = [input(self.mailbox.wake().as_fd()), port_state].into_iter().chain(link).collect();
        let mut thread = Background { shard: self, fds, adaptive: Adaptive::default() };
        while !self.stopping.load(Ordering::SeqCst) {
            thread.step();
        }
    }

    /// Ends [`run`](Self::run).
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake_thread();
    }

    /// Returns an entry that never reports anything, in place of the port state.
    fn no_port_state(&self) -> PollFd<'_> {
        PollFd::new(self.mailbox.wake().as_fd(), PollFlags::empty())
    }

    /// Updates the NIC's port state from the link. Returns false if the link is lost.
    fn update_port_state(&self) -> bool {
        self.with_state(|state, _| {
            let link_is_up = state.link_is_up();
            link_is_up.inspect(|is_up| state.update_port(*is_up)).is_some()
        })
    }
}

/// A shard's background thread.
struct Background<'a> {
    shard: &'a Shard,
    /// Descriptors to poll: the wake-up, the port state, and the link's descriptors, in this order.
    fds: Vec<PollFd<'a>>,
    adaptive: Adaptive,
}

/// Action that follows a turn of the background thread.
enum Next {
    /// Another turn.
    Turn,
    /// A sleep that ends at `until`, at a wake-up or, with `watch_link`, when a packet arrives. With
    /// `is_polling` and `watch_link`, the thread polls the link again instead of sleeping.
    Sleep { until: Option<Instant>, watch_link: bool, is_polling: bool },
}

impl Background<'_> {
    /// Backs off while the application polls; otherwise runs a turn, and sleeps if there is nothing more to
    /// do.
    fn step(&mut self) {
        let shard = self.shard;
        shard.drive_state.set_must_wake_to_wait(true);
        let (now, last_poll) = (shard.clock.now(), shard.drive_state.last_poll());
        if let Some(last_poll) = last_poll
            && let Some(backoff) = self.adaptive.detector.backoff(now, last_poll)
        {
            return self.sleep(now, Some(now + backoff), false);
        }
        let must_poll_link = shard.fabric.as_ref().is_none_or(FabricHandle::has_pending_input);
        // A thread that polls, or the sending thread on a fabric, does now what there is to do if it holds
        // the lock.
        let may_skip = !must_poll_link || last_poll.is_some() && !self.adaptive.detector.is_distrusted(now);
        let state = if may_skip { shard.try_lock_or_ring() } else { Some(shard.lock()) };
        let Some(state) = state else {
            let backoff = if must_poll_link { IDLE_TIMEOUT } else { TIMER_GRANULARITY };
            return self.sleep(now, Some(now + backoff), false);
        };
        match self.turn(state, must_poll_link, last_poll.is_some()) {
            Next::Sleep { until, watch_link, is_polling } if !shard.drive_state.is_doorbell_rung() => {
                let now = shard.clock.now();
                if watch_link && is_polling {
                    std::thread::yield_now();
                    return self.adaptive.on_yield(now, shard.clock.now());
                }
                self.sleep(now, until, watch_link);
                self.adaptive.on_sleep(now, shard.clock.now(), must_poll_link);
            }
            _ => {}
        }
    }

    /// Runs a turn, releases the lock, and decides what to do next.
    fn turn(&mut self, mut state: ShardGuard<'_>, must_poll_link: bool, polls: bool) -> Next {
        let shard = self.shard;
        shard.drive_state.clear_doorbell();
        let now = shard.clock.now();
        let is_distrusted = self.adaptive.detector.is_distrusted(now);
        shard.drive_state.responds_without_polling.store(is_distrusted, Ordering::Relaxed);
        let received = shard.turn(&mut state, now, self.adaptive.ack_delay(now));
        self.adaptive.on_turn(now, received, polls, state.nic.held_acknowledgements() > 0);
        // While another shard's inbox is full the link is not read; it is polled again a moment later.
        let is_stalled = shard.mailbox.are_others_full();
        let retry = is_stalled.then(|| now + IDLE_TIMEOUT);
        // The deadline is read before the link's room: another shard may end a pause in between, and with it
        // its deadline.
        let deadline = earliest([shard.deadline(&state, now), retry, self.adaptive.acks_due]);
        let mut more = received && must_poll_link || state.wants_to_transmit();
        // The descriptor of a link that is lost may stay readable for ever.
        let watch_link = state.link.is_ok() && !is_stalled;
        shard.drive_state.set_must_wake_to_wait(!watch_link);
        let is_polling = self.adaptive.busy_polls(now);
        if !more && watch_link && !is_polling {
            more = state.host_memory().is_some_and(|mut memory| memory.prepare_to_sleep());
        }
        let until = if more { Some(Instant(1)) } else { deadline };
        shard.drive_state.on_sleep(until);
        drop(state);
        if let Some(fabric) = &shard.fabric {
            fabric.kick();
        }
        if more { Next::Turn } else { Next::Sleep { until, watch_link, is_polling } }
    }

    /// Sleeps until `until`, a wake-up, a port state change or, with `watch_link`, until the link is
    /// readable.
    fn sleep(&mut self, now: Instant, until: Option<Instant>, watch_link: bool) {
        let timeout = until.map(|at| TimeSpec::from(at.since(now)));
        let count = if watch_link { self.fds.len() } else { 2 };
        let result = ppoll(&mut self.fds[..count], timeout, None);
        let port_changed = self.fds[1].any() == Some(true);
        self.shard.drive_state.on_awake();
        match result {
            Ok(_) | Err(Errno::EINTR) => {}
            // ppoll fails only for lack of memory; a short sleep is better than a busy loop.
            Err(_) => std::thread::sleep(TIMER_GRANULARITY),
        }
        // Clears the eventfd counter, which is empty if something else ended the sleep.
        let _ = self.shard.mailbox.wake().read();
        if port_changed && !self.shard.update_port_state() {
            // The link is lost, so nothing reads the descriptor any more.
            self.fds[1] = self.shard.no_port_state();
        }
    }
}

/// Guard that fails the device if the background thread panics, since nothing drives the NIC reliably
/// afterwards.
struct OnPanic<'a>(&'a Shard);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shard = self.0;
            let mut state = shard.lock();
            let reason = io::Error::other("the NIC's thread has panicked");
            shard.lose_link(&mut state, reason, shard.clock.now());
        }
    }
}
