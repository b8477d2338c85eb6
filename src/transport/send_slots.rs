//! Slots of the send queue of a device on which a work request occupies its slot until its completion, or
//! that of a later one, is polled (IBA 10.7.3.1).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of completions of one send queue that the application has polled. The completion queue counts them.
#[derive(Clone, Debug, Default)]
pub struct PolledSends(Arc<AtomicU64>);

impl PolledSends {
    /// Counts a polled completion.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug, Default)]
pub(super) struct SendSlots {
    pub polled: PolledSends,
    /// Number of polled completions that have freed slots.
    seen: u64,
    /// Index after the work request of each completion that has freed no slots.
    ends: VecDeque<u64>,
    /// Index of the oldest work request that occupies a slot.
    start: u64,
}

impl SendSlots {
    /// Records the completion of the work request at `index`.
    pub fn on_completion(&mut self, index: u64) {
        self.ends.push_back(index + 1);
    }

    /// Returns the index of the oldest work request that occupies a slot.
    pub fn start(&mut self) -> u64 {
        while self.seen < self.polled.get()
            && let Some(end) = self.ends.pop_front()
        {
            self.seen += 1;
            self.start = end;
        }
        self.start
    }

    /// Frees all slots of a queue that ends at index `end` (RESET). Its completions are removed from the
    /// completion queue.
    pub fn clear(&mut self, end: u64) {
        (self.seen, self.start) = (self.polled.get(), end);
        self.ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polled_completion_frees_its_slot_and_those_before() {
        let mut slots = SendSlots::default();
        slots.on_completion(3);
        slots.on_completion(4);
        assert_eq!(slots.start(), 0);
        slots.polled.count();
        assert_eq!(slots.start(), 4);
        slots.polled.count();
        assert_eq!(slots.start(), 5);
        slots.on_completion(9);
        slots.clear(12);
        assert_eq!(slots.start(), 12);
    }
}
