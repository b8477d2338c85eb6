//! Acknowledgement requests (AckReq) and tail loss probes.
//!
//! A packet requests an acknowledgement if something depends on it: a completion, room in the congestion
//! window or room in the send queue. All other packets go without, because an acknowledgement costs both
//! sides as much as a short message. If no packet follows them, the last packet is retransmitted with AckReq:
//! a tail loss probe (TLP, [`Probe`]), sent long before the local ACK timeout.
//!
//! If no acknowledgement arrives within the probe timeout (PTO), the oldest packet in flight is
//! retransmitted, then the newest. A peer that already has the oldest acknowledges how far it has come;
//! otherwise it accepts it now. The newest makes the peer report a gap before it: a responder sends one
//! sequence error NAK per gap, and the first may have been lost. So every loss is detected long before the
//! local ACK timeout, and a peer that is merely slow receives no more than these two packets.

use std::time::Duration;

use crate::transport::{Instant, Tuning, earliest};
use crate::wire::{AckTimeout, Mtu};

/// Minimum number of acknowledgement requests per window, so that it never closes, and per send queue, so
/// that it never fills with completed work requests.
const PARTS: u32 = 4;

/// Maximum distance between two acknowledgement requests in full packets, however wide the window: a slow
/// peer that lags far behind shows that it is alive before the local ACK timer expires. rxe requests as
/// often.
const ASK_PACKETS: u64 = 64;

/// Limit of the exponential backoff of the probe timeout, in doublings; beyond it the local ACK timeout is
/// near or has expired.
const MAX_DOUBLINGS: u32 = 10;

/// Reports whether a packet from `start_cost` to `end_cost` crosses the end of a part of the link's window.
/// Depends on the packet's position alone.
pub(super) fn is_marked(start_cost: u64, end_cost: u64, window: usize, mtu: Mtu) -> bool {
    let part = part_bits(window, mtu);
    start_cost >> part != end_cost >> part
}

/// Returns the largest flight cost from `start_cost` on that does not cross the end of a part.
pub(super) fn until_mark(start_cost: u64, window: usize, mtu: Mtu) -> u64 {
    !start_cost & ((1 << part_bits(window, mtu)) - 1)
}

/// Returns the binary logarithm of the size of a part. Parts are powers of two because every packet is
/// checked against them.
fn part_bits(window: usize, mtu: Mtu) -> u32 {
    (window as u64 / u64::from(PARTS)).clamp(1, ASK_PACKETS * mtu.bytes() as u64).ilog2()
}

/// Reports whether the `index`-th work request ends a part of a send queue of `max_wr`.
pub(super) fn fills_a_part(index: u64, max_wr: u32) -> bool {
    let part = 1u64 << (max_wr / PARTS).max(1).ilog2();
    index & (part - 1) == part - 1
}

/// Probe (tail loss probe, TLP): a retransmission of one packet in flight, with AckReq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probe {
    /// The oldest packet in flight, followed by the newest.
    Oldest,
    /// The newest packet in flight.
    Newest,
}

/// Acknowledgement requests of a requester, the probe timer and its exponential backoff.
#[derive(Debug, Default)]
pub(super) struct AckRequests {
    /// Packets sent without AckReq since the last packet with AckReq.
    unrequested: Option<Unrequested>,
    /// Expiry of the probe timeout (PTO) for the requested acknowledgement.
    probe_timer: Option<Instant>,
    /// Consecutive probe timeouts; the exponent of the backoff.
    probe_timeouts: u32,
    /// Probe that is to be sent.
    due: Option<Probe>,
}

/// Times by which the first packet without AckReq needs an acknowledgement request.
#[derive(Debug, Clone, Copy)]
struct Unrequested {
    /// Time from which the next packet that completes a work request carries AckReq.
    overdue: Instant,
    /// Time at which a probe is sent.
    deadline: Instant,
}

impl AckRequests {
    /// Records a packet sent without AckReq, and starts the probe timer unless it runs.
    pub fn on_ack_not_requested(&mut self, now: Instant, timeout: AckTimeout, tuning: &Tuning) {
        if self.unrequested.is_none() {
            let delay = delay(timeout, tuning);
            self.unrequested = Some(Unrequested { overdue: now + delay / 2, deadline: now + delay });
        }
    }

    /// Records a packet sent with AckReq. `probe_timeout` is the probe timeout (RTO/PTO), `None` before the
    /// first RTT sample.
    pub fn on_ack_requested(&mut self, now: Instant, probe_timeout: Option<Duration>) {
        (self.unrequested, self.due) = (None, None);
        if self.probe_timer.is_none() {
            self.wait(now, probe_timeout);
        }
    }

    /// Restarts the probe timer, if it runs, when an acknowledgement has arrived and more are outstanding;
    /// resets the backoff.
    pub fn on_ack(&mut self, now: Instant, probe_timeout: Option<Duration>) {
        self.probe_timeouts = 0;
        if self.probe_timer.is_some() {
            self.wait(now, probe_timeout);
        }
    }

    /// Arms the probe timer with exponential backoff, so that a peer that is merely slow is not flooded with
    /// probes.
    fn wait(&mut self, now: Instant, probe_timeout: Option<Duration>) {
        self.probe_timer = probe_timeout
            .map(|probe_timeout| now + probe_timeout * (1 << self.probe_timeouts.min(MAX_DOUBLINGS)));
    }

    /// Stops all timers and resets the backoff: nothing is in flight.
    pub fn reset(&mut self) {
        *self = AckRequests::default();
    }

    /// Stops all timers but keeps the backoff: go-back-N retransmits everything in flight.
    pub fn on_go_back_n(&mut self) {
        *self = AckRequests { probe_timeouts: self.probe_timeouts, ..AckRequests::default() };
    }

    /// Time at which the next probe is due if nothing arrives before.
    pub fn deadline(&self) -> Option<Instant> {
        if self.due.is_some() {
            return None;
        }
        earliest([self.unrequested.map(|unrequested| unrequested.deadline), self.probe_timer])
    }

    /// Reports whether the next suitable packet should carry AckReq, to save a probe.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.unrequested.is_some_and(|unrequested| unrequested.overdue <= now)
    }

    /// Schedules the probe for a deadline that has passed: the oldest packet after a probe timeout, which
    /// counts for the backoff, otherwise the newest.
    pub fn expire(&mut self, now: Instant) {
        let late = self.probe_timer.take_if(|at| *at <= now).is_some();
        self.probe_timeouts += u32::from(late);
        self.due = Some(if late { Probe::Oldest } else { Probe::Newest });
    }

    /// Schedules a probe.
    pub fn probe(&mut self, probe: Probe) {
        self.due = Some(probe);
    }

    /// Reports whether a packet is in flight for which no acknowledgement has been requested.
    pub fn is_pending(&self) -> bool {
        self.unrequested.is_some()
    }

    /// Reports whether an acknowledgement is outstanding and its probe timer runs.
    pub fn awaits_ack(&self) -> bool {
        self.probe_timer.is_some()
    }

    /// Returns the probe that is to be sent.
    pub fn due(&self) -> Option<Probe> {
        self.due
    }
}

/// Returns the time after which a probe requests an acknowledgement: well before the local ACK timeout, if
/// there is one.
fn delay(timeout: AckTimeout, tuning: &Tuning) -> Duration {
    match timeout.duration() {
        Some(t) => tuning.max_ack_silence.min(t.max(tuning.min_timeout) / 4),
        None => tuning.max_ack_silence,
    }
}
