use super::copy::copy_and_digest;
use super::guarded::{self, Faulted};
use crate::wire::icrc::Icrc;

/// A run of user memory that a key has given access to.
///
/// It is an address, not a reference: the memory belongs to the application, which may read and write it
/// at any time, as with DMA. It is good while the [`super::Table`] that gave it out is borrowed:
/// deregistering needs the table mutably, so nobody holds a slice of a region that is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSlice {
    addr: usize,
    len: usize,
}

/// No machine has smaller pages.
const LEAST_PAGE: usize = 4096;

/// An atomic operation on 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Stores `swap` if the value is `compare`.
    CompareSwap {
        /// The value looked for.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Adds, wrapping.
    FetchAdd(u64),
}

impl HostSlice {
    /// No memory at all.
    pub const EMPTY: HostSlice = HostSlice { addr: 0, len: 0 };

    /// The `len` bytes at `addr`.
    ///
    /// # Safety
    /// The bytes must be the crate's to read, and to write where anything stores to them, for as long as the slice is
    /// used, and their provenance exposed. Whoever else touches them meanwhile accepts what a NIC's DMA
    /// would do to them. They may be unmapped or protected in the meantime: each access says whether it faulted.
    pub(super) unsafe fn from_raw(addr: usize, len: usize) -> HostSlice {
        HostSlice { addr, len }
    }

    /// Bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether it is 8 bytes at a multiple of 8: what an atomic needs.
    pub(super) fn is_word(self) -> bool {
        self.len == 8 && self.addr.is_multiple_of(8)
    }

    /// The first `n` bytes and the rest.
    ///
    /// # Panics
    /// If there are fewer than `n` bytes.
    pub fn split_at(self, n: usize) -> (HostSlice, HostSlice) {
        assert!(n <= self.len, "split at {n} of {} bytes", self.len);
        (HostSlice { addr: self.addr, len: n }, HostSlice { addr: self.addr + n, len: self.len - n })
    }

    /// Whether all of it is mapped, and writable if it is to be written; brings in what is paged out.
    pub(super) fn populate(self, writes: bool) -> bool {
        let (start, len) = self.pages();
        let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // SAFETY: the call changes no byte; what is not mapped so makes it fail.
        unsafe { libc::madvise(start, len, advice) == 0 }
    }

    /// Writes what is mapped from a file, a persistent memory's for one, through to it. False if that failed.
    pub(crate) fn persist(self) -> bool {
        let (start, len) = self.pages();
        // SAFETY: the call changes no byte.
        self.is_empty() || unsafe { libc::msync(start, len, libc::MS_SYNC) == 0 }
    }

    /// The pages that it touches: first byte and length.
    fn pages(self) -> (*mut libc::c_void, usize) {
        // SAFETY: the call has no requirement.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let into = self.addr % usize::try_from(page).unwrap_or(4096).max(1);
        (std::ptr::with_exposed_provenance_mut(self.addr - into), into + self.len)
    }

