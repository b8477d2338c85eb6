use std::collections::VecDeque;

use super::{Access, AccessError, HostSlice, PdId};
use crate::wire::{LKey, RKey};

/// The regions of one NIC, by key.
///
/// A key is 24 bits of slot and 8 of generation: the generation moves on with every registration in a slot,
/// so a key of a region that is gone names nothing.
#[derive(Debug, Default)]
pub struct Table {
    slots: Vec<Slot>,
    /// Oldest first, so that a generation lasts as long as it can.
    free: VecDeque<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u8,
    region: Option<Region>,
}

#[derive(Debug, Clone, Copy)]
struct Region {
    pd: PdId,
    /// Host address of the first byte.
    addr: usize,
    len: usize,
    /// The address by which work requests and peers name the first byte.
    iova: u64,
    access: Access,
}

/// What a registration gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionInfo {
    /// For local use.
    pub lkey: LKey,
    /// For peers; the same number, as on most hardware.
    pub rkey: RKey,
}

/// The most regions a table holds: slot 0 stays empty, so that key 0 names nothing.
const MAX_SLOTS: usize = 1 << 24;

impl Table {
    /// An empty table.
    pub fn new() -> Table {
        Table::default()
    }

    /// Registers `len` bytes at `addr`, named by peers and work requests from `iova` on. `None` if the table
    /// is full.
    ///
    /// # Safety
    /// The bytes must stay readable, and writable if `access` allows any writing, until
    /// [`deregister`](Self::deregister), their provenance exposed; their owner accepts that they change
    /// at any time, and synchronises with completions, as with DMA.
    pub unsafe fn register(
        &mut self,
        pd: PdId,
        addr: usize,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Option<RegionInfo> {
        if self.slots.is_empty() {
            self.slots.push(Slot::default());
        }
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() < MAX_SLOTS => {
                self.slots.push(Slot::default());
                (self.slots.len() - 1) as u32
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.region = Some(Region { pd, addr, len, iova, access });
        let lkey = LKey::from_parts(index, slot.generation);
        Some(RegionInfo { lkey, rkey: RKey(lkey.0) })
    }

    /// Forgets a region. Whether it was there.
    pub fn deregister(&mut self, lkey: LKey) -> bool {
        let index = lkey.index();
        match self.slots.get_mut(index as usize) {
            Some(slot) if slot.generation == lkey.generation() && slot.region.is_some() => {
                slot.region = None;
                self.free.push_back(index);
                true
            }
            _ => false,
        }
    }

    /// How many regions there are.
    pub fn len(&self) -> usize {
        self.slots.iter().filter(|s| s.region.is_some()).count()
    }

    /// Whether there are no regions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn region(
        &self,
        key: u32,
        pd: PdId,
        addr: u64,
        len: u64,
        needed: Access,
    ) -> Result<HostSlice, AccessError> {
        let lkey = LKey(key);
        let region = self
            .slots
            .get(lkey.index() as usize)
            .filter(|s| s.generation == lkey.generation())
            .and_then(|s| s.region)
            .ok_or(AccessError::UnknownKey { key })?;
        if region.pd != pd {
            return Err(AccessError::WrongPd { key, region: region.pd, used: pd });
        }
        let offset = addr.wrapping_sub(region.iova);
        let region_len = region.len as u64;
        if addr < region.iova || offset > region_len || len > region_len - offset {
            return Err(AccessError::OutOfRange { key, addr, len, start: region.iova, region_len });
        }
        if !region.access.allows(needed) {
            return Err(AccessError::Permission { key, allowed: region.access, needed });
        }
        // SAFETY: `register`'s caller vouches for the region, and the range was just checked against it.
        Ok(unsafe { HostSlice::from_raw(region.addr + offset as usize, len as usize) })
    }

    /// The bytes of a scatter/gather element. Zero bytes need no key (IBA 10.6.3.1).
    ///
    /// # Errors
    /// [`AccessError`], by the first check that fails.
    pub fn local(
        &self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        len: u32,
        needed: Access,
    ) -> Result<HostSlice, AccessError> {
        if len == 0 {
            return Ok(HostSlice::EMPTY);
        }
        self.region(lkey.0, pd, addr, len as u64, needed)
    }

    /// The bytes that a peer names by rkey. Zero bytes need no key (C9-88).
    ///
    /// # Errors
    /// [`AccessError`], by the first check that fails.
    pub fn remote(
        &self,
        pd: PdId,
        rkey: RKey,
        va: u64,
        len: u32,
        needed: Access,
    ) -> Result<HostSlice, AccessError> {
        if len == 0 {
            return Ok(HostSlice::EMPTY);
        }
        self.region(rkey.0, pd, va, len as u64, needed)
    }

    /// The 8 bytes of a peer's atomic. `Ok(None)` if the host address is not a multiple of 8.
    ///
    /// # Errors
    /// [`AccessError`], by the first check that fails.
    pub fn remote_atomic(&self, pd: PdId, rkey: RKey, va: u64) -> Result<Option<HostSlice>, AccessError> {
        let slice = self.region(rkey.0, pd, va, 8, Access::REMOTE_ATOMIC)?;
        Ok(slice.is_word().then_some(slice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::AtomicOp;

    const PD: PdId = PdId(1);

    fn table(buf: &mut Vec<u64>, access: Access) -> (Table, RegionInfo) {
        let mut table = Table::new();
        let addr = buf.as_mut_ptr().expose_provenance();
        // SAFETY: every test keeps `buf` alive and in place beyond the table.
        let info = unsafe { table.register(PD, addr, buf.len() * 8, 0x1000, access) }.unwrap();
        (table, info)
    }

    #[test]
    fn checks_key_domain_range_and_permission() {
        let mut buf = vec![0u64; 4];
        let (mut t, info) = table(&mut buf, Access::LOCAL_WRITE | Access::REMOTE_READ);
        let remote = |t: &Table, pd, va, len, need| t.remote(pd, info.rkey, va, len, need);
        assert_eq!(remote(&t, PD, 0x1000, 32, Access::REMOTE_READ).unwrap().len(), 32);
        assert_eq!(remote(&t, PD, 0x1020, 0, Access::REMOTE_READ).unwrap().len(), 0);
        assert!(matches!(remote(&t, PD, 0xfff, 1, Access::REMOTE_READ), Err(AccessError::OutOfRange { .. })));
        assert!(matches!(
            remote(&t, PD, 0x1001, 32, Access::REMOTE_READ),
            Err(AccessError::OutOfRange { .. })
        ));
        assert!(matches!(
            remote(&t, PD, u64::MAX, 2, Access::REMOTE_READ),
            Err(AccessError::OutOfRange { .. })
        ));
        assert!(matches!(
            remote(&t, PD, 0x1000, 1, Access::REMOTE_WRITE),
            Err(AccessError::Permission { .. })
        ));
        assert!(matches!(
            remote(&t, PdId(2), 0x1000, 1, Access::REMOTE_READ),
            Err(AccessError::WrongPd { .. })
        ));
        assert!(t.deregister(info.lkey));
        assert!(!t.deregister(info.lkey));
        assert!(matches!(
            remote(&t, PD, 0x1000, 1, Access::REMOTE_READ),
            Err(AccessError::UnknownKey { .. })
        ));
    }

    #[test]
    fn a_new_region_in_an_old_slot_has_another_key() {
        let mut buf = vec![0u64; 4];
        let (mut t, old) = table(&mut buf, Access::ALL);
        t.deregister(old.lkey);
        let addr = buf.as_mut_ptr().expose_provenance();
        // SAFETY: `buf` outlives the table.
        let new = unsafe { t.register(PD, addr, 32, 0, Access::ALL) }.unwrap();
        assert_eq!(new.lkey.index(), old.lkey.index());
        assert!(matches!(
            t.local(PD, old.lkey, 0, 1, Access::LOCAL_READ),
            Err(AccessError::UnknownKey { .. })
        ));
        assert!(t.local(PD, new.lkey, 0, 1, Access::LOCAL_READ).is_ok());
        assert!(t.local(PD, LKey(0), 0, 1, Access::LOCAL_READ).is_err());
    }

    #[test]
    fn stores_loads_and_atomics_reach_the_memory() {
        let mut buf = vec![0u64; 4];
        let (t, info) = table(&mut buf, Access::ALL);
        t.remote(PD, info.rkey, 0x1000, 8, Access::REMOTE_WRITE).unwrap().store(&5u64.to_ne_bytes());
        t.remote(PD, info.rkey, 0x1009, 3, Access::REMOTE_WRITE).unwrap().store(b"abc");
        let word = t.remote_atomic(PD, info.rkey, 0x1000).unwrap().unwrap();
        assert_eq!(word.atomic(AtomicOp::FetchAdd(2)), 5);
        assert_eq!(word.atomic(AtomicOp::CompareSwap { compare: 6, swap: 1 }), 7);
        assert_eq!(word.atomic(AtomicOp::CompareSwap { compare: 7, swap: 9 }), 7);
        assert_eq!(t.remote_atomic(PD, info.rkey, 0x1004).unwrap(), None);
        let mut out = Vec::new();
        t.local(PD, info.lkey, 0x1000, 12, Access::LOCAL_READ).unwrap().append_to(&mut out);
        assert_eq!(out, [9, 0, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c']);
    }
}
