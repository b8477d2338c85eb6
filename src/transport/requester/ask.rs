//! When a request asks for an acknowledgement (AckReq).
//!
//! Asked for is what somebody waits for: completions, room in the window and in the send queue. The rest goes
//! without, as acknowledgements cost both sides as much as short messages do. If then nothing follows, the last
//! packet is sent once more, asking: a *probe*, long before the timeout.
//!
//! When an answer does not come in the time that answers take, the oldest packet in flight is sent once more and
//! then the last. If the peer has the oldest it says how far it has come; if not, it takes it now. And that something
//! is missing before the last it says of that: for each gap once, which may have been lost the first time. So all
//! losses show long before the timeout, and a peer that is only slow is sent no more than these two.

use std::time::Duration;

use crate::transport::{Instant, Tuning, earliest};
use crate::wire::{AckTimeout, Mtu};

/// An acknowledgement is asked for in every such part of the window, so that it never closes, and of the send
/// queue, so that it never is full of what is done.
const PARTS: u32 = 4;

/// ... and however wide the window, in every so many full packets: a slow peer far behind shows that it is alive
/// before the timer expires, and rxe asks as often.
const ASK_PACKETS: u64 = 64;

/// Doublings of the wait for an answer: then the local ACK timeout is near, if not over.
const MAX_DOUBLINGS: u32 = 10;

/// Whether a packet between these flight costs ends a part of the link's window. By its place alone.
pub(super) fn is_marked(start_cost: u64, end_cost: u64, window: usize, mtu: Mtu) -> bool {
    let part = part_bits(window, mtu);
    start_cost >> part != end_cost >> part
}

/// The most flight cost from `start_cost` on that ends no part.
pub(super) fn until_mark(start_cost: u64, window: usize, mtu: Mtu) -> u64 {
    !start_cost & ((1 << part_bits(window, mtu)) - 1)
}

/// Parts are powers of two: every packet asks for them. This is which.
fn part_bits(window: usize, mtu: Mtu) -> u32 {
    (window as u64 / u64::from(PARTS)).clamp(1, ASK_PACKETS * mtu.bytes() as u64).ilog2()
}

/// Whether the `index`-th work request ends a part of a send queue of `max_wr`.
pub(super) fn fills_a_part(index: u64, max_wr: u32) -> bool {
    let part = 1u64 << (max_wr / PARTS).max(1).ilog2();
    index & (part - 1) == part - 1
}

/// A packet that is sent again as it stands, asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probe {
    /// Of those in flight, the one to be acknowledged first; behind it goes the newest.
    Oldest,
    /// The last one sent.
    Newest,
}

/// What the peer is asked, and when it is asked again.
#[derive(Debug, Default)]
pub(super) struct Ask {
    /// What went out without asking since the last packet that asked.
    unasked: Option<Unasked>,
    /// Until when an answer should have come.
    answer: Option<Instant>,
    /// Answers that were late since the last one came.
    missed: u32,
    /// A probe that waits to be sent.
    due: Option<Probe>,
}

/// When the first packet of it is to be asked for.
#[derive(Debug, Clone, Copy)]
struct Unasked {
    /// By whatever goes out then.
    overdue: Instant,
    /// By a probe.
    deadline: Instant,
}

impl Ask {
    /// A packet that asks for nothing was sent.
    pub fn unasked(&mut self, now: Instant, timeout: AckTimeout, tuning: &Tuning) {
        if self.unasked.is_none() {
            let delay = delay(timeout, tuning);
            self.unasked = Some(Unasked { overdue: now + delay / 2, deadline: now + delay });
        }
    }

    /// One that asks was sent; `patience`, if it is known, is how long the answer takes.
    pub fn asked(&mut self, now: Instant, patience: Option<Duration>) {
        (self.unasked, self.due) = (None, None);
        if self.answer.is_none() {
            self.wait(now, patience);
        }
    }

    /// An answer has come, and more are to come.
    pub fn answered(&mut self, now: Instant, patience: Option<Duration>) {
        self.missed = 0;
        if self.answer.is_some() {
            self.wait(now, patience);
        }
    }

    /// Twice as long each time: a peer that is only slow is not to be buried in packets.
    fn wait(&mut self, now: Instant, patience: Option<Duration>) {
        self.answer = patience.map(|patience| now + patience * (1 << self.missed.min(MAX_DOUBLINGS)));
    }

    /// Nothing is in flight.
    pub fn settled(&mut self) {
        *self = Ask::default();
    }

    /// All that is in flight is to be sent again.
    pub fn rewound(&mut self) {
        *self = Ask { missed: self.missed, ..Ask::default() };
    }

    /// When a probe is to be sent, if nothing comes until then.
    pub fn deadline(&self) -> Option<Instant> {
        if self.due.is_some() {
            return None;
        }
        earliest([self.unasked.map(|unasked| unasked.deadline), self.answer])
    }

    /// Whether a packet that goes now should ask, to save the probe.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.unasked.is_some_and(|unasked| unasked.overdue <= now)
    }

    /// A deadline has passed, and a probe is due for it.
    pub fn expire(&mut self, now: Instant) {
        let late = self.answer.take_if(|at| *at <= now).is_some();
        self.missed += u32::from(late);
        self.due = Some(if late { Probe::Oldest } else { Probe::Newest });
    }

    /// A packet is to be sent again.
    pub fn probe(&mut self, probe: Probe) {
        self.due = Some(probe);
    }

    /// Whether something is in flight that nobody asked for.
    pub fn is_pending(&self) -> bool {
        self.unasked.is_some()
    }

    /// Whether an answer should come, and it is known when.
    pub fn awaits_answer(&self) -> bool {
        self.answer.is_some()
    }

    /// The probe that is to be sent.
    pub fn due(&self) -> Option<Probe> {
        self.due
    }
}

/// Well before the local ACK timeout, if there is one.
fn delay(timeout: AckTimeout, tuning: &Tuning) -> Duration {
    match timeout.duration() {
        Some(t) => tuning.max_ack_silence.min(t.max(tuning.min_timeout) / 4),
        None => tuning.max_ack_silence,
    }
}
