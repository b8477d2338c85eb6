//! Allocation of communication IDs.

use rand_pcg::Pcg32;
use rand_pcg::rand_core::Rng;

use super::CommIds;
use crate::wire::Permutation;
use crate::wire::mad::CommId;

/// Allocator of communication IDs in an order that is hard to guess. An ID recurs only after all others in
/// the range have been used.
#[derive(Debug)]
pub(super) struct IdPool {
    range: CommIds,
    next: u32,
    permutation: Permutation,
}

impl IdPool {
    pub fn new(range: CommIds, random: &mut Pcg32) -> IdPool {
        let key = random.next_u64();
        let permutation = Permutation::new(u32::BITS - range.bits, key);
        IdPool { range, next: random.next_u32(), permutation }
    }

    /// Returns the next free ID. The search always succeeds, because far fewer IDs are in use than the range
    /// holds.
    pub fn allocate(&mut self, is_in_use: impl Fn(CommId) -> bool) -> CommId {
        loop {
            self.next = self.next.wrapping_add(1);
            let Some(low) = self.permutation.invert(self.next & u32::MAX >> self.range.bits) else {
                continue;
            };
            let id = self.range.id(low);
            // The permutation excludes 0, which stands for an unknown ID.
            if !is_in_use(id) {
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
    fn ids_have_prefix_and_do_not_recur_before_range_is_exhausted() {
        let range = CommIds { prefix: 0x2a, bits: 6 };
        let mut pool = IdPool::new(range, &mut Pcg32::new(1, 1));
        let ids: BTreeSet<CommId> = (0..100_000).map(|_| pool.allocate(|_| false)).collect();
        assert_eq!(ids.len(), 100_000);
        assert!(ids.iter().all(|id| id.0 >> 26 == 0x2a));

        let small = CommIds { prefix: 0, bits: 16 };
        let mut pool = IdPool::new(small, &mut Pcg32::new(2, 1));
        let ids: BTreeSet<CommId> = (0..0xfffd).map(|_| pool.allocate(|_| false)).collect();
        assert_eq!(ids.len(), 0xfffd, "all but 0, 1 and the highest");
        assert!(ids.iter().all(|id| id.0 >> 16 == 0 && id.0 != 0));
    }

    #[test]
    fn ids_without_prefix_use_all_bits() {
        let mut pool = IdPool::new(CommIds::ALL, &mut Pcg32::new(3, 1));
        let ids: Vec<u32> = (0..64).map(|_| pool.allocate(|_| false).0).collect();
        assert!(ids.iter().fold(0, |a, b| a | b) == u32::MAX && ids.iter().fold(u32::MAX, |a, b| a & b) == 0);
        // Known IDs do not reveal the next one: hardly any two have the same distance.
        let steps: BTreeSet<u32> = ids.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert!(steps.len() > 60, "{}", steps.len());
    }
}
