//! A port's inbox: the packets in flight to the port, and the buffers that hold them.

use super::model::{Egress, FabricCounters, Schedule};
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
    pub schedule: Schedule<Delivery>,
    /// Number of bytes in the scheduled packets.
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
    /// Moves the deliveries due at `now` to the end of `out`, up to one batch.
    pub fn take_due(&mut self, now: Instant, out: &mut Vec<Delivery>) {
        let mut bytes = 0;
        while bytes < BATCH_BYTES && out.len() < BATCH_DELIVERIES {
            let Some(delivery) = self.schedule.pop_due(now) else { break };
            bytes += delivery.data.len();
            out.push(delivery);
        }
        self.bytes -= bytes;
    }

    /// Returns the time at which the first delivery is due, in the encoding of `PortShared::earliest`.
    pub fn earliest(&self) -> u64 {
        self.schedule.earliest().map_or(u64::MAX, |at| at.0)
    }
}

/// Free buffers by size class, so that an ACK does not occupy a buffer for a megabyte WRITE. The most
/// recently used buffer is reused first, because it is the most likely to be in the cache.
#[derive(Debug, Default)]
pub(super) struct BufferPool {
    classes: [Vec<Vec<u8>>; CLASSES.len()],
}

/// Buffer size in bytes and maximum number of free buffers of each size class.
const CLASSES: [(usize, usize); 3] = [(1 << 10, 1024), (16 << 10, 256), (256 << 10, 32)];

impl BufferPool {
    fn class_for(len: usize) -> usize {
        CLASSES.iter().position(|(size, _)| len <= *size).unwrap_or(CLASSES.len() - 1)
    }

    /// Returns an empty buffer with room for `len` bytes.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let class = BufferPool::class_for(len);
        match self.classes[class].pop() {
            Some(mut buffer) => {
                buffer.clear();
                buffer
            }
            None => Vec::with_capacity(len.max(CLASSES[class].0)),
        }
    }

    /// Keeps a buffer for reuse, unless its size class is full.
    pub fn put(&mut self, buffer: Vec<u8>) {
        let fits = CLASSES.iter().rposition(|(size, _)| *size <= buffer.capacity());
        if let Some(class) = fits
            && self.classes[class].len() < CLASSES[class].1
        {
            self.classes[class].push(buffer);
        }
    }

    /// For each size class in which this pool has no buffers, takes the most recently used one from `source`.
    pub fn refill(&mut self, source: &mut BufferPool) {
        for (own, other) in self.classes.iter_mut().zip(&mut source.classes) {
            if own.is_empty() {
                own.extend(other.pop());
            }
        }
    }
}
