//! Lock-free ring buffer for completion queues, filled and emptied from any thread.
//!
//! A reader copies the oldest entry first and then claims it by advancing the head; if another reader has
//! claimed the entry meanwhile, the copy is discarded. A slot is therefore free as soon as its entry is
//! claimed, and a writer never waits for a reader that was preempted. All slots consist of atomic words, so a
//! torn copy is harmless.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// Content of one entry.
pub(super) type Entry = [u64; 7];

/// Number of words in a slot. The first word is the position that the slot was filled for, plus 1 because
/// memory starts as zeros; the others hold the entry.
const SLOT: usize = 8;
type Slot = [AtomicU64; SLOT];

/// Size and alignment of a slot, so that no slot spans two cache lines.
const SLOT_BYTES: usize = size_of::<Slot>();

/// Position of the oldest entry, and the storage class, in a single word, so that a reader's claim fails if
/// either has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Head(u64);

impl Head {
    /// Flag: the entries are being moved, and readers must wait.
    const FROZEN: u64 = 1;
    const CLASSES: usize = 32;

    fn new(position: u64, class: usize) -> Head {
        Head(position << 6 | (class as u64) << 1)
    }

    /// Returns the position of the oldest entry: the number of entries ever added before it.
    fn position(self) -> u64 {
        self.0 >> 6
    }

    /// Returns the class of the storage in use; class `n` has 2^n slots.
    fn class(self) -> usize {
        (self.0 >> 1) as usize % Head::CLASSES
    }

    fn is_frozen(self) -> bool {
        self.0 & Head::FROZEN != 0
    }
}

/// Position of an entry: the number of entries ever added before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place(u64);

/// Lock-free, bounded, resizable multi-producer, multi-consumer ring.
pub(super) struct Ring {
    head: CachePadded<AtomicU64>,
    /// Position of the next entry to be added.
    tail: CachePadded<AtomicU64>,
    capacity: AtomicUsize,
    /// Storage by class. Storage no longer in use stays allocated for the lifetime of the ring, because
    /// readers may still access it.
    storage: [OnceLock<Storage>; Head::CLASSES],
}

/// Storage of one class; its slots begin at the first word aligned to a cache line.
struct Storage {
    words: Box<[AtomicU64]>,
    first: usize,
}

impl Storage {
    fn new(class: usize) -> Storage {
        // Zeroed memory from the system is not backed by pages before it is used.
        let words: Box<[AtomicU64]> = bytemuck::zeroed_slice_box((SLOT << class) + SLOT - 1);
        let first = words.as_ptr().addr().next_multiple_of(SLOT_BYTES) - words.as_ptr().addr();
        Storage { words, first: first / size_of::<AtomicU64>() }
    }
}

impl Ring {
    pub fn new(capacity: usize) -> Ring {
        let ring = Ring {
            head: CachePadded::new(AtomicU64::new(Head::new(0, class_of(capacity)).0)),
            tail: CachePadded::new(AtomicU64::new(0)),
            capacity: AtomicUsize::new(capacity),
            storage: [const { OnceLock::new() }; Head::CLASSES],
        };
        // Allocated at once, as hardware does; a ring that grew on demand would allocate on the data path.
        ring.slots(class_of(capacity));
        ring
    }

    fn slots(&self, class: usize) -> &[Slot] {
        let storage = self.storage[class].get_or_init(|| Storage::new(class));
        &storage.words[storage.first..].as_chunks().0[..1 << class]
    }

    fn slot(&self, class: usize, position: u64) -> &Slot {
        let slots = self.slots(class);
        &slots[position as usize & (slots.len() - 1)]
    }

    fn head(&self) -> Head {
        Head(self.head.load(Ordering::Acquire))
    }

    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Number of queued entries.
    pub fn len(&self) -> usize {
        let tail = self.tail.load(Ordering::Acquire);
        tail.saturating_sub(self.head().position()) as usize
    }

