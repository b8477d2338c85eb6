//! Wire in virtual time that loses, duplicates, reorders and corrupts packets.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use urxe::transport::Instant;
use urxe::wire::Flow;

use urxe_test_support::engine::Rng;

/// Probability of each fault per packet, in percent.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: u64,
    pub dup: u64,
    pub reorder: u64,
    pub corrupt: u64,
}

impl Faults {
    pub const NONE: Faults = Faults { loss: 0, dup: 0, reorder: 0, corrupt: 0 };
}

/// Duration in nanoseconds of the alternating phases with and without faults; uninterrupted faults would
/// exhaust any retry count.
const PHASE: u64 = 2_000_000;

/// Index of the BTH byte with FECN, BECN and reserved bits, which the ICRC does not cover and receivers
/// ignore.
const UNCOVERED: usize = 4;

/// A packet in transit.
pub struct Flight {
    at: Instant,
    sequence: u64,
    pub flow: Flow,
    pub bytes: Vec<u8>,
    /// Whether a bit covered by the ICRC is corrupted.
    pub corrupt: bool,
}

impl PartialEq for Flight {
    fn eq(&self, other: &Flight) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Flight {}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Flight) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flight {
    fn cmp(&self, other: &Flight) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

pub struct Wire {
    faults: Faults,
    flights: BinaryHeap<Reverse<Flight>>,
    sequence: u64,
    /// Hash of all packets and their transmission times.
    pub trace: crc32fast::Hasher,
}

impl Wire {
    pub fn new(faults: Faults) -> Wire {
        Wire { faults, flights: BinaryHeap::new(), sequence: 0, trace: crc32fast::Hasher::new() }
    }

    /// Sends a packet: drops it, or queues one or two copies of it, each possibly corrupted or delayed.
    pub fn send(&mut self, now: Instant, flow: Flow, bytes: Vec<u8>, rng: &mut Rng) {
        self.trace.update(&now.0.to_le_bytes());
        self.trace.update(&bytes);
        let Faults { loss, dup, reorder, corrupt } = self.faults;
        let is_faulty = (now.0 / PHASE).is_multiple_of(2);
        let mut hits = |percent| is_faulty && rng.percent(percent);
        if hits(loss) {
            return;
        }
        let copies = if hits(dup) { vec![bytes.clone(), bytes] } else { vec![bytes] };
        for mut bytes in copies {
            let mut hits = |percent| is_faulty && rng.percent(percent);
            let (corrupts, delays) = (hits(corrupt), hits(reorder));
            let mut covered = false;
            if corrupts {
                let bit = rng.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
                covered = bit / 8 != UNCOVERED;
            }
            let delay = 3_000 + if delays { rng.below(300_000) } else { 0 };
            self.sequence += 1;
            let (at, sequence) = (now + Duration::from_nanos(delay), self.sequence);
            self.flights.push(Reverse(Flight { at, sequence, flow, bytes, corrupt: covered }));
        }
    }

    /// Returns the earliest arrival time of a packet in transit.
    pub fn next(&self) -> Option<Instant> {
        self.flights.peek().map(|Reverse(f)| f.at)
    }

    /// Removes and returns the next packet if it arrives by `now`.
    pub fn arrived(&mut self, now: Instant) -> Option<Flight> {
        self.next().filter(|at| *at <= now)?;
        self.flights.pop().map(|Reverse(f)| f)
    }
}
