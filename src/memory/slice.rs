//! Ranges of user memory that have passed the access checks, with the operations on them.

use super::copy::copy_and_crc;
use super::guarded::{self, CopySource, Faulted};
use super::mapped::{may_read, may_write, page_size};
use super::prefetch::prefetch_for_write;
use crate::wire::icrc::Icrc;

/// Range of user memory that has passed the access check for a key.
///
/// The slice is an address, not a reference: the memory belongs to the application, which may read and write
/// it at any time, as with DMA. A slice is valid while the [`super::Table`] that returned it is borrowed:
/// deregistration needs the table mutably, so no slice of a deregistered region can remain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSlice {
    addr: usize,
    len: usize,
}

/// Number of bytes that are prefetched at a time while a long payload is copied to a ring. On two cores of a
/// Xeon, a stream of 64 KiB WRITEs through rings reaches 111 instead of 94 Gb/s.
const PREFETCHED: usize = 1024;

/// Distance in bytes of the prefetched bytes from those that are copied.
const PREFETCH_DISTANCE: usize = 2048;

/// Minimum page size, in bytes: no supported machine has smaller pages.
const MIN_PAGE: usize = 4096;

/// Atomic operation on a 64-bit word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Stores `swap` if the value equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Adds the operand, wrapping.
    FetchAdd(u64),
}

impl HostSlice {
    /// The empty slice.
    pub const EMPTY: HostSlice = HostSlice { addr: 0, len: 0 };

    /// Creates a slice that refers to the `len` bytes at `addr`.
    ///
    /// # Safety
    /// The crate must be allowed to read the bytes, and to write them if anything stores to them, for as long
    /// as the slice is used, and their provenance must be exposed. Every other owner of the bytes accepts
    /// that they change as under the DMA of a NIC. They may be unmapped or protected meanwhile: each access
    /// reports whether it faulted.
    pub(crate) unsafe fn from_raw(addr: usize, len: usize) -> HostSlice {
        HostSlice { addr, len }
    }

    /// Returns the offset of the slice in a range of addresses; `None` if it is not within the range.
    #[inline]
    pub fn offset_in(self, range: &std::ops::Range<usize>) -> Option<u64> {
        let offset = self.addr.checked_sub(range.start)?;
        (range.end.checked_sub(self.addr)? >= self.len).then_some(offset as u64)
    }

    /// Returns the address of the first byte.
    pub(super) fn addr(self) -> usize {
        self.addr
    }

    /// Returns the length in bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Reports whether the slice is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Reports whether the slice is an aligned 8-byte word, as atomics require.
    pub(crate) fn is_word(self) -> bool {
        self.len == 8 && self.addr.is_multiple_of(8)
    }

    /// Splits the slice into its first `n` bytes and the rest.
    ///
    /// # Panics
    /// If there are fewer than `n` bytes.
    pub fn split_at(self, n: usize) -> (HostSlice, HostSlice) {
        assert!(n <= self.len, "split at {n} of {} bytes", self.len);
        (HostSlice { addr: self.addr, len: n }, HostSlice { addr: self.addr + n, len: self.len - n })
    }

    /// Returns the slice and `next` as one, if `next` follows it in memory.
    #[inline]
    pub fn join(self, next: HostSlice) -> Option<HostSlice> {
        (self.addr + self.len == next.addr).then(|| HostSlice { len: self.len + next.len, ..self })
    }

    /// Faults in all pages of the slice. Returns false if any page is not mapped, or is not writable and
    /// `writes` is set.
    pub(super) fn populate(self, writes: bool) -> bool {
        let (start, len) = self.pages();
        if writes { may_write(start.addr(), len) } else { may_read(start.addr(), len) }
    }

    /// Writes back the pages of a file mapping, such as persistent memory. Returns false if that fails.
    pub(crate) fn persist(self) -> bool {
        let (start, len) = self.pages();
        // SAFETY: the call changes no byte.
        self.is_empty() || unsafe { libc::msync(start, len, libc::MS_SYNC) == 0 }
    }

