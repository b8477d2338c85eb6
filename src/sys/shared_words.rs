//! Words in memory that another process can read, even after this process has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::memfd;
use super::pinned::mark_unmapped;

/// A mapped memfd of 64-bit words. A forked child shares it.
#[derive(Debug)]
pub(crate) struct SharedWords {
    base: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping belongs to no thread, and is accessed as atomic words only.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Creates `count` words of 0, and returns the descriptor for another process.
    ///
    /// # Errors
    /// If memory, address space or descriptors are exhausted.
    pub fn create(name: &str, count: usize) -> io::Result<(SharedWords, OwnedFd)> {
        let len = count * size_of::<AtomicU64>();
        let fd = memfd::create(name, len)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused range, so no other memory is affected.
        let base = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &fd, 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        mark_unmapped(base.addr().get(), len);
        Ok((SharedWords { base, count }, fd))
    }
}

impl AsRef<[AtomicU64]> for SharedWords {
    fn as_ref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` words, which are allocated, aligned to a page, and mapped until the drop. Other
        // processes can write them, as atomics permit, but the pages remain: only holders of the descriptor could shrink the file,
        // and the broker, which has it, reads only.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and all references to it end before the drop.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.count * size_of::<AtomicU64>()) };
    }
}
