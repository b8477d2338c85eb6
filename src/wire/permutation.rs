//! Keyed permutations, for identifiers that cannot be guessed from one another.

/// Keyed permutation of the numbers `2..2^bits - 1`, which turns a counter into identifiers that cannot be
/// guessed from one another. The two lowest numbers and the highest are excluded, because they have special
/// meanings as queue pair numbers or keys.
///
/// The permutation is not cryptographic: a sender that has seen no identifiers, or only a few, cannot
/// guess others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permutation {
    /// Half the number of bits, rounded up: a xorshift by this distance is its own inverse.
    half: u32,
    mask: u32,
    factors: [u32; 2],
    inverses: [u32; 2],
}

impl Permutation {
    /// Lowest permuted number.
    pub const FIRST: u32 = 2;

    /// Creates the permutation of `bits`-bit numbers (2..=32 bits) that `key` selects.
    pub fn new(bits: u32, key: u64) -> Permutation {
        // Finalizer of MurmurHash3: keys that differ in one bit give unrelated factors.
        let mut z = key;
        for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
            z = (z ^ z >> 33).wrapping_mul(factor);
        }
        z ^= z >> 33;
        let factors = [z as u32 | 1, (z >> 32) as u32 | 1];
        Permutation {
            half: bits.div_ceil(2),
            mask: u32::MAX >> (u32::BITS - bits),
            factors,
            inverses: factors.map(inverse),
        }
    }

    /// Returns the number to which `x` is mapped. `x` must be one of the permuted numbers.
    pub fn apply(&self, x: u32) -> u32 {
        self.walk(x, self.factors)
    }

    /// Returns the number that is mapped to `y`, or `None` if `y` is not one of the permuted numbers.
    #[inline]
    pub fn invert(&self, y: u32) -> Option<u32> {
        self.permutes(y).then(|| self.walk(y, [self.inverses[1], self.inverses[0]]))
    }

    fn permutes(&self, x: u32) -> bool {
        (Self::FIRST..self.mask).contains(&x)
    }

    /// Repeats the rounds until the result is one of the permuted numbers (cycle walking). This terminates,
    /// because `x` is one of them and lies on its own cycle.
    #[inline]
    fn walk(&self, mut x: u32, factors: [u32; 2]) -> u32 {
        debug_assert!(self.permutes(x), "{x} of up to {}", self.mask);
        let (half, mask) = (self.half, self.mask);
        loop {
            x ^= x >> half;
            x = x.wrapping_mul(factors[0]) & mask;
            x ^= x >> half;
            x = x.wrapping_mul(factors[1]) & mask;
            x ^= x >> half;
            if self.permutes(x) {
                return x;
            }
        }
    }
}

/// Returns the multiplicative inverse of an odd number modulo 2^32, and thus modulo any smaller power of two,
/// by Newton's iteration.
fn inverse(odd: u32) -> u32 {
    (0..5).fold(odd, |x, _| x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x))))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn permutation_is_bijective_and_invertible() {
        for bits in [2, 3, 8, 13, 18] {
            for key in [0, 1, 0x1234_5678_9abc_def0, u64::MAX] {
                let p = Permutation::new(bits, key);
                let all = Permutation::FIRST..(1 << bits) - 1;
                let places: HashSet<u32> = all.clone().map(|x| p.apply(x)).collect();
                assert_eq!(places.len(), all.len());
                assert!(places.iter().all(|y| all.contains(y)));
                assert!(all.clone().all(|x| p.invert(p.apply(x)) == Some(x)));
                assert!([0, 1, (1 << bits) - 1].iter().all(|y| p.invert(*y).is_none()));
            }
        }
        let p = Permutation::new(32, 9);
        assert!([2, 77, u32::MAX - 1].iter().all(|x| p.invert(p.apply(*x)) == Some(*x)));
    }

    #[test]
    fn similar_keys_give_unrelated_permutations() {
        let places = |key| (2..66).map(move |x| Permutation::new(18, key).apply(x));
        let first: HashSet<u32> = (0..64).map(|key| Permutation::new(18, key).apply(2)).collect();
        assert!(first.len() > 60, "{first:?}");
        let equal = places(1).zip(places(2)).filter(|(a, b)| a == b).count();
        assert!(equal < 4, "{equal}");
        // Adjacent numbers are not mapped to adjacent ones.
        let steps: HashSet<u32> = places(1).zip(places(1).skip(1)).map(|(a, b)| b.wrapping_sub(a)).collect();
        assert!(steps.len() > 32, "{}", steps.len());
    }
}
