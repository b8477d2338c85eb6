//! A port's inbox: the packets in flight to the port, and the buffers that hold them.

use std::collections::VecDeque;

use super::model::{Egress, FabricCounters};
use crate::transport::Instant;
use crate::wire::{Flow, IpIdent};

/// Maximum number of bytes in flight to a port. Beyond it, packets are dropped, so that a peer that is never
/// driven cannot exhaust the memory.
pub(super) const INBOX_LIMIT: usize = 64 << 20;

/// A run of packets in flight to a port.
#[derive(Debug)]
pub(super) struct Delivery {
    pub flow: Flow,
    pub ident: IpIdent,
    pub segment: usize,
    pub data: Vec<u8>,
}

impl Delivery {
    pub fn packets(&self) -> usize {
        self.data.len().div_ceil(self.segment.max(1))
    }
}

/// The part of a port's state that senders modify, protected by the port's lock.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Deliveries with their due times, ordered by these and then by arrival at the switch.
    deliveries: VecDeque<(Instant, Delivery)>,
    /// Number of bytes in the deliveries.
    pub bytes: usize,
    /// Wire to this port.
    pub egress: Egress,
    /// Buffers for senders to reuse, whose packets the port has read.
    pub pool: BufferPool,
    pub counters: FabricCounters,
}

/// Limits of a batch, which is as much as a receiver processes in one turn before it sends.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_DELIVERIES: usize = 64;

impl Inbox {
    /// Adds a delivery that is due at `at`. Most deliveries are due after all others; otherwise few entries
    /// move.
    pub fn push(&mut self, at: Instant, delivery: Delivery) {
        self.bytes += delivery.data.len();
        match self.deliveries.back() {
            Some((back, _)) if *back > at => {
                let place = self.deliveries.partition_point(|(other, _)| *other <= at);
                self.deliveries.insert(place, (at, delivery));
            }
            _ => self.deliveries.push_back((at, delivery)),
        }
    }

    /// Adds a delivery due together with the last one, or at once if there is none.
    pub fn push_now(&mut self, delivery: Delivery) {
        let at = self.deliveries.back().map_or(Instant(0), |(at, _)| *at);
        self.push(at, delivery);
    }

    /// Moves the deliveries due at `now` to the end of `out`, up to one batch.
    pub fn take_due(&mut self, now: Instant, out: &mut Vec<Delivery>) {
        let mut bytes = 0;
        while bytes < BATCH_BYTES && out.len() < BATCH_DELIVERIES && self.earliest() <= now.0 {
            let Some((_, delivery)) = self.deliveries.pop_front() else { break };
            bytes += delivery.data.len();
            out.push(delivery);
        }
        self.bytes -= bytes;
    }

    /// Returns the time at which the first delivery is due, in the encoding of `PortShared::earliest`.
    pub fn earliest(&self) -> u64 {
        self.deliveries.front().map_or(u64::MAX, |(at, _)| at.0)
    }
}

/// Free buffers by size class, so that an ACK does not occupy a buffer for a megabyte WRITE. The most
/// recently used buffer is reused first, because it is the most likely to be in the cache.
#[derive(Debug)]
pub struct BufferPool<const CLASSES: usize = 3> {
    /// Buffer size in bytes and maximum number of free buffers of each size class.
    classes: [(usize, usize); CLASSES],
    free: [Vec<Vec<u8>>; CLASSES],
}

impl Default for BufferPool {
    fn default() -> BufferPool {
        BufferPool::new([(1 << 10, 1024), (16 << 10, 256), (256 << 10, 32)])
    }
}

impl<const CLASSES: usize> BufferPool<CLASSES> {
    /// Returns a pool without buffers, with the buffer size in bytes and the maximum number of free buffers of
    /// each size class.
    pub fn new(classes: [(usize, usize); CLASSES]) -> BufferPool<CLASSES> {
        BufferPool { classes, free: [const { Vec::new() }; CLASSES] }
    }

    /// Returns an empty buffer with room for `len` bytes.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let class = self.classes.iter().position(|(size, _)| len <= *size).unwrap_or(CLASSES - 1);
        self.free[class].pop().unwrap_or_else(|| Vec::with_capacity(len.max(self.classes[class].0)))
    }

    /// Keeps a buffer for reuse, unless its size class is full.
    pub fn put(&mut self, mut buffer: Vec<u8>) {
        let fits = self.classes.iter().rposition(|(size, _)| *size <= buffer.capacity());
        if let Some(class) = fits
            && self.free[class].len() < self.classes[class].1
        {
            buffer.clear();
            self.free[class].push(buffer);
        }
    }

    /// For each size class in which this pool has no buffers, takes the most recently used one from `source`.
    pub fn refill(&mut self, source: &mut BufferPool<CLASSES>) {
        for (own, other) in self.free.iter_mut().zip(&mut source.free) {
            if own.is_empty() {
                own.extend(other.pop());
            }
        }
    }
}
