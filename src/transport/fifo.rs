//! Queue with stable indices, the basis of the send and receive queues.

use std::collections::VecDeque;

/// Queue whose entries keep their indices when earlier entries are removed.
///
/// The queue grows on demand, up to the limit that its user enforces, and never shrinks: an idle queue pair
/// is small and a busy one does not allocate.
#[derive(Debug)]
pub(super) struct Fifo<T> {
    items: VecDeque<T>,
    /// Index of the front entry.
    start: u64,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Fifo { items: VecDeque::new(), start: 0 }
    }
}

impl<T> Fifo<T> {
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the index of the front entry, or of the next entry to be pushed if the queue is empty.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the index of the next entry to be pushed.
    pub fn end(&self) -> u64 {
        self.start + self.items.len() as u64
    }

    pub fn push(&mut self, item: T) {
        self.items.push_back(item);
    }

    pub fn pop(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.start += 1;
        Some(item)
    }

    /// Drops the first `n` entries.
    pub fn release(&mut self, n: usize) {
        // One entry is the common case, and faster this way.
        match n {
            1 => drop(self.items.pop_front()),
            _ => drop(self.items.drain(..n)),
        }
        self.start += n as u64;
    }

    /// Drops the entries from index `end` on. The next entry pushed gets index `end`.
    pub fn truncate(&mut self, end: u64) {
        self.items.truncate(end.saturating_sub(self.start) as usize);
    }

    pub fn front(&self) -> Option<&T> {
        self.items.front()
    }

    pub fn get(&self, index: u64) -> Option<&T> {
        self.items.get(index.checked_sub(self.start)? as usize)
    }

    /// Iterates over the `n` entries from `index` on, all of which must exist.
    pub fn range(&self, index: u64, n: usize) -> impl Iterator<Item = &T> {
        let from = (index - self.start) as usize;
        self.items.range(from..from + n)
    }

    /// Iterates mutably over all entries, front first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut()
    }

    /// Drops all entries. The index of the next entry to be pushed does not change.
    pub fn clear(&mut self) {
        self.start = self.end();
        self.items.clear();
    }
}

impl<T: Copy> Fifo<T> {
    pub fn extend(&mut self, items: &[T]) {
        match items {
            [one] => self.items.push_back(*one),
            many => self.items.extend(many),
        }
    }
}
