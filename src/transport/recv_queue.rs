//! Receive queue, owned by one queue pair or shared by several.

use super::fifo::Fifo;
use super::sge_list::gather;
use super::{PostError, RecvCaps, RecvWr, Sge};
use crate::burst::ReceivedPayload;
use crate::memory::{Access, AccessError, Accessor, HostSlice, Table};

#[derive(Debug, Clone, Copy)]
struct RecvWqe {
    wr_id: u64,
    /// Total length of the scatter/gather elements in bytes.
    len: u64,
    sges: usize,
}

/// Queue of posted receives, owned by one queue pair or shared by several.
#[derive(Debug, Default)]
pub(super) struct RecvQueue {
    pub caps: RecvCaps,
    wqes: Fifo<RecvWqe>,
    sges: Fifo<Sge>,
}

/// Receive taken from a receive queue for a message. The struct is reused for all messages to avoid
/// allocations.
#[derive(Debug, Default)]
pub(super) struct Receive {
    pub wr_id: u64,
    /// Total length of the scatter/gather elements in bytes.
    pub len: u64,
    sges: Vec<Sge>,
}

impl RecvQueue {
    pub fn new(caps: RecvCaps) -> RecvQueue {
        RecvQueue { caps, ..RecvQueue::default() }
    }

    /// Queues a receive. `in_use` is the number of earlier receives that have left the queue but are not
    /// complete.
    pub fn post(&mut self, wr: &RecvWr<'_>, in_use: usize) -> Result<(), PostError> {
        if self.wqes.len() + in_use >= self.caps.max_wr as usize {
            return Err(PostError::QueueFull(self.caps.max_wr));
        }
        if wr.sges.len() > self.caps.max_sge as usize {
            return Err(PostError::TooManySges { got: wr.sges.len(), max: self.caps.max_sge });
        }
        self.sges.extend(wr.sges);
        let len = wr.sges.iter().map(|s| s.length as u64).sum();
        self.wqes.push(RecvWqe { wr_id: wr.wr_id, len, sges: wr.sges.len() });
        Ok(())
    }

    /// Reports whether nothing has ever been posted.
    pub fn is_unused(&self) -> bool {
        self.wqes.end() == 0
    }

    pub fn len(&self) -> usize {
        self.wqes.len()
    }

    /// Returns the capacity of the oldest receive in bytes.
    pub fn front_len(&self) -> Option<u64> {
        self.wqes.front().map(|w| w.len)
    }

    /// Moves the oldest receive to `into`. Returns false if the queue is empty.
    pub fn take(&mut self, into: &mut Receive) -> bool {
        let Some(wqe) = self.wqes.pop() else { return false };
        (into.wr_id, into.len) = (wqe.wr_id, wqe.len);
        into.sges.clear();
        into.sges.extend(self.sges.range(self.sges.start(), wqe.sges));
        self.sges.release(wqe.sges);
        true
    }

    pub fn clear(&mut self) {
        self.wqes.clear();
        self.sges.clear();
    }
}

impl Receive {
    /// Returns the reason for which memory of the receive may not be written; `None` if all of it may.
    pub fn denied(&self, by: Accessor, memory: &Table) -> Option<AccessError> {
        let denied = |s: &Sge| memory.local(by, s.lkey, s.addr, s.length, Access::LOCAL_WRITE).err();
        self.sges.iter().find_map(denied)
    }

    /// Returns the memory at byte offset `at` of the receive's buffers, up to the end of the scatter/gather
    /// element and at most `max` bytes. Returns `None` if nothing is left or it may not be written.
    pub fn element_at(&self, at: u32, max: u32, by: Accessor, memory: &Table) -> Option<HostSlice> {
        // `Err` ends the iteration at the first element.
        let first = gather(self.sges.iter(), at, max, |sge, addr, n| {
            Err(memory.local(by, sge.lkey, addr, n, Access::LOCAL_WRITE).ok())
        });
        first.err()?
    }

    /// Stores `data` at byte offset `at` of the receive's buffers. If this fails, part of the data may have
    /// been stored.
    pub fn scatter(
        &self,
        at: u32,
        data: ReceivedPayload<'_>,
        by: Accessor,
        memory: &Table,
    ) -> Result<(), AccessError> {
        let mut rest = data;
        gather(self.sges.iter(), at, data.len() as u32, |sge, addr, n| {
            let (now, later) = rest.split_at(n as usize);
            rest = later;
            let slice = memory.local(by, sge.lkey, addr, n, Access::LOCAL_WRITE)?;
            let not_mapped = |_| AccessError::NotMapped { key: sge.lkey.0, addr, len: n.into() };
            now.store_to(slice).map_err(not_mapped)
        })
    }
}