    /// Returns the number of entries ever added.
    pub fn count(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Reports whether any entry is queued besides the first `count` entries ever added.
    pub fn waits_behind(&self, count: u64) -> bool {
        self.head().position().max(count) < self.count()
    }

    /// Adds an entry and returns its position, or `None` if the ring is full.
    pub fn push(&self, entry: &Entry) -> Option<Place> {
        let (place, class) = self.claim()?;
        self.fill((place, class), entry);
        Some(place)
    }

    /// Claims the position for a new entry, at which readers stop until the entry is filled in. Returns the
    /// position and its storage class, or `None` if the ring is full.
    pub fn claim(&self) -> Option<(Place, usize)> {
        // Acquire: the head must be loaded after the tail, or the ring might seem fuller than it ever was.
        let mut tail = self.tail.load(Ordering::Acquire);
        loop {
            let head = self.head();
            // A stale tail may be less than the head; the exchange below then fails.
            if tail.saturating_sub(head.position()) >= self.capacity() as u64 {
                return None;
            }
            match self.tail.compare_exchange_weak(tail, tail + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((Place(tail), head.class())),
                Err(now) => tail = now,
            }
        }
    }

    /// Fills a claimed position.
    pub fn fill(&self, (place, class): (Place, usize), entry: &Entry) {
        let [filled_for, words @ ..] = self.slot(class, place.0);
        words.iter().zip(entry).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        filled_for.store(place.0 + 1, Ordering::Release);
    }

    /// Reports whether no entry was added after the one at `place`.
    pub fn is_last(&self, place: Place) -> bool {
        self.tail.load(Ordering::Relaxed) == place.0 + 1
    }

    /// Takes the oldest entry.
    pub fn pop(&self) -> Option<Entry> {
        loop {
            let head = self.head();
            if head.is_frozen() {
                std::thread::yield_now();
                continue;
            }
            let (position, class) = (head.position(), head.class());
            let [filled_for, words @ ..] = self.slot(class, position);
            let filled_for = filled_for.load(Ordering::Acquire);
            if filled_for <= position {
                return None;
            }
            let entry = std::array::from_fn(|i| words[i].load(Ordering::Relaxed));
            let next = Head::new(position + 1, class);
            // Release: the slot is refilled only after it was read here.
            let claim = self.head.compare_exchange(head.0, next.0, Ordering::AcqRel, Ordering::Relaxed);
            if claim.is_ok() {
                debug_assert_eq!(filled_for, position + 1, "only a claimed slot is filled");
                return Some(entry);
            }
        }
    }

    /// Removes all entries for which `keep` returns `false`; the others stay in order. Must not run
    /// concurrently with [`push`](Self::push).
    pub fn retain(&self, keep: impl Fn(&Entry) -> bool) {
        let (head, tail) = (self.freeze(), self.tail.load(Ordering::Acquire));
        let class = head.class();
        // The remaining entries move towards the tail.
        let mut first = tail;
        for position in (head.position()..tail).rev() {
            let entry = self.entry(class, position);
            if keep(&entry) {
                first -= 1;
                let [_, words @ ..] = self.slot(class, first);
                words.iter().zip(entry).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
            }
        }
        self.thaw(Head::new(first, class));
    }

    /// Changes the capacity. Must not run concurrently with [`push`](Self::push).
    ///
    /// # Errors
    /// Number of queued entries, if it exceeds `capacity`.
    pub fn resize(&self, capacity: usize) -> Result<(), usize> {
        let class = class_of(capacity);
        // Allocates before readers have to wait.
        self.slots(class);
        let (head, tail) = (self.freeze(), self.tail.load(Ordering::Acquire));
        let waiting = (tail - head.position()) as usize;
        if waiting > capacity {
            self.thaw(head);
            return Err(waiting);
        }
        if class != head.class() {
            for position in head.position()..tail {
                self.fill((Place(position), class), &self.entry(head.class(), position));
            }
        }
        self.capacity.store(capacity, Ordering::Relaxed);
        self.thaw(Head::new(head.position(), class));
        Ok(())
    }

    fn entry(&self, class: usize, position: u64) -> Entry {
        let [_, words @ ..] = self.slot(class, position);
        std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
    }

    /// Blocks readers until [`thaw`](Self::thaw) is called. Returns the head.
    fn freeze(&self) -> Head {
        loop {
            let head = self.head();
            let frozen = head.0 | Head::FROZEN;
            if !head.is_frozen()
                && self.head.compare_exchange(head.0, frozen, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                return head;
            }
            std::thread::yield_now();
        }
    }

    fn thaw(&self, head: Head) {
        self.head.store(head.0, Ordering::Release);
    }
}

/// Returns the storage class for `capacity` entries.
fn class_of(capacity: usize) -> usize {
    assert!(capacity <= MOST, "a ring holds {MOST} entries at most, not {capacity}");
    capacity.next_power_of_two().trailing_zeros() as usize
}

/// Maximum capacity of a ring.
pub(super) const MOST: usize = 1 << (Head::CLASSES - 1);

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicBool;

    use parking_lot::Mutex;
    use proptest::prelude::*;

    use super::*;

