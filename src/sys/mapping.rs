//! Mappings of files in memory that processes share.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::pinned::mark_unmapped;

/// A mapping of a whole file.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub base: NonNull<u8>,
    pub len: usize,
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: the bytes of a mapping are accessed by atomics and as `HostSlice`s only.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(fd: impl AsFd, len: usize, protection: ProtFlags) -> io::Result<Mapping> {
        // SAFETY: the kernel chooses an unused range, so no other memory is affected.
        let at = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0)? };
        mark_unmapped(at.expose_provenance(), len);
        Ok(Mapping { base: NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
