use std::collections::VecDeque;

/// A queue whose entries keep their index while others leave before them.
///
/// It grows as it is used, up to what its user allows, and never shrinks: an idle queue pair is small and a
/// busy one allocates nothing.
#[derive(Debug)]
pub(super) struct Fifo<T> {
    items: VecDeque<T>,
    /// Index of the front.
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

    /// Index of the front, or of the next entry if it is empty.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Index of the next entry.
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

    /// Drops the first `n`.
    pub fn release(&mut self, n: usize) {
        // One is what there mostly is, and quick.
        match n {
            1 => drop(self.items.pop_front()),
            _ => drop(self.items.drain(..n)),
        }
        self.start += n as u64;
    }

    /// Drops what came from index `end` on; the next entry has that index.
    pub fn truncate(&mut self, end: u64) {
        self.items.truncate(end.saturating_sub(self.start) as usize);
    }

    pub fn front(&self) -> Option<&T> {
        self.items.front()
    }

    pub fn get(&self, index: u64) -> Option<&T> {
        self.items.get(index.checked_sub(self.start)? as usize)
    }

    /// `n` entries from `index` on, which must all be there.
    pub fn range(&self, index: u64, n: usize) -> impl Iterator<Item = &T> {
        let from = (index - self.start) as usize;
        self.items.range(from..from + n)
    }

    /// All entries, the front first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut()
    }

    /// Drops all; the next entry's index is as it would have been.
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
