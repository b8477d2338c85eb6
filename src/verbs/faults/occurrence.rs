//! Selection among calls.

use std::str::FromStr;

use crate::fault_rules::not_a_count;
use crate::sys::rng::splitmix64;

/// Selection among the calls with the names that a fault gives.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Occurrence {
    /// All calls.
    All,
    /// The n-th call only, counted from 1.
    Nth(u64),
    /// Every n-th call: the n-th, the 2n-th and so on.
    Every(u64),
    /// Each call with the given probability.
    Probability(f64),
}

impl Occurrence {
    /// Reports whether the `n`-th call, counted from 1, is selected. Random decisions depend on `seed` and
    /// `n` alone.
    pub(super) fn selects(self, n: u64, seed: u64) -> bool {
        match self {
            Occurrence::All => true,
            Occurrence::Nth(nth) => n == nth,
            Occurrence::Every(every) => every > 0 && n.is_multiple_of(every),
            Occurrence::Probability(p) => ((splitmix64(seed, n) >> 11) as f64) / ((1u64 << 53) as f64) < p,
        }
    }
}

impl FromStr for Occurrence {
    type Err = String;

    /// Parses the part after `@` or `when=`: `3`, `every:3` or `p:0.3`.
    fn from_str(text: &str) -> Result<Occurrence, String> {
        let positive = |text: &str| match text.parse() {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(not_a_count(text, "call")),
        };
        match text.split_once(':') {
            Some(("every", n)) => Ok(Occurrence::Every(positive(n)?)),
            Some(("p", p)) => match p.parse::<f64>() {
                Ok(p) if (0.0..=1.0).contains(&p) => Ok(Occurrence::Probability(p)),
                _ => Err(format!("'{p}' is not a probability from 0 to 1: write 1 % as p:0.01")),
            },
            Some((other, _)) => Err(format!("unknown prefix '{other}:': write 3, every:3 or p:0.3")),
            None => Ok(Occurrence::Nth(positive(text)?)),
        }
    }
}
