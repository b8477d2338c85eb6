//! Memory of a ring: a sealed memfd, mapped with its data twice in a row.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::error::RingError;
use crate::memory::HostSlice;
use crate::sys::fork::ForkGeneration;
use crate::sys::memfd;
use crate::sys::pinned::mark_unmapped;

/// Capacity of the rings between processes, in bytes: twice the window of a peer. The less a ring holds, the
/// more often writer and reader alternate, and on a core that other threads occupy, each change may wait for
/// a time slice. First transfers of 64 MiB by Mooncake, whose threads spin on both of two cores, reach 7.4
/// Gb/s with this capacity and 5.5 with half of it (medians of 16 alternating runs); 8-byte WRITEs and half
/// round trips take equally long with both.
///
/// The memory is used from one end to the other, whatever the fill level. A writer that returned to the start
/// when the ring was empty made half a round trip longer, 2.0 instead of 1.5 µs on two core complexes.
pub const CAPACITY: usize = 2 << 20;

/// Unit of `st_blocks`, in bytes.
const STAT_BLOCK: i64 = 512;

/// Offset of the data in the file, a multiple of every page size.
const DATA: usize = 64 << 10;

/// Seals without which the other process could truncate the file, and an access would end this process. It
/// can still punch holes, which only costs memory.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Control block at the start of the memory, which has the same layout in all programs. All zeros is that of
/// an empty ring. Each field has cache lines of its own, including that which processors prefetch with it.
#[repr(C, align(128))]
pub(super) struct Control {
    /// Number of bytes that have ever been written.
    pub head: AtomicU64,
    _behind_head: [u64; 15],
    /// Number of bytes that have ever been read.
    pub tail: AtomicU64,
    _behind_tail: [u64; 15],
    /// Not zero while the reader sleeps until the writer notifies it.
    pub reader_sleeps: AtomicU32,
}

const _: () = assert!(size_of::<Control>() == 3 * 128);

/// Mapped memory of a ring, which only the process that made the mapping unmaps: a forked child does not have
/// it.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    capacity: usize,
    process: ForkGeneration,
}

// SAFETY: the mapping belongs to no thread, and all methods that access it without synchronisation need `&mut
// self` or leave the synchronisation to the positions in the control block.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Creates the memory of an empty ring. Also returns its descriptor, to be passed to the reader.
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub fn create(capacity: usize) -> io::Result<(Mapping, OwnedFd)> {
        let fd = memfd::create("urxe ring", DATA + capacity)?;
        fcntl_add_seals(&fd, SEALS)?;
        Ok((Mapping::map(&fd, capacity)?, fd))
    }

    /// Maps the memory that another process has created.
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub fn open(fd: &OwnedFd, capacity: usize) -> Result<Mapping, RingError> {
        // Before the length, which can no longer change afterwards.
        if !fcntl_get_seals(fd)?.contains(SEALS) {
            return Err(RingError::Unsealed);
        }
        let stat = fstat(fd)?;
        let (len, allocated) = (stat.st_size, stat.st_blocks * STAT_BLOCK);
        if len != (DATA + capacity) as i64 {
            return Err(RingError::Length { len });
        }
        if allocated < len {
            return Err(RingError::Unallocated { allocated, len });
        }
        Ok(Mapping::map(fd, capacity)?)
    }

    fn map(fd: impl AsFd, capacity: usize) -> io::Result<Mapping> {
        assert!(capacity.is_power_of_two(), "capacity of {capacity} bytes");
        let (file_len, mapping_len) = (DATA + capacity, DATA + 2 * capacity);
        let (rw, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the kernel chooses an unused range for the reservation, so no other memory is affected.
        let reserved = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapping_len, ProtFlags::empty(), MapFlags::PRIVATE)?
        };
        let base = NonNull::new(reserved.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        mark_unmapped(base.addr().get(), mapping_len);
        let mapping = Mapping { base, capacity, process: ForkGeneration::current() };
        for (at, len, offset) in [(0, file_len, 0), (file_len, capacity, DATA as u64)] {
            // SAFETY: the range lies within the reservation, which nothing else uses.
            unsafe { mmap(reserved.byte_add(at), len, rw, shared, &fd, offset)? };
        }
        // A forked child has no part in the ring.
        // SAFETY: the advice concerns only this mapping, and changes nothing in this process.
        unsafe { madvise(reserved, mapping_len, Advice::LinuxDontFork)? };
        Ok(mapping)
    }

    /// Returns the number of bytes of data that the ring holds.
    pub fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    /// Returns the length of the file in bytes.
    pub fn file_len(&self) -> u64 {
        (DATA + self.capacity) as u64
    }

    pub fn control(&self) -> &Control {
        // SAFETY: the mapping begins with the control block, is aligned to a page and stays valid as long as
        // `self`. All fields are atomics, so the other process may change them at any time.
        unsafe { self.base.cast().as_ref() }
    }

    /// Returns the word of data at the given position, which is a multiple of 4.
    pub fn word(&self, position: u64) -> &AtomicU32 {
        assert!(position.is_multiple_of(4), "position {position}");
        // SAFETY: `range` checks that the bytes lie within the mapping, which stays valid as long as `self`,
        // and the position is aligned. The other process may change the word at any time, as it is
        // atomic.
        unsafe { AtomicU32::from_ptr(self.range(position, 4).cast()) }
    }

    /// Returns the `len` bytes of data at the given position, which the other process can change at any time:
    /// the caller must copy bytes before it checks them. The slice must not be used after the mapping.
    pub fn slice(&self, position: u64, len: usize) -> HostSlice {
        let at = self.range(position, len).expose_provenance();
        // SAFETY: `range` checks that the bytes lie within the mapping, which is readable and writable. Both
        // ends own their mapping, and use the slice only in the call that takes it from there,
        // without a reference to these bytes.
        unsafe { HostSlice::from_raw(at, len) }
    }

    /// # Panics
    /// If `len` exceeds the capacity.
    fn range(&self, position: u64, len: usize) -> *mut u8 {
        assert!(len <= self.capacity, "{len} bytes in a ring of {}", self.capacity);
        let at = DATA + (position & (self.capacity() - 1)) as usize;
        // SAFETY: `at` is less than `DATA + capacity`, so the `len` bytes from there end within the mapping.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child, the range may contain something else by now.
        if self.process.is_current() {
            // SAFETY: the process has made the mapping, and nothing refers to it any more.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), DATA + 2 * self.capacity) };
        }
    }
}