    /// Returns the page-aligned range to pass to the kernel: the address of the slice's first page, and the
    /// length from there to the end of the slice.
    fn pages(self) -> (*mut libc::c_void, usize) {
        let into = self.addr % page_size();
        (std::ptr::with_exposed_provenance_mut(self.addr - into), into + self.len)
    }

    fn ptr(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Appends the bytes to `out`, and extends `icrc`, if there is one, over exactly the bytes copied. A
    /// fault leaves both unchanged.
    pub(crate) fn append(self, out: &mut Vec<u8>, icrc: Option<&mut Icrc>) -> Result<(), Faulted> {
        out.reserve(self.len);
        let room = out.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: by the contract of `from_raw` the source is user memory; the capacity was just reserved,
        // and no registered memory lies in it. The copy initialises the bytes before `set_len`.
        unsafe {
            match icrc {
                Some(icrc) => *icrc = copy_and_crc(self.ptr(), room, self.len, *icrc)?,
                None => guarded::copy_from(CopySource::Unread, self.ptr(), room, self.len)?,
            }
            out.set_len(out.len() + self.len);
        }
        Ok(())
    }

    /// Copies the bytes to `out`, and extends `icrc` over exactly the bytes copied.
    ///
    /// # Panics
    /// If `out` has another length.
    pub(crate) fn load_and_crc(self, out: &mut [u8], icrc: Icrc) -> Result<Icrc, Faulted> {
        assert_eq!(out.len(), self.len);
        // SAFETY: by the contract of `from_raw` the source is user memory; `out` is as long, and no
        // registered memory lies in it.
        unsafe { copy_and_crc(self.ptr(), out.as_mut_ptr(), self.len, icrc) }
    }

    /// Copies the bytes to `out`.
    ///
    /// # Panics
    /// If `out` has another length.
    #[inline]
    pub(crate) fn load(self, out: &mut [u8]) -> Result<(), Faulted> {
        assert_eq!(out.len(), self.len);
        // Most short messages are one word.
        if let Ok(out) = <&mut [u8; 8]>::try_from(&mut *out) {
            // SAFETY: by the contract of `from_raw` the 8 bytes are user memory.
            *out = unsafe { guarded::load_word(self.ptr())? };
            return Ok(());
        }
        // SAFETY: by the contract of `from_raw` the source is user memory; `out` is as long, and no
        // registered memory lies in it.
        unsafe { guarded::copy_from(CopySource::Unread, self.ptr(), out.as_mut_ptr(), self.len) }
    }

    /// Copies `from`, which is as long, to the slice, which is part of a ring. Its memory, and what follows
    /// it, is expected to be in the cache of another core.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub(crate) fn store_host_in_ring(self, from: HostSlice) -> Result<(), Faulted> {
        assert_eq!(from.len, self.len);
        // Most short messages are one word.
        if self.len == 8 {
            // SAFETY: by the contract of `from_raw` both are 8 bytes of user memory.
            return unsafe { guarded::store_word(self.ptr(), guarded::load_word(from.ptr())?) };
        }
        let each = if self.len < 2 * PREFETCHED { self.len.max(1) } else { PREFETCHED };
        (0..self.len).step_by(each).try_for_each(|at| {
            let len = each.min(self.len - at);
            if len < self.len {
                prefetch_for_write(self.ptr().wrapping_add(at + PREFETCH_DISTANCE), PREFETCHED);
            }
            // SAFETY: by the contract of `from_raw` both are user memory, and `at + len` is at most the
            // length of both. The memory of rings is not registered, so the two do not overlap.
            unsafe { guarded::copy_from(CopySource::Unread, from.ptr().add(at), self.ptr().add(at), len) }
        })
    }

    /// Copies `bytes` to the start of the slice like [`store`](Self::store), but in any order.
    ///
    /// # Panics
    /// If `bytes` is longer than the slice.
    #[inline]
    pub(crate) fn store_in_ring(self, bytes: &[u8]) -> Result<(), Faulted> {
        assert!(bytes.len() <= self.len, "store of {} to {} bytes", bytes.len(), self.len);
        // SAFETY: by the contract of `from_raw` the target is user memory, and it is long enough; `bytes` is
        // memory of this crate, which is never registered, so the two do not overlap.
        unsafe { guarded::copy_from(CopySource::Read, bytes.as_ptr(), self.ptr(), bytes.len()) }
    }

