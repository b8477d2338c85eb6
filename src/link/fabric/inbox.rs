//! Inbox of a port: the packets in flight to it, and the buffers that hold them.

use super::model::{Egress, FabricCounters, Schedule};
use crate::transport::Instant;
use crate::wire::{Flow, IpIdent};

/// Run of packets in flight to a port.
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

/// State of a port that senders modify, protected by the port's lock.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub schedule: Schedule<Delivery>,
    /// Number of bytes of the scheduled packets.
    pub bytes: usize,
    /// Wire to this port.
    pub egress: Egress,
    /// Buffers whose packets the port has read, for reuse by senders.
    pub pool: BufferPool,
    pub counters: FabricCounters,
}

/// Limits of a batch that a receiver processes in one turn, so that it can send in between.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_DELIVERIES: usize = 64;

impl Inbox {
    /// Moves the deliveries that are due at `now`, up to a batch, to the end of `out`.
    pub fn take_due(&mut self, now: Instant, out: &mut Vec<Delivery>) {
        let mut bytes = 0;
        while bytes < BATCH_BYTES && out.len() < BATCH_DELIVERIES {
            let Some(delivery) = self.schedule.pop_due(now) else { break };
            bytes += delivery.data.len();
            out.push(delivery);
        }
        self.bytes -= bytes;
    }

    /// Returns the time at which the first delivery is due, in the form that [`super::port::PortShared`]
    /// publishes.
    pub fn earliest(&self) -> u64 {
        self.schedule.earliest().map_or(u64::MAX, |at| at.0)
    }
}

/// Free buffers by size class, so that an ACK does not occupy the buffer of a megabyte WRITE. The most
/// recently used one is reused first, as it is most likely in the cache.
#[derive(Debug, Default)]
pub(super) struct BufferPool {
    classes: [Vec<Vec<u8>>; CLASSES.len()],
}

/// Size of the buffers in bytes, and maximum number of free buffers, for each size class.
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

    /// Keeps a buffer for reuse, unless its class is full.
    pub fn put(&mut self, buffer: Vec<u8>) {
        let fits = CLASSES.iter().rposition(|(size, _)| *size <= buffer.capacity());
        if let Some(class) = fits
            && self.classes[class].len() < CLASSES[class].1
        {
            self.classes[class].push(buffer);
        }
    }

    /// Takes the most recently used buffer of each size class from `source` if this pool has none of the
    /// class.
    pub fn refill(&mut self, source: &mut BufferPool) {
        for (own, other) in self.classes.iter_mut().zip(&mut source.classes) {
            if own.is_empty() {
                own.extend(other.pop());
            }
        }
    }
}
