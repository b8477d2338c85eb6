//! Adaptive policy: the background thread leaves the NIC to an application that polls, and takes over from
//! one that does not. Its state machines have no clock and no thread; [`background`](super::background)
//! carries out what they decide.

mod crowded_core;
mod poll_detector;
pub(super) mod timing;

use crowded_core::CrowdedCore;
pub use poll_detector::PollDetector;
use timing::{IDLE_TIMEOUT, RESPONSE_ACK_DELAY};

use super::turn::AckDelay;
use crate::transport::Instant;

/// Decisions of a background thread.
#[derive(Default)]
pub(super) struct Adaptive {
    pub detector: PollDetector,
    /// While the core is crowded, the thread refrains from busy-polling.
    core: CrowdedCore,
    /// Time at which delayed acknowledgements are sent, unless a response carries them first.
    pub acks_due: Option<Instant>,
    last_packet: Instant,
    /// Whether the last sleep was shorter than [`IDLE_TIMEOUT`]: the next packet may follow equally soon, so
    /// the thread busy-polls for it.
    woke_soon: bool,
}

impl Adaptive {
    /// Returns how a turn at `now` delays acknowledgements: until a response carries them if the application
    /// responds without polling for packets.
    pub fn ack_delay(&self, now: Instant) -> AckDelay {
        let are_overdue = self.acks_due.is_some_and(|at| now >= at);
        if self.detector.is_distrusted(now) && !are_overdue { AckDelay::UntilResponse } else { AckDelay::Off }
    }

    /// Records a turn: whether it received packets, whether the application had polled without announcing a
    /// wait since, and whether acknowledgements are delayed.
    pub fn on_turn(&mut self, now: Instant, received: bool, polls: bool, delays_acks: bool) {
        self.acks_due = delays_acks.then(|| self.acks_due.unwrap_or(now + RESPONSE_ACK_DELAY));
        // After the application announced that it waits, received packets are no evidence that it missed
        // them.
        self.detector.on_not_polling(now, received && polls);
        if received {
            self.last_packet = now;
        }
    }

    /// Reports whether the next packet may follow so soon that the thread polls for it instead of sleeping.
    pub fn busy_polls(&self, now: Instant) -> bool {
        self.woke_soon && now.since(self.last_packet) < IDLE_TIMEOUT
    }

    /// Records a sleep from `before` to `after`; `polls_link` tells whether it is this thread that has to
    /// poll the link.
    pub fn on_sleep(&mut self, before: Instant, after: Instant, polls_link: bool) {
        self.woke_soon = polls_link && after.since(before) < IDLE_TIMEOUT && !self.core.is_crowded(after);
    }

    /// Records that the thread yielded its core from `before` to `after` while it busy-polled. If another
    /// thread has kept the core for too long, busy-polling stops for a while.
    pub fn on_yield(&mut self, before: Instant, after: Instant) {
        if self.core.on_yield(before, after) {
            self.woke_soon = false;
        }
    }
}
