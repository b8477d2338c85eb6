//! Parameters of a run: operation, measure, message sizes and amount of work.

use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::size::parse_size;

/// Operation to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// SEND
    Send,
    /// RDMA WRITE
    Write,
    /// RDMA READ
    Read,
    /// Fetch-and-add on 8 bytes
    Atomic,
}

impl Verb {
    /// Reports whether both sides send in turns in a latency test, so that half the round trip is reported.
    pub fn is_pingpong(self) -> bool {
        matches!(self, Verb::Send | Verb::Write)
    }

    /// Returns the name that the heading of the results contains.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Send => "SEND",
            Verb::Write => "WRITE",
            Verb::Read => "READ",
            Verb::Atomic => "FETCH_AND_ADD",
        }
    }
}

/// Quantity to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Bandwidth.
    Bw,
    /// Latency.
    Lat,
}

/// Parameters of a run that both ends need.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Params {
    /// Operation to measure.
    pub verb: Verb,
    /// Bandwidth or latency.
    pub measure: Measure,
    /// Length in bytes of the longest message.
    pub max_size: u32,
    /// Number of queue pairs.
    pub qps: u32,
    /// Work requests in flight per queue pair.
    pub depth: u32,
    /// Maximum number of messages per completion.
    pub cq_mod: u32,
}

/// Message sizes: `8`, `64K`, `1M`, several separated by commas, or `all`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes(pub Vec<u32>);

/// Maximum message size in bytes.
pub const MAX_SIZE: u32 = 1 << 30;

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        if text == "all" {
            return Ok(Sizes((1..=23).map(|n| 1 << n).collect()));
        }
        text.split(',').map(size).collect::<Result<_, _>>().map(Sizes)
    }
}

fn size(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).ok().and_then(|n| u32::try_from(n).ok());
    bytes.filter(|b| (1..=MAX_SIZE).contains(b)).ok_or_else(|| {
        format!(
            "invalid message size '{text}': specify 1 to 1G bytes, such as 8, 64K or 1M, several separated \
             by commas, or all"
        )
    })
}

/// Amount of work for each message size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// Number of messages per queue pair.
    Iterations(u64),
    /// Time to measure for.
    Duration(Duration),
}

/// Division of an amount of work into chunks of about half a second, so that progress can be shown and a run
/// ended by Ctrl-C has a result.
#[derive(Debug)]
pub struct Chunks {
    amount: Amount,
    /// Number of messages done per queue pair.
    pub done: u64,
    /// Time spent.
    pub spent: Duration,
    first: u64,
}

impl Chunks {
    const CHUNK_TIME: Duration = Duration::from_millis(500);

    /// Divides `amount` into chunks. The first chunk has `first` messages; the rate measured so far
    /// determines the length of each later chunk.
    pub fn new(amount: Amount, first: u64) -> Chunks {
        Chunks { amount, done: 0, spent: Duration::ZERO, first }
    }

    /// Returns the number of messages in the next chunk, or `None` at the end.
    pub fn next(&self) -> Option<u64> {
        let remaining = match self.amount {
            Amount::Iterations(n) => n - self.done.min(n),
            Amount::Duration(d) if self.spent >= d => 0,
            Amount::Duration(d) => self.messages_in(d.saturating_sub(self.spent)),
        };
        Some(remaining.min(self.messages_in(Self::CHUNK_TIME))).filter(|n| *n > 0)
    }

    /// Returns how many messages fit into `time` at the rate measured so far: at least one, and at most 16
    /// times the number done.
    fn messages_in(&self, time: Duration) -> u64 {
        if self.done == 0 {
            return self.first;
        }
        let rate = self.done as f64 / self.spent.as_secs_f64().max(1e-9);
        ((rate * time.as_secs_f64()) as u64).clamp(1, self.done.saturating_mul(16))
    }

    /// Records that a chunk of `n` messages took `elapsed`.
    pub fn record(&mut self, n: u64, elapsed: Duration) {
        self.done += n;
        self.spent += elapsed;
    }

    /// Returns the completed fraction of the amount, from 0 to 1.
    pub fn fraction(&self) -> f64 {
        match self.amount {
            Amount::Iterations(n) => self.done as f64 / n.max(1) as f64,
            Amount::Duration(d) => (self.spent.as_secs_f64() / d.as_secs_f64()).min(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_message_sizes_are_parsed_and_invalid_ones_rejected() {
        assert_eq!("8,64K,1M".parse(), Ok(Sizes(vec![8, 65_536, 1 << 20])));
        assert_eq!("all".parse::<Sizes>().unwrap().0[..3], [2, 4, 8]);
        for bad in ["", "0", "-1", "8,", "2000M", "4294967296", "1.5K", "x"] {
            assert!(bad.parse::<Sizes>().unwrap_err().contains("message size"), "{bad}");
        }
    }

    #[test]
    fn chunks_add_up_to_the_requested_iterations_or_duration() {
        let mut p = Chunks::new(Amount::Iterations(10_000), 100);
        let mut total = 0;
        while let Some(n) = p.next() {
            total += n;
            p.record(n, Duration::from_micros(n * 100));
        }
        assert_eq!((total, p.done), (10_000, 10_000));
        let mut p = Chunks::new(Amount::Duration(Duration::from_secs(2)), 100);
        while let Some(n) = p.next() {
            p.record(n, Duration::from_micros(n * 100));
        }
        assert!((19_900..20_200).contains(&p.done), "{}", p.done);
    }
}