    fn entry(n: u64) -> Entry {
        [n, !n, n ^ 1, n << 8, n + 5, n * 3, n]
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push,
        Pop,
        Retain(u64),
        Resize(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => Just(Step::Push),
            4 => Just(Step::Pop),
            1 => (2u64..5).prop_map(Step::Retain),
            1 => (1usize..20).prop_map(Step::Resize),
        ]
    }

    proptest! {
        #[test]
        fn ring_behaves_like_a_bounded_queue(
            mut capacity in 1usize..20, steps in prop::collection::vec(step(), 1..400),
        ) {
            let (ring, mut model, mut next) = (Ring::new(capacity), VecDeque::new(), 0);
            for step in steps {
                match step {
                    Step::Push => {
                        let fits = model.len() < capacity;
                        prop_assert_eq!(ring.push(&entry(next)).is_some(), fits);
                        if fits {
                            model.push_back(entry(next));
                        }
                        next += 1;
                    }
                    Step::Pop => prop_assert_eq!(ring.pop(), model.pop_front()),
                    Step::Retain(divisor) => {
                        ring.retain(|e| e[0] % divisor != 0);
                        model.retain(|e| e[0] % divisor != 0);
                    }
                    Step::Resize(to) if model.len() > to => prop_assert_eq!(ring.resize(to), Err(model.len())),
                    Step::Resize(to) => {
                        prop_assert_eq!(ring.resize(to), Ok(()));
                        capacity = to;
                    }
                }
                prop_assert_eq!((ring.len(), ring.capacity()), (model.len(), capacity));
            }
            while let Some(e) = model.pop_front() {
                prop_assert_eq!(ring.pop(), Some(e));
            }
            prop_assert_eq!(ring.pop(), None);
        }
    }

    /// Two threads fill the ring and two empty it while a fifth removes entries and resizes it. Meanwhile,
    /// locks keep the first two from adding entries, as the shard locks do in the driver.
    #[test]
    fn concurrent_threads_neither_lose_nor_duplicate_entries_and_see_them_in_order() {
        const EACH: u64 = 200_000;
        const DOOMED: u64 = 2;
        let ring = Ring::new(64);
        let (locks, filled) = ([(); 2].map(Mutex::new), AtomicUsize::new(0));
        let (done, taken_out) = (AtomicBool::new(false), AtomicU64::new(0));
        let fill = |producer: usize| {
            for n in 0..EACH {
                // Bit 0 is the index of the thread. Bit 1 marks every 16th entry, which may be removed.
                let value = n << 2 | if n % 16 == 0 { DOOMED } else { 0 } | producer as u64;
                loop {
                    let lock = locks[producer].lock();
                    if ring.push(&entry(value)).is_some() {
                        break;
                    }
                    drop(lock);
                    std::thread::yield_now();
                }
            }
            if filled.fetch_add(1, Ordering::SeqCst) == 1 {
                done.store(true, Ordering::SeqCst);
            }
        };
        let empty = || {
            let (mut last, mut seen) = ([None; 2], 0);
            loop {
                let finished = done.load(Ordering::SeqCst);
                match ring.pop() {
                    Some(e) => {
                        assert_eq!(e, entry(e[0]), "torn");
                        let (producer, n) = ((e[0] & 1) as usize, e[0] >> 2);
                        assert!(
                            last[producer].is_none_or(|l| l < n),
                            "{n} of {producer} after {:?}",
                            last[producer]
                        );
                        last[producer] = Some(n);
                        seen += 1;
                    }
                    None if finished => return seen,
                    None => std::thread::yield_now(),
                }
            }
        };
        let change = || {
            let mut sizes = [64, 100, 17, 300, 64, 33].into_iter().cycle();
            while !done.load(Ordering::SeqCst) {
                let all = locks.each_ref().map(|l| l.lock());
                ring.retain(|e| {
                    let keep = e[0] & DOOMED == 0;
                    taken_out.fetch_add(u64::from(!keep), Ordering::Relaxed);
                    keep
                });
                let _ = ring.resize(sizes.next().unwrap());
                drop(all);
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        };
        let seen: u64 = std::thread::scope(|s| {
            let empties = [(); 2].map(|()| s.spawn(empty));
            s.spawn(|| fill(0));
            s.spawn(|| fill(1));
            s.spawn(change);
            empties.into_iter().map(|t| t.join().unwrap()).sum()
        });
        let out = taken_out.load(Ordering::Relaxed);
        assert_eq!(seen + out, 2 * EACH, "{out} taken out");
        assert!(out > 0, "none was ever taken out: the test is weak");
    }
}
