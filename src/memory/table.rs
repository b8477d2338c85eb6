//! Table of a NIC's memory regions and windows: keys, registration, binding, and access checks.

mod nearest;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

pub use nearest::{KeyDifference, NearestKey};

use super::extent::Extent;
use super::null::Null;
use super::region::{FastRegion, Region};
use super::window::Window;
use super::{Access, AccessError, Accessor, Bind, FastReg, HostSlice, ManagementError, PdId, WindowKind};
use crate::sys::pinned::is_any_unmapped;
use crate::wire::{LKey, Permutation, RKey};

/// Table of one NIC's memory regions and windows, indexed by key.
///
/// A key consists of a slot in 24 bits, permuted so that no key can be guessed from another, and a generation
/// in 8 bits. Every registration in a slot advances the generation, so a key of a removed entry is invalid.
/// The application chooses the low byte of the keys of a window or a fast-registered region while that
/// exists.
#[derive(Debug)]
pub struct Table {
    seed: u64,
    permutation: Permutation,
    slots: Vec<Slot>,
    /// Lookup cache: for each value of the lowest bits of a key's index, the slot of the last key created
    /// with those bits. Inverting the permutation in each lookup would cost 2 % of the instructions of an
    /// 8-byte WRITE.
    hints: [u32; HINTS],
    /// Free slots, the one freed first at the front, so that keys recur as late as possible.
    free: VecDeque<u32>,
    /// Buffers that back all null regions, allocated when the first one is registered.
    null: Option<Null>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Index part of the keys for the slot: the permuted slot number.
    index: u32,
    generation: u8,
    /// Number of windows bound to the region. The region cannot be deregistered while there are any
    /// (C10-70).
    windows: AtomicU32,
    entry: Option<Entry>,
}

#[derive(Debug)]
enum Entry {
    Region(Region),
    Fast(FastRegion),
    Window(Window),
    /// Null region: reads as zeros and discards all writes (`ibv_alloc_null_mr`).
    Null(PdId),
}

/// Keys of a registered region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionInfo {
    /// Key for local use.
    pub lkey: LKey,
    /// Key for peers. It is numerically equal to the lkey, as on most hardware.
    pub rkey: RKey,
}

impl From<LKey> for RegionInfo {
    fn from(lkey: LKey) -> RegionInfo {
        RegionInfo { lkey, rkey: RKey(lkey.0) }
    }
}

/// Changes that a re-registration makes; `None` leaves a property unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReregMr {
    /// New protection domain.
    pub pd: Option<PdId>,
    /// New memory: host address, length in bytes, and the address that work requests and peers use for the
    /// first byte.
    pub translation: Option<(usize, usize, u64)>,
    /// New access permissions.
    pub access: Option<Access>,
}

/// Number of key bits that identify the slot.
const SLOT_BITS: u32 = 24;

/// Number of entries in the cache that maps keys to slots.
const HINTS: usize = 64;

/// Maximum number of slots. Slot 0 is never used, and an index outside the permutation is invalid: neither
/// key 0 nor the highest keys are ever valid.
const MAX_SLOTS: usize = (1 << SLOT_BITS) - 2;

impl Default for Table {
    fn default() -> Table {
        Table::new()
    }
}

impl Table {
    /// Creates an empty table that generates its keys from seed 0.
    pub fn new() -> Table {
        Table::seeded(0)
    }

    /// Creates an empty table that generates its keys from the given seed.
    pub fn seeded(seed: u64) -> Table {
        let permutation = Permutation::new(SLOT_BITS, seed);
        Table { seed, permutation, slots: Vec::new(), hints: [0; HINTS], free: VecDeque::new(), null: None }
    }

    /// Returns the slot number that a key refers to, which may be beyond the end of the table.
    #[inline]
    fn slot_of(&self, key: LKey) -> Option<u32> {
        let hint = self.hints[key.index() as usize % HINTS];
        match self.slots.get(hint as usize) {
            Some(slot) if slot.index == key.index() => Some(hint),
            _ => Some(self.permutation.invert(key.index())? - (Permutation::FIRST - 1)),
        }
    }

    fn index_of(&self, slot: usize) -> u32 {
        self.permutation.apply(slot as u32 + (Permutation::FIRST - 1))
    }

