//! Rings in shared memory between the two sides, which are read at random virtual times.

use std::net::IpAddr;
use std::time::Duration;

use urxe::link::RxBurst;
use urxe::transport::{Instant, TxQueue};
use urxe::wire::Flow;

use urxe_test_support::engine::{Rng, write_icrc};
use urxe_test_support::ring::{CAPACITY, Ring};

/// Maximum numbers of bytes that a reader takes at a time, with the maximum times in nanoseconds until it
/// does so again. All read a full ring in less than the time after which no packets are expected any more.
const READERS: [(u64, u64); 3] = [(1, 1_000), (4096, 20_000), (CAPACITY as u64, 80_000)];

pub struct Rings {
    /// Addresses of the sides.
    ips: [IpAddr; 2],
    /// The rings, by the side that reads them.
    rings: [Ring; 2],
    /// Time at which each reader looks at its ring again; `None` while it sleeps.
    next_read: [Option<Instant>; 2],
    readers: [(u64, u64); 2],
    rng: Rng,
    scratch: Vec<u8>,
    /// Hash of all packets and their transmission times.
    pub trace: crc32fast::Hasher,
}

impl Rings {
    pub fn new(ips: [IpAddr; 2], mut rng: Rng) -> Rings {
        let mut ring = |src, dst| Ring::new(src, dst, rng.percent(80));
        Rings {
            ips,
            rings: [ring(ips[1], ips[0]), ring(ips[0], ips[1])],
            next_read: [None; 2],
            readers: [(); 2].map(|()| rng.pick(&READERS)),
            rng,
            scratch: Vec::new(),
            trace: crc32fast::Hasher::new(),
        }
    }

    fn later(&mut self, now: Instant, side: usize) -> Instant {
        now + Duration::from_nanos(1 + self.rng.below(self.readers[side].1))
    }

    /// Writes the packets for a side, as far as there is room for them, and empties the queue. Passes packets
    /// for the own side, which take no ring, to `to_wire`.
    pub fn send(
        &mut self,
        now: Instant,
        to: usize,
        tx: &mut TxQueue,
        mut to_wire: impl FnMut(Flow, Vec<u8>),
    ) {
        if tx.is_empty() {
            return;
        }
        for burst in tx.bursts() {
            self.scratch.clear();
            burst.copy_to(&mut self.scratch);
            self.trace.update(&now.0.to_le_bytes());
            self.trace.update(&self.scratch);
            if burst.flow.dst == self.ips[to] {
                self.rings[to].write(&burst);
                continue;
            }
            for packet in self.scratch.chunks_mut(burst.segment) {
                write_icrc(packet, &burst.flow);
                to_wire(burst.flow, packet.to_vec());
            }
        }
        if self.rings[to].publish() {
            assert_eq!(self.next_read[to], None, "a reader is notified that does not sleep");
            self.next_read[to] = Some(self.later(now, to));
        }
        assert!(self.rings[to].is_empty() || self.next_read[to].is_some(), "the reader sleeps");
        tx.clear();
        // As on a link that has written to a ring.
        tx.defer_icrcs();
    }

    /// Returns the earliest time at which a ring is read.
    pub fn next(&self) -> Option<Instant> {
        self.next_read.into_iter().flatten().min()
    }

    /// Passes the bursts to `sink` that are read by `now`.
    pub fn read(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) {
        for side in 0..2 {
            if self.next_read[side].is_some_and(|at| at <= now) {
                self.rings[side].read(self.readers[side].0, sink);
                self.next_read[side] = match self.rings[side].sleep_if_empty() {
                    true => None,
                    false => Some(self.later(now, side)),
                };
            }
        }
    }
}
