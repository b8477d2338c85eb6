//! When a request asks for an acknowledgement (AckReq).
//!
//! Asked for is what somebody waits for: completions, room in the window and in the send queue. The rest goes
//! without, as acknowledgements cost both sides as much as short messages do. If then nothing follows, the last
//! packet is sent once more, asking: a *probe*, long before the timeout.

use std::time::Duration;

use crate::transport::{Instant, Tuning};
use crate::wire::{AckTimeout, Mtu};

/// An acknowledgement is asked for in every such part of the window, so that it never closes, and of the send
/// queue, so that it never is full of what is done.
const PARTS: u32 = 4;

/// ... and however wide the window, in every so many full packets: a slow peer far behind shows that it is alive
/// before the timer expires, and rxe asks as often.
const ASK_PACKETS: u64 = 64;

/// Whether a packet between these flight costs ends a part of the link's window. By its place alone.
pub(super) fn is_marked(start_cost: u64, end_cost: u64, window: usize, mtu: Mtu) -> bool {
    let step = (window as u64 / u64::from(PARTS)).clamp(1, ASK_PACKETS * mtu.bytes() as u64);
    start_cost / step != end_cost / step
}

/// Whether the `index`-th work request ends a part of a send queue of `max_wr`.
pub(super) fn fills_a_part(index: u64, max_wr: u32) -> bool {
    let part = u64::from((max_wr / PARTS).max(1));
    index % part == part - 1
}

/// What went out without asking since the last packet that asked.
#[derive(Debug, Default)]
pub(super) struct Ask {
    /// When its first packet went.
    since: Option<Instant>,
    /// The probe was due, and waits to be sent.
    due: bool,
}

impl Ask {
    /// A packet was sent.
    pub fn note(&mut self, asking: bool, now: Instant) {
        if asking {
            self.asked();
        } else {
            self.since.get_or_insert(now);
        }
    }

    /// Nothing is in flight that is not asked for.
    pub fn asked(&mut self) {
        *self = Ask::default();
    }

    /// When the probe is to be sent, if nothing has asked until then.
    pub fn deadline(&self, timeout: AckTimeout, tuning: &Tuning) -> Option<Instant> {
        self.since.filter(|_| !self.due).map(|at| at + delay(timeout, tuning))
    }

    /// Whether a packet that goes now should ask, to save the probe.
    pub fn is_overdue(&self, now: Instant, timeout: AckTimeout, tuning: &Tuning) -> bool {
        self.since.is_some_and(|at| at + delay(timeout, tuning) / 2 <= now)
    }

    /// The deadline has passed.
    pub fn expire(&mut self) {
        self.due = true;
    }

    /// Whether something is in flight that nobody asked for.
    pub fn is_pending(&self) -> bool {
        self.since.is_some()
    }

    /// Whether the probe is to be sent.
    pub fn is_due(&self) -> bool {
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