    fn ptr(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Copies the bytes to the end of `out`, and goes on with an ICRC over what was copied. On a fault `out` is as before.
    pub(crate) fn append_and_digest(self, out: &mut Vec<u8>, icrc: Icrc) -> Result<Icrc, Faulted> {
        out.reserve(self.len);
        let room = out.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: user memory by `from_raw`'s contract; the room was just reserved, and no registered memory lies in it.
        unsafe {
            let icrc = copy_and_digest(self.ptr(), room, self.len, icrc)?;
            out.set_len(out.len() + self.len);
            Ok(icrc)
        }
    }

    /// Copies the bytes to `out`, and goes on with an ICRC over what was copied.
    ///
    /// # Panics
    /// If `out` has another length.
    pub(crate) fn load_and_digest(self, out: &mut [u8], icrc: Icrc) -> Result<Icrc, Faulted> {
        assert_eq!(out.len(), self.len);
        // SAFETY: user memory by `from_raw`'s contract; `out` is as long, and no registered memory lies in it.
        unsafe { copy_and_digest(self.ptr(), out.as_mut_ptr(), self.len, icrc) }
    }

    /// Copies the bytes to `out`.
    ///
    /// # Panics
    /// If `out` has another length.
    #[inline]
    pub(crate) fn load(self, out: &mut [u8]) -> Result<(), Faulted> {
        assert_eq!(out.len(), self.len);
        // A word is what most short messages are.
        if let Ok(out) = <&mut [u8; 8]>::try_from(&mut *out) {
            // SAFETY: 8 bytes of user memory by `from_raw`'s contract.
            *out = unsafe { guarded::load_word(self.ptr())? };
            return Ok(());
        }
        // SAFETY: user memory by `from_raw`'s contract; `out` is as long, and no registered memory lies in it.
        unsafe { guarded::copy(self.ptr(), out.as_mut_ptr(), self.len) }
    }

    /// Whether each of its pages can be read.
    pub(crate) fn probe(self) -> Result<(), Faulted> {
        let (last, mut byte) = (self.len.checked_sub(1), 0_u8);
        (0..self.len).step_by(LEAST_PAGE).chain(last).try_for_each(|at| {
            // SAFETY: a byte of user memory by `from_raw`'s contract.
            unsafe { guarded::copy(self.ptr().add(at), &raw mut byte, 1) }
        })
    }

    /// Copies all of `bytes` to the start. Aligned 8-byte stores are single ones, so that a flag that an
    /// application polls on is never seen half written.
    ///
    /// # Panics
    /// If there is less room.
    pub(crate) fn store(self, bytes: &[u8]) -> Result<(), Faulted> {
        assert!(bytes.len() <= self.len, "store of {} to {} bytes", bytes.len(), self.len);
        if let (Ok(word), true) = (<[u8; 8]>::try_from(bytes), self.addr.is_multiple_of(8)) {
            // SAFETY: user memory by `from_raw`'s contract; aligned and long enough as just checked.
            return unsafe { guarded::store_word(self.ptr(), word) };
        }
        // A peer's last byte is what programs poll on (perftest's ib_write_lat), so it lands last.
        let Some((last, head)) = bytes.split_last() else { return Ok(()) };
        // SAFETY: user memory by `from_raw`'s contract and long enough; `bytes` is a receive buffer of a
        // link, which is never registered memory.
        unsafe {
            guarded::copy(head.as_ptr(), self.ptr(), head.len())?;
            guarded::store_byte(self.ptr().add(head.len()), *last)
        }
    }

    /// Does `op` on the 8 bytes, in host byte order, and returns what was there.
    ///
    /// # Panics
    /// If it is not 8 aligned bytes; [`super::Table::remote_word`] gives out nothing else.
    pub(crate) fn atomic(self, op: AtomicOp) -> Result<u64, Faulted> {
        assert!(self.is_word(), "atomic on {self:?}");
        // SAFETY: user memory by `from_raw`'s contract; aligned and long enough as just asserted.
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
    fn a_slice_is_split_and_known_for_a_word() {
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
        assert!(all.populate(false) && all.persist() && HostSlice::EMPTY.persist());
    }

    #[test]
    fn what_is_not_mapped_is_neither_there_nor_persistent() {
        // SAFETY: nothing is read or stored; address 0 is never mapped.
        let nothing = unsafe { HostSlice::from_raw(0, 8) };
        assert!(!nothing.populate(false) && !nothing.populate(true) && !nothing.persist());
    }

    #[test]
    fn all_bytes_are_stored_and_no_other() {
        for at in 0..9 {
            for len in 0..12 {
                let memory = std::cell::UnsafeCell::new([0u64; 4]);
                let addr = memory.get().expose_provenance();
                // SAFETY: inside the memory, which outlives the slice.
                let slice = unsafe { HostSlice::from_raw(addr + at, 20) };
                let bytes: Vec<u8> = (1..=len).collect();
                slice.store(&bytes).unwrap();
                let after: Vec<u8> = memory.into_inner().iter().flat_map(|w| w.to_ne_bytes()).collect();
                assert_eq!(after[at..at + bytes.len()], bytes);
                assert_eq!(after.iter().filter(|b| **b != 0).count(), bytes.len());
            }
        }
    }
}