    /// Returns the initial generation for a slot. It is below 128, because some programs increment keys
    /// without handling overflow.
    fn first_generation(&self, slot: usize) -> u8 {
        (self.seed.wrapping_add(slot as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57) as u8
    }

    /// Inserts an entry that `make` creates from the low byte of its key. Returns the key, or `None` if the
    /// table is full.
    fn insert(&mut self, make: impl FnOnce(u8) -> Entry) -> Option<LKey> {
        if self.slots.is_empty() {
            self.slots.push(Slot::default());
        }
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() < MAX_SLOTS => {
                let index = self.slots.len();
                self.slots.push(Slot {
                    index: self.index_of(index),
                    generation: self.first_generation(index),
                    ..Slot::default()
                });
                index as u32
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        let generation = slot.generation;
        slot.entry = Some(make(generation));
        self.hints[slot.index as usize % HINTS] = index;
        Some(LKey::from_parts(slot.index, generation))
    }

    /// Returns the entry in the slot that a key refers to, whatever the key's low byte.
    fn entry(&self, key: LKey) -> Option<(&Slot, &Entry)> {
        let slot = self.slots.get(self.slot_of(key)? as usize)?;
        slot.entry.as_ref().map(|e| (slot, e))
    }

    /// Registers memory. Returns `None` if the table is full.
    ///
    /// # Safety
    /// The bytes must stay readable, and writable if `access` allows any writing, until
    /// [`deregister`](Self::deregister), and their provenance must be exposed; their owner accepts that they
    /// change at any time, and synchronises with completions, as with DMA. With [`Access::ON_DEMAND`] this
    /// need hold only while the bytes are accessed: accesses to unmapped memory are rejected. After
    /// [`install_fault_handler`](super::install_fault_handler) an access to memory that is unmapped or
    /// protected in spite of this contract fails as well.
    pub unsafe fn register(&mut self, pd: PdId, extent: Extent) -> Option<RegionInfo> {
        let region = Region { pd, extent, revoked: AtomicBool::new(false), pinned: None };
        self.insert(|_| Entry::Region(region)).map(RegionInfo::from)
    }

    /// Denies access to parts of an ordinary region that the program unmaps from now on, unless the region is
    /// an on-demand one. For memory that the program owns; to be repeated after a re-registration.
    pub fn pin(&mut self, lkey: LKey) {
        let slot = self.slot_of(lkey).and_then(|slot| self.slots.get_mut(slot as usize));
        if let Some(Slot { entry: Some(Entry::Region(region)), .. }) = slot {
            region.pin();
        }
    }

    /// Registers the process's entire memory, as mapped at the time of each access (implicit on-demand
    /// paging). Returns `None` if the table is full.
    ///
    /// # Safety
    /// A holder of the key can read all of the process's memory, and write it if `access` allows any writing.
    /// Without [`install_fault_handler`](super::install_fault_handler), memory that is unmapped during an
    /// access ends the process.
    pub unsafe fn register_implicit(&mut self, pd: PdId, access: Access) -> Option<RegionInfo> {
        let extent = Extent { access: access | Access::ON_DEMAND, ..Extent::WHOLE_PROCESS };
        // SAFETY: in an on-demand region, accesses to unmapped bytes are rejected; the caller accepts
        // accesses to all mapped ones.
        unsafe { self.register(pd, extent) }
    }

    /// Registers a null region, for local use only: every address reads as zeros and discards writes. Returns
    /// `None` if the table is full.
    pub fn register_null(&mut self, pd: PdId) -> Option<LKey> {
        self.null.get_or_insert_with(Null::default);
        self.insert(|_| Entry::Null(pd))
    }

    /// Creates a fast-registered region. Work requests register one part of its memory at a time
    /// ([`fast_reg`](Self::fast_reg)). Returns `None` if the table is full.
    ///
    /// # Safety
    /// As for [`register`](Self::register); moreover the memory must be writable.
    pub unsafe fn register_fast(&mut self, pd: PdId, addr: usize, len: usize) -> Option<RegionInfo> {
        let make = |key| Entry::Fast(FastRegion::new(pd, addr, len as u64, key));
        self.insert(make).map(RegionInfo::from)
    }

    /// Allocates an unbound memory window. Returns `None` if the table is full.
    pub fn alloc_window(&mut self, pd: PdId, kind: WindowKind) -> Option<RKey> {
        self.insert(|key| Entry::Window(Window::new(pd, kind, key))).map(|k| RKey(k.0))
    }

    /// Re-registers an ordinary region with new memory, permissions or protection domain. New memory gets a
    /// new key, so that requests posted with the old key cannot access it.
    ///
    /// # Safety
    /// As for [`register`](Self::register), for the new memory.
    ///
    /// # Errors
    /// [`ManagementError`], with no change made.
    pub unsafe fn reregister(&mut self, lkey: LKey, change: &ReregMr) -> Result<RegionInfo, ManagementError> {
        let key = lkey.0;
        let slot = self.slot_of(lkey).and_then(|slot| self.slots.get_mut(slot as usize));
        let Some(Slot { generation, windows, entry: Some(Entry::Region(region)), .. }) =
            slot.filter(|s| s.generation == lkey.generation())
        else {
            return Err(ManagementError::UnknownKey { key });
        };
        if *windows.get_mut() > 0 {
            return Err(ManagementError::WindowsBound { key, count: *windows.get_mut() });
        }
        region.pd = change.pd.unwrap_or(region.pd);
        let extent = &mut region.extent;
        let was_whole = extent.is_whole_process();
        extent.access = change.access.unwrap_or(extent.access);
        if let Some((addr, len, iova)) = change.translation {
            (extent.addr, extent.len, extent.iova) = (addr, len, iova);
            *generation = generation.wrapping_add(1);
            *region.revoked.get_mut() = false;
        } else if was_whole {
            extent.access |= Access::ON_DEMAND;
        }
        Ok(LKey::from_parts(lkey.index(), *generation).into())
    }

    /// Deregisters an ordinary, fast-registered or null region.
    ///
    /// # Errors
    /// [`ManagementError::WindowsBound`] while windows are bound to it (C10-70), or `UnknownKey`.
    pub fn deregister(&mut self, lkey: LKey) -> Result<(), ManagementError> {
        let windows = self.bound_windows(lkey)?;
        if windows > 0 {
            return Err(ManagementError::WindowsBound { key: lkey.0, count: windows });
        }
        self.remove(lkey);
        Ok(())
    }

    /// Removes a region, after unbinding all windows that are bound to it.
    ///
    /// # Errors
    /// [`ManagementError::UnknownKey`] if the key is not that of a region.
    pub fn revoke(&mut self, lkey: LKey) -> Result<(), ManagementError> {
        if self.bound_windows(lkey)? > 0
            && let Some(region) = self.slot_of(lkey)
        {
            self.unbind_windows(region);
        }
        self.remove(lkey);
        Ok(())
    }

    /// Makes all accesses fail to the region that has `rkey` as its current key, or to all regions if it is
    /// `None`, and unbinds their windows. The region itself stays until it is deregistered. Returns for each
    /// region found its key, and whether accesses could succeed before.
    pub fn revoke_access(&self, rkey: Option<RKey>) -> Vec<(RKey, bool)> {
        let is_chosen = |key: RKey| rkey.is_none_or(|rkey| rkey == key);
        let revoke = |(index, slot): (usize, &Slot)| {
            let key = |low_byte| RKey::from_parts(slot.index, low_byte);
            let (key, was_accessible) = match slot.entry.as_ref()? {
                Entry::Region(r) if is_chosen(key(slot.generation)) => {
                    (key(slot.generation), !r.revoked.swap(true, Ordering::Relaxed))
                }
                Entry::Fast(r) if is_chosen(key(r.key())) => (key(r.key()), r.revoke()),
                _ => return None,
            };
            // Pairs with the fence in `store_binding`.
            fence(Ordering::SeqCst);
            self.unbind_windows(index as u32);
            Some((key, was_accessible))
        };
        self.slots.iter().enumerate().filter_map(revoke).collect()
    }

    /// Unbinds all windows that are bound to the region in slot `region`.
    fn unbind_windows(&self, region: u32) {
        for slot in &self.slots {
            if let Some(Entry::Window(w)) = &slot.entry
                && w.release(region)
            {
                self.count_unbind(region);
            }
        }
    }

    /// Returns the number of windows bound to the region with the handle `lkey`. The handle of a
    /// fast-registered region is its first key, whatever the low byte of its current key is.
    fn bound_windows(&self, lkey: LKey) -> Result<u32, ManagementError> {
        match self.entry(lkey) {
            Some((_, Entry::Window(_))) => Err(ManagementError::UnknownKey { key: lkey.0 }),
            Some((slot, _)) if slot.generation == lkey.generation() => {
                Ok(slot.windows.load(Ordering::Relaxed))
            }
            _ => Err(ManagementError::UnknownKey { key: lkey.0 }),
        }
    }

    /// Deallocates the window whose first key is `rkey`, unbinding it if necessary. Returns false if there is
    /// no such window.
    pub fn free_window(&mut self, rkey: RKey) -> bool {
        let key = LKey(rkey.0);
        let region = match self.entry(key) {
            Some((slot, Entry::Window(w))) if slot.generation == key.generation() => w.region(),
            _ => return false,
        };
        if let Some(region) = region {
            self.count_unbind(region);
        }
        self.remove(key);
        true
    }

    /// Removes the entry in the slot that `key` refers to. The next entry in the slot gets a different key.
    fn remove(&mut self, key: LKey) {
        let Some(index) = self.slot_of(key) else { return };
        let slot = &mut self.slots[index as usize];
        slot.generation = match slot.entry.take() {
            Some(Entry::Fast(r)) => r.key(),
            Some(Entry::Window(w)) => w.key(),
            _ => slot.generation,
        };
        self.free.push_back(index);
    }

    /// Decrements the number of windows bound to the region in slot `region`.
    fn count_unbind(&self, region: u32) {
        self.slots[region as usize].windows.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of regions and windows.
    pub fn len(&self) -> usize {
        // Slot 0 is never used.
        self.slots.len().saturating_sub(1) - self.free.len()
    }

    /// Reports whether there are neither regions nor windows.
    #[cfg(any(test, feature = "unstable-internals"))]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Binds a window, on behalf of a work request posted to `by`.
    ///
    /// # Errors
    /// [`ManagementError`], with no change made.
    pub fn bind(&self, bind: &Bind, by: Accessor) -> Result<(), ManagementError> {
        let key = bind.rkey.0;
        let Some((_, Entry::Window(window))) = self.entry(LKey(key)) else {
            return Err(ManagementError::UnknownKey { key });
        };
        window.check(bind, by)?;
        let part = match self.slot_of(bind.region) {
            _ if bind.len == 0 => None,
            Some(region) => Some((region, self.bind_extent(bind, by)?)),
            None => return Err(ManagementError::UnknownKey { key: bind.region.0 }),
        };
        self.store_binding(window, bind, by, part);
        Ok(())
    }

    /// Binds a window to `part`, for which the checks have succeeded. If another shard has revoked the region
    /// since then, the window is unbound again, as if the region had been revoked after the bind.
    fn store_binding(&self, window: &Window, bind: &Bind, by: Accessor, part: Option<(u32, Extent)>) {
        if let Some((region, _)) = part {
            self.slots[region as usize].windows.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(before) = window.bind(bind.rkey, by, part) {
            self.count_unbind(before);
        }
        if let Some((region, extent)) = part {
            // Pairs with the fence in `revoke_access`, which revokes the region before its fence and looks
            // for bound windows after it. Whichever fence comes second, its thread sees what the
            // other one stored: the revocation is found here, or the binding there.
            fence(Ordering::SeqCst);
            if self.bind_extent(bind, by) != Ok(extent) && window.unbind(bind.rkey, by, part) {
                self.count_unbind(region);
            }
        }
    }

    /// Checks that the region permits a bind, and returns the extent to make accessible through the window.
    fn bind_extent(&self, bind: &Bind, by: Accessor) -> Result<Extent, ManagementError> {
        let Bind { region, addr, len, access, .. } = *bind;
        let key = region.0;
        let whole = self.region(region, by)?;
        // C10-73; no window can be bound to a zero-based region either.
        if !whole.access.allows(Access::MW_BIND) || whole.access.allows(Access::ZERO_BASED) {
            return Err(ManagementError::Access { key, access: whole.access });
        }
        // C10-74.
        if access.allows_remote_modification() && !whole.access.allows(Access::LOCAL_WRITE) {
            return Err(ManagementError::Access { key, access });
        }
        // C10-75.
        let start = whole.find(key, addr, len)?;
        let iova = if access.allows(Access::ZERO_BASED) { 0 } else { addr };
        let access = access | (whole.access & Access::ON_DEMAND);
        Ok(Extent { addr: start, len: len as usize, iova, access })
    }

    /// Registers a part of a fast-registered region, on behalf of a work request posted to `by`.
    ///
    /// # Errors
    /// [`ManagementError`], with no change made.
    pub fn fast_reg(&self, reg: &FastReg, by: Accessor) -> Result<(), ManagementError> {
        let key = reg.key.0;
        match self.entry(reg.key) {
            Some((_, Entry::Fast(region))) => {
                by.check_pd(key, region.pd)?;
                region.fast_reg(reg)
            }
            _ => Err(ManagementError::UnknownKey { key }),
        }
    }

    /// Invalidates a type 2 window or a fast-registered region, on behalf of a work request posted to `by`,
    /// or of its peer if `remote` is set.
    ///
    /// # Errors
    /// [`ManagementError`], with no change made.
    pub fn invalidate(&self, rkey: RKey, by: Accessor, remote: bool) -> Result<(), ManagementError> {
        let key = rkey.0;
        match self.entry(LKey(key)) {
            Some((_, Entry::Window(window))) => {
                let region = window.invalidate(rkey, by)?;
                self.count_unbind(region);
                Ok(())
            }
            Some((slot, Entry::Fast(r))) => {
                by.check_pd(key, r.pd)?;
                r.invalidate(LKey(key), remote, slot.windows.load(Ordering::Relaxed))
            }
            Some((slot, _)) if slot.generation == rkey.generation() => {
                Err(ManagementError::NotInvalidatable { key })
            }
            _ => Err(ManagementError::UnknownKey { key }),
        }
    }

    /// Returns the region for a key if it is an ordinary one (neither fast-registered nor null) in the
    /// accessor's protection domain: the common case, which is checked first.
    #[inline]
    fn plain_region(&self, lkey: LKey, by: Accessor) -> Option<&Region> {
        match self.slots.get(self.slot_of(lkey)? as usize) {
            Some(Slot { generation, entry: Some(Entry::Region(r)), .. })
                if *generation == lkey.generation() && r.pd == by.pd && !r.is_revoked() =>
            {
                Some(r)
            }
            _ => None,
        }
    }

    /// Returns the extent registered under `lkey`, the key of an ordinary or fast-registered region.
    fn region(&self, lkey: LKey, by: Accessor) -> Result<Extent, AccessError> {
        let key = lkey.0;
        let (pd, extent) = match self.entry(lkey) {
            Some((slot, Entry::Region(r))) if slot.generation == lkey.generation() && !r.is_revoked() => {
                (r.pd, r.extent)
            }
            Some((_, Entry::Fast(r))) => (r.pd, r.extent(lkey)?),
            _ => return Err(AccessError::UnknownKey { key }),
        };
        by.check_pd(key, pd)?;
        Ok(extent)
    }

    /// Returns the memory that a scatter/gather element refers to. An element of length 0 needs no valid key
    /// (IBA 10.6.3.1).
    ///
    /// # Errors
    /// [`AccessError`] of the first check that fails.
    pub fn local(
        &self,
        by: Accessor,
        lkey: LKey,
        addr: u64,
        len: u32,
        needed: Access,
    ) -> Result<HostSlice, AccessError> {
        if len == 0 {
            return Ok(HostSlice::EMPTY);
        }
        let other;
        let extent = match self.plain_region(lkey, by) {
            Some(region) => &region.extent,
            None => match self.null_region(lkey, by) {
                Some(null) => return null.run(lkey.0, addr, len, needed),
                None => {
                    other = self.region(lkey, by)?;
                    &other
                }
            },
        };
        self.part(extent, lkey, addr, len.into(), needed)
    }

    /// Returns the memory behind null regions if a key is that of one in the accessor's protection domain.
    #[cold]
    fn null_region(&self, lkey: LKey, by: Accessor) -> Option<&Null> {
        let is_of_slot = |slot: &Slot, pd: PdId| slot.generation == lkey.generation() && pd == by.pd;
        let is_null = matches!(self.entry(lkey), Some((slot, Entry::Null(pd))) if is_of_slot(slot, *pd));
        self.null.as_ref().filter(|_| is_null)
    }

    /// Returns the extent that a peer may access through `rkey`.
    fn remote_extent(&self, rkey: RKey, by: Accessor) -> Result<Extent, AccessError> {
        match self.entry(LKey(rkey.0)) {
            Some((_, Entry::Window(w))) => w.extent(rkey, by),
            _ => self.region(LKey(rkey.0), by),
        }
    }

    /// Returns the memory that a peer addresses by `rkey` and `va`. A request of length 0 needs no valid key
    /// (C9-88).
    ///
    /// # Errors
    /// [`AccessError`] of the first check that fails.
    pub fn remote(
        &self,
        by: Accessor,
        rkey: RKey,
        va: u64,
        len: u32,
        needed: Access,
    ) -> Result<HostSlice, AccessError> {
        if len == 0 {
            return Ok(HostSlice::EMPTY);
        }
        let key = LKey(rkey.0);
        let other;
        let extent = match self.plain_region(key, by) {
            Some(region) => &region.extent,
            None => {
                other = self.remote_extent(rkey, by)?;
                &other
            }
        };
        self.part(extent, key, va, len.into(), needed)
    }

    /// Returns all memory that a peer may access through `rkey`, whatever its length. The slice is empty for
    /// an implicit on-demand region.
    ///
    /// # Errors
    /// [`AccessError`] of the first check that fails.
    pub fn remote_all(&self, by: Accessor, rkey: RKey, needed: Access) -> Result<HostSlice, AccessError> {
        let extent = self.remote_extent(rkey, by)?;
        // An implicit on-demand region has no extent of its own.
        if extent.is_whole_process() {
            extent.permit(rkey.0, needed)?;
            return Ok(HostSlice::EMPTY);
        }
        self.part(&extent, LKey(rkey.0), extent.iova, extent.len as u64, needed)
    }

    /// Returns the `len` bytes at `va` of the region or window of `key` after checking, in this order, the
    /// range, the permissions, and the mapping: of on-demand regions now, of others whether any of it was
    /// unmapped after the registration.
    #[inline(always)] // As a call it costs every element 21 instructions.
    fn part(
        &self,
        extent: &Extent,
        key: LKey,
        va: u64,
        len: u64,
        needed: Access,
    ) -> Result<HostSlice, AccessError> {
        let start = extent.find(key.0, va, len)?;
        extent.permit(key.0, needed)?;
        // SAFETY: the caller of the registration guarantees the memory of the region, against which the range
        // was just checked; a part of an on-demand region is accessed only after `populate` has found
        // it mapped.
        let slice = unsafe { HostSlice::from_raw(start, len as usize) };
        let writes = needed.allows_remote_modification() || needed.allows(Access::LOCAL_WRITE);
        if extent.access.allows(Access::ON_DEMAND) && !slice.populate(writes)
            || is_any_unmapped() && self.is_unmapped(key, &slice)
        {
            return Err(AccessError::NotMapped { key: key.0, addr: va, len });
        }
        Ok(slice)
    }

    #[cold]
    fn is_unmapped(&self, key: LKey, slice: &HostSlice) -> bool {
        let region = match self.entry(key) {
            Some((_, Entry::Window(w))) => {
                w.region().and_then(|slot| self.slots[slot as usize].entry.as_ref())
            }
            found => found.map(|(_, entry)| entry),
        };
        matches!(region, Some(Entry::Region(r)) if r.is_unmapped(slice.addr(), slice.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{AtomicOp, CopySource};

    const PD: PdId = PdId(1);

    fn by(pd: PdId) -> Accessor {
        Accessor { pd, qpn: crate::wire::Qpn::new(7) }
    }

    fn extent(buf: &mut Vec<u64>, iova: u64, access: Access) -> Extent {
        Extent { addr: buf.as_mut_ptr().expose_provenance(), len: buf.len() * 8, iova, access }
    }

    fn table(buf: &mut Vec<u64>, access: Access) -> (Table, RegionInfo) {
        let mut table = Table::new();
        // SAFETY: every test keeps `buf` alive and in place beyond the table.
        let info = unsafe { table.register(PD, extent(buf, 0x1000, access)) }.unwrap();
        (table, info)
    }

    #[test]
    fn access_check_covers_key_pd_range_and_permission() {
        let mut buf = vec![0u64; 4];
        let (mut t, info) = table(&mut buf, Access::LOCAL_WRITE | Access::REMOTE_READ);
        let remote = |t: &Table, pd, va, len, need| t.remote(by(pd), info.rkey, va, len, need);
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
        assert_eq!(t.deregister(info.lkey), Ok(()));
        assert!(t.deregister(info.lkey).is_err());
        assert!(matches!(
            remote(&t, PD, 0x1000, 1, Access::REMOTE_READ),
            Err(AccessError::UnknownKey { .. })
        ));
    }

    #[test]
    fn new_region_in_a_reused_slot_has_another_key() {
        let mut buf = vec![0u64; 4];
        let (mut t, old) = table(&mut buf, Access::ALL);
        t.deregister(old.lkey).unwrap();
        // SAFETY: `buf` outlives the table.
        let new = unsafe { t.register(PD, extent(&mut buf, 0, Access::ALL)) }.unwrap();
        assert_eq!(new.lkey.index(), old.lkey.index());
        assert!(t.deregister(old.lkey).is_err() && t.revoke(old.lkey).is_err());
        assert!(matches!(
            t.local(by(PD), old.lkey, 0, 1, Access::LOCAL_READ),
            Err(AccessError::UnknownKey { .. })
        ));
        assert!(t.local(by(PD), new.lkey, 0, 1, Access::LOCAL_READ).is_ok());
        assert!(t.local(by(PD), LKey(0), 0, 1, Access::LOCAL_READ).is_err());
    }

    #[test]
    fn stores_loads_and_atomics_reach_the_memory() {
        let mut buf = vec![0u64; 4];
        let (t, info) = table(&mut buf, Access::ALL);
        t.remote(by(PD), info.rkey, 0x1000, 8, Access::REMOTE_WRITE)
            .unwrap()
            .store(&5u64.to_ne_bytes(), CopySource::Read)
            .unwrap();
        t.remote(by(PD), info.rkey, 0x1009, 3, Access::REMOTE_WRITE)
            .unwrap()
            .store(b"abc", CopySource::Read)
            .unwrap();
        let word = |va| t.remote(by(PD), info.rkey, va, 8, Access::REMOTE_ATOMIC).unwrap();
        assert!(!word(0x1004).is_word());
        let word = word(0x1000);
        assert_eq!(word.atomic(AtomicOp::FetchAdd(2)), Ok(5));
        assert_eq!(word.atomic(AtomicOp::CompareSwap { compare: 6, swap: 1 }), Ok(7));
        assert_eq!(word.atomic(AtomicOp::CompareSwap { compare: 7, swap: 9 }), Ok(7));
        let mut out = [0; 12];
        t.local(by(PD), info.lkey, 0x1000, 12, Access::LOCAL_READ).unwrap().load(&mut out).unwrap();
        assert_eq!(out, [9, 0, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c']);
    }

    #[test]
    fn bind_that_a_revocation_interrupts_leaves_the_window_unbound() {
        let mut buf = vec![0u64; 4];
        let (mut t, info) = table(&mut buf, Access::ALL | Access::MW_BIND);
        let rkey = t.alloc_window(PD, WindowKind::Type1).unwrap();
        let access = Access::REMOTE_READ;
        let bind = Bind { rkey, region: info.lkey, addr: 0x1000, len: 8, access };
        let region = t.slot_of(info.lkey).unwrap();
        let part = Some((region, t.bind_extent(&bind, by(PD)).unwrap()));
        let Some((_, Entry::Window(window))) = t.entry(LKey(rkey.0)) else { panic!("no window") };
        assert_eq!(t.revoke_access(None), [(info.rkey, true)]);
        t.store_binding(window, &bind, by(PD), part);
        assert!(t.remote(by(PD), rkey, 0x1000, 8, access).is_err());
        assert_eq!(t.bound_windows(info.lkey), Ok(0));
    }
}
