use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::table::Entry;
use crate::transport::{Instant, Pending};
use crate::wire::Qpn;

/// Which queue pairs have something to send, and which wait for a time.
///
/// Timers mostly move later, with every acknowledgement; their heap entry then stays and is put back when it
/// comes up, so that a busy queue pair touches the heap once a timeout, not once a packet.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    ready: VecDeque<Qpn>,
    /// Those with nothing but an acknowledgement, which may wait for a request to travel with.
    held: VecDeque<Qpn>,
    timers: BinaryHeap<Reverse<(Instant, Qpn)>>,
    /// Those that have taken packets of the burst that is being handled.
    stirred: VecDeque<Qpn>,
}

impl Schedule {
    /// Makes room for so many queue pairs, so that nothing grows while they work.
    pub fn reserve(&mut self, queue_pairs: usize) {
        for queue in [&mut self.ready, &mut self.held, &mut self.stirred] {
            queue.reserve(queue_pairs.saturating_sub(queue.len()));
        }
        self.timers.reserve(queue_pairs.saturating_sub(self.timers.len()));
    }

    /// After any step of a queue pair: notes what it may have to send.
    pub fn touch(&mut self, entry: &mut Entry) {
        if entry.lost {
            self.enqueue(entry);
        }
        match entry.qp.pending() {
            Pending::Nothing => {}
            Pending::Urgent => self.enqueue(entry),
            Pending::Acknowledgement => {
                if !entry.held && !entry.queued {
                    entry.held = true;
                    self.held.push_back(entry.qp.qpn());
                }
            }
        }
    }

    /// A queue pair has taken a packet: [`touch`](Self::touch) and [`arm`](Self::arm) it when the burst is through.
    pub fn stir(&mut self, entry: &mut Entry) {
        if !entry.stirred {
            entry.stirred = true;
            self.stirred.push_back(entry.qp.qpn());
        }
    }

    /// One of those that have taken packets.
    pub fn next_stirred(&mut self) -> Option<Qpn> {
        self.stirred.pop_front()
    }

    /// One of those with an acknowledgement.
    pub fn next_held(&mut self) -> Option<Qpn> {
        self.held.pop_front()
    }

    pub fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    pub fn enqueue(&mut self, entry: &mut Entry) {
        if !entry.queued {
            entry.queued = true;
            self.ready.push_back(entry.qp.qpn());
        }
    }

    /// Sees to it that the heap comes up in time for the queue pair's deadline.
    pub fn arm(&mut self, entry: &mut Entry) {
        let Some(deadline) = entry.qp.next_deadline() else { return };
        if entry.timer_at.is_none_or(|at| deadline < at) {
            entry.timer_at = Some(deadline);
            self.timers.push(Reverse((deadline, entry.qp.qpn())));
        }
    }

    pub fn next_ready(&mut self) -> Option<Qpn> {
        self.ready.pop_front()
    }

    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next that has come up, and when it was due.
    pub fn next_expired(&mut self, now: Instant) -> Option<(Instant, Qpn)> {
        let Reverse((at, _)) = self.timers.peek()?;
        if *at > now {
            return None;
        }
        self.timers.pop().map(|Reverse(entry)| entry)
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }
}
