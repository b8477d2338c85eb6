//! Shared receive queue table of a NIC, which assigns the queue numbers.

use super::ShardId;
use super::cq_handle::CqHandle;
use crate::memory::PdId;
use crate::transport::{RecvCaps, SharedReceives, SrqId, XrcdId};

/// Shared receive queues, indexed by number.
///
/// The lower 16 bits of a number contain the shard and above it the slot. The higher bits are a generation
/// count that advances whenever the slot is reused, so that XRC packets for a destroyed queue do not reach
/// its successor.
#[derive(Debug)]
pub(super) struct SrqTable {
    shard: ShardId,
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    round: u8,
    queue: Option<SharedReceives>,
    /// Completion queue for receives, if this is an XRC shared receive queue; with other queues, receives
    /// complete to the queue pair's CQ.
    cq: Option<CqHandle>,
}

const SLOT_BITS: u32 = 16;

impl SrqTable {
    pub fn new(shard: ShardId) -> SrqTable {
        SrqTable { shard, slots: Vec::new(), free: Vec::new() }
    }

    /// Creates a queue. Returns `None` if there are already `max` queues, or all slots are in use.
    pub fn insert(
        &mut self,
        pd: PdId,
        xrc: Option<(XrcdId, CqHandle)>,
        caps: RecvCaps,
        max: u32,
    ) -> Option<SrqId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if (self.slots.len() as u32) < max.min(1 << (SLOT_BITS - self.shard.bits())) => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let (domain, cq) = xrc.unzip();
        let slot = &mut self.slots[index as usize];
        slot.round = slot.round.wrapping_add(1);
        let id = SrqId(u32::from(slot.round) << SLOT_BITS | index << self.shard.bits() | self.shard.index());
        (slot.queue, slot.cq) = (Some(SharedReceives::new(id, pd, domain, caps)), cq);
        Some(id)
    }

    fn index(&self, id: SrqId) -> usize {
        ((id.0 & ((1 << SLOT_BITS) - 1)) >> self.shard.bits()) as usize
    }

    pub fn get(&self, id: SrqId) -> Option<&SharedReceives> {
        self.slots.get(self.index(id))?.queue.as_ref().filter(|q| q.id == id)
    }

    pub fn get_mut(&mut self, id: SrqId) -> Option<&mut SharedReceives> {
        let index = self.index(id);
        self.slots.get_mut(index)?.queue.as_mut().filter(|q| q.id == id)
    }

    /// Returns the completion queue for receives, if `id` is an XRC shared receive queue.
    pub fn cq(&self, id: SrqId) -> Option<CqHandle> {
        self.get(id).and_then(|_| self.slots[self.index(id)].cq)
    }

    /// Removes a queue. Returns its completion queue for receives if it is an XRC shared receive queue.
    pub fn remove(&mut self, id: SrqId) -> Option<CqHandle> {
        self.get(id)?;
        let index = self.index(id);
        let slot = &mut self.slots[index];
        slot.queue = None;
        self.free.push(index as u32);
        slot.cq.take()
    }
}
