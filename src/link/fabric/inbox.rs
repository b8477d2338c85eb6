use super::model::{Egress, FabricCounters, Schedule};
use crate::transport::Instant;
use crate::wire::{Flow, IpIdent};

/// A run of packets on its way to a port.
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

/// All that senders change about a port, behind its lock.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub schedule: Schedule<Delivery>,
    /// Of all that is in the schedule.
    pub bytes: usize,
    /// The wire to this port.
    pub egress: Egress,
    /// Buffers that the port has read and senders may fill again.
    pub pool: Pool,
    pub counters: FabricCounters,
}

/// What a receiver takes in one turn, so that it gets around to sending.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_DELIVERIES: usize = 64;

impl Inbox {
    /// Moves what is due at `now`, up to a batch, to the end of `out`.
    pub fn take_due(&mut self, now: Instant, out: &mut Vec<Delivery>) {
        let mut bytes = 0;
        while bytes < BATCH_BYTES && out.len() < BATCH_DELIVERIES {
            let Some(delivery) = self.schedule.pop_due(now) else { break };
            bytes += delivery.data.len();
            out.push(delivery);
        }
        self.bytes -= bytes;
    }

    /// When the first delivery is due, as [`super::port::PortShared`] publishes it.
    pub fn earliest(&self) -> u64 {
        self.schedule.earliest().map_or(u64::MAX, |at| at.0)
    }
}

/// Free buffers by size, so that an ACK does not sit in the buffer of a megabyte WRITE. The one last used
/// is used next, as it is the warmest in the cache.
#[derive(Debug, Default)]
pub(super) struct Pool {
    classes: [Vec<Vec<u8>>; CLASSES.len()],
}

/// Size of a buffer, and how many are kept.
const CLASSES: [(usize, usize); 3] = [(1 << 10, 1024), (16 << 10, 256), (256 << 10, 32)];

impl Pool {
    fn class_for(len: usize) -> usize {
        CLASSES.iter().position(|(size, _)| len <= *size).unwrap_or(CLASSES.len() - 1)
    }

    /// An empty buffer with room for `len` bytes.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let class = Pool::class_for(len);
        match self.classes[class].pop() {
            Some(mut buffer) => {
                buffer.clear();
                buffer
            }
            None => Vec::with_capacity(len.max(CLASSES[class].0)),
        }
    }

    /// Keeps a buffer for later, unless there are enough.
    pub fn put(&mut self, buffer: Vec<u8>) {
        let fits = CLASSES.iter().rposition(|(size, _)| *size <= buffer.capacity());
        if let Some(class) = fits
            && self.classes[class].len() < CLASSES[class].1
        {
            self.classes[class].push(buffer);
        }
    }

    /// Takes the warmest buffer over from `other` for each size that has run out here.
    pub fn refill(&mut self, other: &mut Pool) {
        for (mine, theirs) in self.classes.iter_mut().zip(&mut other.classes) {
            if mine.is_empty() {
                mine.extend(theirs.pop());
            }
        }
    }
}
