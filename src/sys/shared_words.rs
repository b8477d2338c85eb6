//! Words in memory that another process can read, even after this process has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;

use rustix::mm::ProtFlags;

use super::mapping::Mapping;
use super::memfd;

/// A mapped memfd of 64-bit words. A forked child shares it.
#[derive(Debug)]
pub(crate) struct SharedWords(Mapping);

impl SharedWords {
    /// Creates `count` words of 0, and returns the descriptor for another process.
    ///
    /// # Errors
    /// If memory, address space or descriptors are exhausted.
    pub fn create(name: &str, count: usize) -> io::Result<(SharedWords, OwnedFd)> {
        let len = count * size_of::<AtomicU64>();
        let fd = memfd::create(name, len)?;
        Ok((SharedWords(Mapping::new(&fd, len, ProtFlags::READ | ProtFlags::WRITE)?), fd))
    }
}

impl AsRef<[AtomicU64]> for SharedWords {
    fn as_ref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` words, which are allocated, aligned to a page, and mapped until the
        // drop. Other processes can write them, as atomics permit, but the pages remain: only holders
        // of the descriptor could shrink the file, and the broker, which has it, reads only.
        unsafe {
            let count = self.0.len / size_of::<AtomicU64>();
            std::slice::from_raw_parts(self.0.base.as_ptr().cast(), count)
        }
    }
}