    /// Checks that every page of the slice is readable, by loading a byte from each.
    pub(crate) fn probe(self) -> Result<(), Faulted> {
        let (last, mut byte) = (self.len.checked_sub(1), 0_u8);
        (0..self.len).step_by(MIN_PAGE).chain(last).try_for_each(|at| {
            // SAFETY: `at` is below `len`, so by the contract of `from_raw` the byte is user memory; `byte`
            // is a local.
            unsafe { guarded::copy(self.ptr().add(at), &raw mut byte, 1) }
        })
    }

    /// Copies `bytes`, which have been read just before or not according to `source`, to the start of the
    /// slice. An aligned 8-byte word is stored by a single instruction, so that an application that polls
    /// it never reads a partial value.
    ///
    /// # Panics
    /// If `bytes` is longer than the slice.
    pub(crate) fn store(self, bytes: &[u8], source: CopySource) -> Result<(), Faulted> {
        assert!(bytes.len() <= self.len, "store of {} to {} bytes", bytes.len(), self.len);
        if let (Ok(word), true) = (<[u8; 8]>::try_from(bytes), self.addr.is_multiple_of(8)) {
            // SAFETY: by the contract of `from_raw` the target is user memory; the conditions and the
            // assertion above establish alignment and length.
            return unsafe { guarded::store_word(self.ptr(), word) };
        }
        // Programs poll on the last byte of a message (perftest's ib_write_lat), so it is stored last.
        let Some((last, head)) = bytes.split_last() else { return Ok(()) };
        // SAFETY: by the contract of `from_raw` the target is user memory, and it is long enough; `bytes` is
        // memory of this crate, which is never registered, so the two do not overlap.
        unsafe {
            guarded::copy_from(source, head.as_ptr(), self.ptr(), head.len())?;
            guarded::store_byte(self.ptr().add(head.len()), *last)
        }
    }

    /// Copies `from`, which is as long, to the slice like [`store`](Self::store).
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn store_host(self, from: HostSlice) -> Result<(), Faulted> {
        assert_eq!(from.len, self.len);
        let overlaps = from.addr < self.addr + self.len && self.addr < from.addr + from.len;
        if self.len == 8 {
            let mut word = [0; 8];
            from.load(&mut word)?;
            return self.store(&word, CopySource::Read);
        }
        if overlaps {
            let mut bytes = vec![0; self.len];
            from.load(&mut bytes)?;
            return self.store(&bytes, CopySource::Read);
        }
        let Some(head) = self.len.checked_sub(1) else { return Ok(()) };
        let mut last = 0_u8;
        // SAFETY: by the contract of `from_raw` both slices are user memory, and both have `head + 1` bytes;
        // it was checked above that they do not overlap. `last` is a local.
        unsafe {
            guarded::copy_from(CopySource::Unread, from.ptr(), self.ptr(), head)?;
            guarded::copy(from.ptr().add(head), &raw mut last, 1)?;
            guarded::store_byte(self.ptr().add(head), last)
        }
    }

