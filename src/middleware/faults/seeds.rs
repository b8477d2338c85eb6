//! Seeds of random faults.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::rng::splitmix64;

/// Seeds for the random faults of several links, which are all derived from one seed. Every link gets a new
/// one, so a program that opens its device again continues the random sequence rather than repeats its
/// beginning.
#[derive(Clone, Debug)]
pub struct FaultSeeds {
    seed: u64,
    links: Arc<AtomicU64>,
}

impl FaultSeeds {
    /// Derives seeds from `seed`, or from a random number.
    pub fn new(seed: Option<u64>) -> FaultSeeds {
        // Short enough to be typed again.
        let random = || RandomState::new().hash_one(std::process::id()) >> 32;
        FaultSeeds { seed: seed.unwrap_or_else(random), links: Arc::default() }
    }

    /// Returns the seed from which the others are derived.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the seed for a new link: for the first one, that of [`seed`](FaultSeeds::seed).
    pub fn next(&self) -> u64 {
        match self.links.fetch_add(1, Ordering::Relaxed) {
            0 => self.seed,
            n => splitmix64(self.seed, n),
        }
    }
}

impl Default for FaultSeeds {
    fn default() -> FaultSeeds {
        FaultSeeds::new(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_has_another_seed_and_the_same_seed_repeats_them() {
        let take = |seeds: FaultSeeds| [(); 4].map(|()| seeds.clone().next());
        let seeds = take(FaultSeeds::new(Some(7)));
        assert_eq!(seeds, take(FaultSeeds::new(Some(7))));
        assert_eq!(seeds[0], 7);
        assert!((1..4).all(|n| !seeds[..n].contains(&seeds[n])), "{seeds:?}");
        assert_ne!(FaultSeeds::default().seed(), FaultSeeds::default().seed());
    }
}
