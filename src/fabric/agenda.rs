//! Agenda of a fabric in virtual time: the ports at which something is due, by time and then in port order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::port_queue::PortQueue;
use super::port_shared::PortShared;
use crate::transport::Instant;

/// Binary heap of due times, in which each port knows its position.
#[derive(Default)]
pub(crate) struct Agenda {
    heap: Vec<Due>,
    /// Ports taken by the last [`take_due`](Self::take_due), in port order.
    pub taken: Vec<Arc<PortShared>>,
}

struct Due {
    at: u64,
    port: Arc<PortShared>,
}

impl Due {
    fn key(&self) -> (u64, u32) {
        (self.at, self.port.id)
    }
}

impl Agenda {
    /// Brings the due times of touched ports up to date.
    pub fn update(&mut self, touched: &PortQueue) {
        while let Some(port) = touched.pop() {
            self.set(&port, port.due());
        }
    }

    /// Returns the time at which the next port is due, not before `now`.
    pub fn next(&mut self, now: Instant) -> Option<Instant> {
        while let Some(first) = self.heap.first() {
            // A port without a driver is read by its owner: an arrival is pending until its time has come.
            if first.at > now.0 || first.port.driver().is_some() {
                return Some(Instant(first.at.max(now.0)));
            }
            self.remove_at(0);
        }
        None
    }

    /// Takes all ports due at `at`, in port order.
    pub fn take_due(&mut self, at: Instant) {
        self.taken.clear();
        while self.heap.first().is_some_and(|first| first.at <= at.0) {
            let due = self.remove_at(0);
            self.taken.push(due.port);
        }
        self.taken.sort_unstable_by_key(|port| port.id);
    }

    fn set(&mut self, port: &Arc<PortShared>, at: Option<Instant>) {
        let position = port.position.load(Ordering::SeqCst);
        let at = match at {
            Some(at) => at.0,
            None if position == PortShared::ABSENT => return,
            None => return drop(self.remove_at(position)),
        };
        if position == PortShared::ABSENT {
            self.heap.push(Due { at, port: port.clone() });
            return self.rise(self.heap.len() - 1);
        }
        let before = std::mem::replace(&mut self.heap[position].at, at);
        if at < before { self.rise(position) } else { self.sink(position) }
    }

    fn remove_at(&mut self, position: usize) -> Due {
        let removed = self.heap.swap_remove(position);
        removed.port.position.store(PortShared::ABSENT, Ordering::SeqCst);
        if position < self.heap.len() {
            self.sink(position);
            self.rise(position);
        }
        removed
    }

    fn rise(&mut self, mut position: usize) {
        while position > 0 && self.heap[position].key() < self.heap[(position - 1) / 2].key() {
            self.heap.swap(position, (position - 1) / 2);
            self.note(position);
            position = (position - 1) / 2;
        }
        self.note(position);
    }

    fn sink(&mut self, mut position: usize) {
        loop {
            let children = 2 * position + 1..(2 * position + 3).min(self.heap.len());
            match children.min_by_key(|child| self.heap[*child].key()) {
                Some(child) if self.heap[child].key() < self.heap[position].key() => {
                    self.heap.swap(position, child);
                    self.note(position);
                    position = child;
                }
                _ => return self.note(position),
            }
        }
    }

    fn note(&self, position: usize) {
        self.heap[position].port.position.store(position, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::rng::SimRng;

    fn arrive(touched: &PortQueue, port: &Arc<PortShared>, at: u64) {
        port.earliest.store(at, Ordering::SeqCst);
        touched.push(port);
    }

    #[test]
    fn ports_due_together_are_taken_in_port_order_and_others_at_their_times() {
        let ports: Vec<_> = (1..=200).map(|id| Arc::new(PortShared::new(id))).collect();
        let (touched, mut agenda) = (PortQueue::default(), Agenda::default());
        let mut rng = SimRng::new(1, 2);
        let mut now = Instant(0);
        for _ in 0..2000 {
            for _ in 0..3 {
                let port = &ports[rng.below(200) as usize];
                arrive(&touched, port, now.0 + 1 + rng.below(40));
            }
            agenda.update(&touched);
            let first = ports.iter().map(|p| p.earliest.load(Ordering::SeqCst)).min().unwrap();
            assert_eq!(agenda.next(now), Some(Instant(first)));
            now = Instant(first);
            agenda.take_due(now);
            let is_due = |p: &&Arc<PortShared>| p.earliest.load(Ordering::SeqCst) == first;
            let due: Vec<u32> = ports.iter().filter(is_due).map(|p| p.id).collect();
            assert_eq!(agenda.taken.iter().map(|p| p.id).collect::<Vec<_>>(), due);
            for port in &agenda.taken {
                arrive(&touched, port, u64::MAX);
            }
        }
    }

    #[test]
    fn port_with_nothing_pending_is_never_due() {
        let ports: Vec<_> = (1..=9).map(|id| Arc::new(PortShared::new(id))).collect();
        let (touched, mut agenda) = (PortQueue::default(), Agenda::default());
        for port in &ports {
            arrive(&touched, port, 100 - u64::from(port.id));
        }
        agenda.update(&touched);
        arrive(&touched, &ports[8], u64::MAX);
        arrive(&touched, &ports[2], u64::MAX);
        agenda.update(&touched);
        assert_eq!(agenda.next(Instant(0)), Some(Instant(92)));
        agenda.take_due(Instant(100));
        assert_eq!(agenda.taken.iter().map(|p| p.id).collect::<Vec<_>>(), [1, 2, 4, 5, 6, 7, 8]);
        assert_eq!(agenda.next(Instant(0)), None);
    }
}
