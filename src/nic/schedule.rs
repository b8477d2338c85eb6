//! Queue pair scheduling: ready list, delayed acknowledgements and timers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::table::Entry;
use crate::transport::{Instant, Pending};
use crate::wire::Qpn;

/// Queue pairs that have something to send, and queue pairs with a timer running.
///
/// Most timers only move later, with every acknowledgement. Their heap entry then stays and is re-armed when
/// it expires, so that a busy queue pair accesses the heap once per timeout instead of once per packet.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    pub ready: VecDeque<Qpn>,
    /// Queue pairs with delayed acknowledgements, which preferably travel with a request.
    pub delayed_acks: VecDeque<Qpn>,
    timers: BinaryHeap<Reverse<(Instant, Qpn)>>,
    /// Dirty list: queue pairs that have accepted packets from the current burst.
    pub dirty: VecDeque<Qpn>,
    /// Empty buffer for expired heap entries.
    pub expired: Vec<(Instant, Qpn)>,
}

impl Schedule {
    /// Reserves memory for the given number of queue pairs, so that scheduling them allocates nothing.
    pub fn reserve(&mut self, queue_pairs: usize) {
        for queue in [&mut self.ready, &mut self.delayed_acks, &mut self.dirty] {
            queue.reserve(queue_pairs.saturating_sub(queue.len()));
        }
        self.timers.reserve(queue_pairs.saturating_sub(self.timers.len()));
        self.expired.reserve(queue_pairs);
    }

    /// Schedules a queue pair if it has something to send. Must be called after every step.
    pub fn schedule_pending(&mut self, entry: &mut Entry) {
        if entry.must_enter_error {
            self.enqueue(entry);
        }
        match entry.qp.pending() {
            Pending::Nothing => {}
            Pending::Urgent => self.enqueue(entry),
            Pending::Acknowledgement => {
                if !entry.ack_delayed && !entry.queued {
                    entry.ack_delayed = true;
                    self.delayed_acks.push_back(entry.qp.qpn());
                }
            }
        }
    }

    /// Marks a queue pair as dirty after a packet, to call [`schedule_pending`](Self::schedule_pending) and
    /// [`arm`](Self::arm) for it at the end of the burst.
    pub fn mark_dirty(&mut self, entry: &mut Entry) {
        if !entry.dirty {
            entry.dirty = true;
            self.dirty.push_back(entry.qp.qpn());
        }
    }

    /// Appends a queue pair to the ready list, unless it is already there.
    pub fn enqueue(&mut self, entry: &mut Entry) {
        if !entry.queued {
            entry.queued = true;
            self.ready.push_back(entry.qp.qpn());
        }
    }

    /// Ensures that a heap entry expires no later than the queue pair's deadline.
    pub fn arm(&mut self, entry: &mut Entry) {
        let Some(deadline) = entry.qp.next_deadline() else { return };
        if entry.timer_at.is_none_or(|at| deadline < at) {
            entry.timer_at = Some(deadline);
            self.timers.push(Reverse((deadline, entry.qp.qpn())));
        }
    }

    /// Takes the next expired heap entry: its expiry time and its queue pair.
    pub fn next_expired(&mut self, now: Instant) -> Option<(Instant, Qpn)> {
        let Reverse((at, _)) = self.timers.peek()?;
        if *at > now {
            return None;
        }
        self.timers.pop().map(|Reverse(entry)| entry)
    }

    /// Takes all expired heap entries, which [`recycle`](Self::recycle) must get back.
    pub fn take_expired(&mut self, now: Instant) -> Vec<(Instant, Qpn)> {
        let mut expired = std::mem::take(&mut self.expired);
        while let Some(entry) = self.next_expired(now) {
            expired.push(entry);
        }
        expired
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }
}
