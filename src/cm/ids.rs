use rand_pcg::Pcg32;
use rand_pcg::rand_core::Rng;

use super::CommIds;
use crate::wire::Permutation;
use crate::wire::mad::CommId;

/// Gives out communication IDs: each of the range once before one comes again, in an order that is not easily guessed.
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

    /// The next ID that is not taken. There is one: far fewer than the range may be.
    pub fn pick(&mut self, is_taken: impl Fn(CommId) -> bool) -> CommId {
        loop {
            self.next = self.next.wrapping_add(1);
            let Some(low) = self.permutation.invert(self.next & u32::MAX >> self.range.bits) else {
                continue;
            };
            let id = self.range.id(low);
            // 0, which stands for an ID that is not known, is not among them.
            if !is_taken(id) {
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
        let ids: BTreeSet<CommId> = (0..0xfffd).map(|_| pool.pick(|_| false)).collect();
        assert_eq!(ids.len(), 0xfffd, "all but 0, 1 and the highest");
        assert!(ids.iter().all(|id| id.0 >> 16 == 0 && id.0 != 0));
    }

    #[test]
    fn without_a_prefix_all_bits_are_free() {
        let mut pool = IdPool::new(CommIds::ALL, &mut Pcg32::new(3, 1));
        let ids: Vec<u32> = (0..64).map(|_| pool.pick(|_| false).0).collect();
        assert!(ids.iter().fold(0, |a, b| a | b) == u32::MAX && ids.iter().fold(u32::MAX, |a, b| a & b) == 0);
        // Those that are given out say nothing of the next: no distance between two comes twice.
        let steps: BTreeSet<u32> = ids.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert!(steps.len() > 60, "{}", steps.len());
    }
}