    /// Executes `op` on the slice, as an 8-byte word in host byte order, and returns the previous value.
    ///
    /// # Panics
    /// If the slice is not [an aligned word](Self::is_word).
    pub(crate) fn atomic(self, op: AtomicOp) -> Result<u64, Faulted> {
        assert!(self.is_word(), "atomic on {self:?}");
        // SAFETY: by the contract of `from_raw` the target is user memory; the assertion establishes
        // alignment and length.
        unsafe {
            match op {
                AtomicOp::CompareSwap { compare, swap } => {
                    guarded::compare_exchange(self.ptr(), compare, swap)
                }
                AtomicOp::FetchAdd(n) => guarded::fetch_add(self.ptr(), n),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_can_be_split_and_recognises_an_aligned_word() {
        let memory = [0u64; 2];
        let addr = memory.as_ptr().expose_provenance();
        // SAFETY: the memory outlives the slices, and nothing is stored to them.
        let all = unsafe { HostSlice::from_raw(addr, 16) };
        let (first, rest) = all.split_at(5);
        assert_eq!((first.addr, first.len(), rest.addr, rest.len()), (addr, 5, addr + 5, 11));
        assert!(!first.is_empty() && all.split_at(0).0.is_empty() && HostSlice::EMPTY.is_empty());
        assert!(!all.is_word() && all.split_at(8).1.is_word() && !rest.split_at(8).0.is_word());
        let (start, len) = all.split_at(9).1.pages();
        assert_eq!((start.addr() % 4096, start.addr() + len), (0, addr + 16));
        assert_eq!((first.join(rest), rest.join(first), first.join(first)), (Some(all), None, None));
        assert!(all.populate(false) && all.persist() && HostSlice::EMPTY.persist());
    }

    #[test]
    fn populate_and_persist_fail_for_unmapped_memory() {
        // SAFETY: nothing is read or stored through the slice; address 0 is never mapped.
        let nothing = unsafe { HostSlice::from_raw(0, 8) };
        assert!(!nothing.populate(false) && !nothing.populate(true) && !nothing.persist());
    }

    #[test]
    fn word_is_stored_in_a_ring_at_any_address() {
        let mut ring = [0_u64; 3];
        let (addr, word) = (ring.as_mut_ptr().expose_provenance(), 0x0807_0605_0403_0201_u64.to_le_bytes());
        for at in 0..=16 {
            // SAFETY: both ranges lie in locals that outlive the slices; nothing else accesses them.
            let (to, from) = unsafe {
                let from = word.as_ptr().expose_provenance();
                (HostSlice::from_raw(addr + at, 8), HostSlice::from_raw(from, 8))
            };
            to.store_host_in_ring(from).unwrap();
            let mut stored = [0; 8];
            to.load(&mut stored).unwrap();
            assert_eq!(stored, word, "at byte {at}");
        }
    }

    #[test]
    fn store_host_copies_between_any_two_ranges() {
        let source: Vec<u8> = (0..3000u32).map(|i| (i * 7 + 3) as u8).collect();
        for (from, to) in [(0, 3001), (5, 3000), (100, 103), (103, 100), (0, 2500), (2500, 3), (7, 7)] {
            for len in [0, 1, 7, 8, 9, 511, 1023, 1500] {
                let memory = std::cell::UnsafeCell::new([0xee; 6000]);
                let addr = memory.get().expose_provenance();
                // SAFETY: the slice is the whole of the memory, which outlives it.
                let all = unsafe { HostSlice::from_raw(addr, 6000) };
                let at = |at: usize, len: usize| all.split_at(at).1.split_at(len).0;
                at(from, 3000 - from).store(&source[from..], CopySource::Read).unwrap();
                let mut expected = [0; 6000];
                all.load(&mut expected).unwrap();
                expected.copy_within(from..from + len, to);
                at(to, len).store_host(at(from, len)).unwrap();
                assert!(memory.into_inner() == expected, "{len} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn store_writes_exactly_its_bytes() {
        for at in 0..9 {
            for len in 0..12 {
                let memory = std::cell::UnsafeCell::new([0u64; 4]);
                let addr = memory.get().expose_provenance();
                // SAFETY: the slice ends within the 32 bytes of the memory, which outlives it.
                let slice = unsafe { HostSlice::from_raw(addr + at, 20) };
                let bytes: Vec<u8> = (1..=len).collect();
                slice.store(&bytes, CopySource::Read).unwrap();
                let after: Vec<u8> = memory.into_inner().iter().flat_map(|w| w.to_ne_bytes()).collect();
                assert_eq!(after[at..at + bytes.len()], bytes);
                assert_eq!(after.iter().filter(|b| **b != 0).count(), bytes.len());
            }
        }
    }
}
