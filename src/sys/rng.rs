//! Reproducible random numbers: the generator for fault injection and simulated links, and SplitMix64 where
//! golden files depend on it.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

/// A random number generator that always draws the same sequence for the same seed and stream.
#[derive(Clone, Debug)]
pub struct SimRng(Pcg64Mcg);

/// Returns the `n`-th number, counted from 1, of the SplitMix64 sequence for a seed. First PSNs come from
/// this sequence, because stored captures (`pcaps/own`) contain them; everything else uses a generator from
/// `rand_pcg`.
pub fn splitmix64(seed: u64, n: u64) -> u64 {
    mix(seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Applies the SplitMix64 finaliser, which makes adjacent seeds and streams give unrelated generators.
/// `tests/pure/simulation/grid.golden` depends on it.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl SimRng {
    /// Returns the generator of a seed and a stream.
    pub fn new(seed: u64, stream: u64) -> SimRng {
        let stream = mix(stream);
        SimRng(Pcg64Mcg::new((mix(seed ^ stream) as u128) << 64 | mix(stream) as u128))
    }

    /// Returns true with probability `p`. Draws no number if `p` is 0, so that enabling one option changes as
    /// little as possible in a reproducible run.
    pub fn bernoulli(&mut self, p: f64) -> bool {
        p > 0.0 && ((self.0.next_u64() >> 11) as f64) / ((1u64 << 53) as f64) < p
    }

    /// Draws an integer uniformly from 0..n.
    pub fn below(&mut self, n: u64) -> u64 {
        ((self.0.next_u64() as u128 * n as u128) >> 64) as u64
    }
}
