use rand_pcg::Pcg32;
use rand_pcg::rand_core::Rng;

use super::CommIds;
use crate::wire::mad::CommId;

/// Gives out communication IDs: each of the range once before one comes again, in an order that is not easily guessed.
#[derive(Debug)]
pub(super) struct IdPool {
    range: CommIds,
    next: u32,
    stride: u32,
    mask: u32,
}

impl IdPool {
    pub fn new(range: CommIds, random: &mut Pcg32) -> IdPool {
        // An odd stride visits all of a power of two.
        IdPool { range, next: random.next_u32(), stride: random.next_u32() | 1, mask: random.next_u32() }
    }

    /// The next ID that is not taken. There is one: far fewer than the range may be.
    pub fn pick(&mut self, is_taken: impl Fn(CommId) -> bool) -> CommId {
        loop {
            self.next = self.next.wrapping_add(self.stride);
            let id = self.range.id(self.next ^ self.mask);
            // 0 stands for an ID that is not known.
            if id != CommId(0) && !is_taken(id) {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_have_their_prefix_and_come_again_only_after_all_others() {
        let range = CommIds { prefix: 0x2a, bits: 6 };
        let mut pool = IdPool::new(range, &mut Pcg32::new(1, 1));
        let ids: BTreeSet<CommId> = (0..100_000).map(|_| pool.pick(|_| false)).collect();
        assert_eq!(ids.len(), 100_000);
        assert!(ids.iter().all(|id| id.0 >> 26 == 0x2a));

        let small = CommIds { prefix: 0, bits: 16 };
        let mut pool = IdPool::new(small, &mut Pcg32::new(2, 1));
        let ids: BTreeSet<CommId> = (0..0xffff).map(|_| pool.pick(|_| false)).collect();
        assert_eq!(ids.len(), 0xffff, "all but 0");
        assert!(ids.iter().all(|id| id.0 >> 16 == 0 && id.0 != 0));
    }

    #[test]
    fn without_a_prefix_all_bits_are_free() {
        let mut pool = IdPool::new(CommIds::ALL, &mut Pcg32::new(3, 1));
        let ids: Vec<u32> = (0..64).map(|_| pool.pick(|_| false).0).collect();
        assert!(ids.iter().fold(0, |a, b| a | b) == u32::MAX && ids.iter().fold(u32::MAX, |a, b| a & b) == 0);
    }
}
