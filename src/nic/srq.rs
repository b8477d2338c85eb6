use crate::memory::PdId;
use crate::transport::{RecvCaps, SharedReceives, SrqId};

/// The shared receive queues by number.
#[derive(Debug, Default)]
pub(super) struct SrqTable {
    slots: Vec<Option<SharedReceives>>,
    free: Vec<u32>,
}

impl SrqTable {
    /// `None` if there are `max` already.
    pub fn insert(&mut self, pd: PdId, caps: RecvCaps, max: u32) -> Option<SrqId> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if (self.slots.len() as u32) < max => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let id = SrqId(slot);
        self.slots[slot as usize] = Some(SharedReceives::new(id, pd, caps));
        Some(id)
    }

    pub fn get(&self, id: SrqId) -> Option<&SharedReceives> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, id: SrqId) -> Option<&mut SharedReceives> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    pub fn remove(&mut self, id: SrqId) {
        if let Some(slot) = self.slots.get_mut(id.0 as usize)
            && slot.take().is_some()
        {
            self.free.push(id.0);
        }
    }
}
