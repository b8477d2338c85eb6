//! Mappings of DMA-bufs for `ibv_reg_dmabuf_mr`.
//!
//! A DMA-buf is device memory behind a descriptor. A NIC in software can use one that a process can map, such
//! as a `udmabuf`. The mapping stays until the region is deregistered. Nothing brackets the NIC's accesses
//! with `DMA_BUF_IOCTL_SYNC`, so the memory has to be coherent with the processor's caches, as a
//! `udmabuf` is.

use std::ffi::{c_int, c_void};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::statfs::{FsType, fstatfs};
use nix::unistd::{Whence, lseek};
use urxe::memory::page_size;
use urxe::sys::pinned::mark_unmapped;

/// `DMA_BUF_MAGIC`: type of the file system that contains all DMA-bufs.
const DMA_BUF_MAGIC: FsType = FsType(0x444d_4142);

/// A range of a DMA-buf mapped into the process, unmapped on drop.
pub(crate) struct Mapping {
    /// First mapped byte, at a page boundary.
    pages: NonNull<c_void>,
    /// Mapped bytes.
    mapped: NonZeroUsize,
    /// Bytes from the start of the mapping to the start of the range.
    skipped: usize,
}

// SAFETY: the mapping is plain memory of the process, which any thread may use and unmap.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives out the address only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of a DMA-buf from `offset` on, for writing if `is_writable`.
    ///
    /// # Errors
    /// As the kernel's `ib_umem_dmabuf_get`: `EBADF` if `fd` is not open, `EINVAL` if it is not a DMA-buf or
    /// the range does not lie in it. `EACCES` if it is open for reading only and `is_writable`, `EOPNOTSUPP`
    /// if its exporter does not support mapping, as with the memory of most GPUs.
    pub(crate) fn new(fd: c_int, offset: u64, length: usize, is_writable: bool) -> Result<Mapping, Errno> {
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        // SAFETY: the descriptor is used during this call only, in which the program keeps it open;
        // `fstatfs` finds out whether it is open at all.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        if fstatfs(fd.as_fd())?.filesystem_type() != DMA_BUF_MAGIC {
            return Err(Errno::EINVAL);
        }
        let size = u64::try_from(lseek(fd, 0, Whence::SeekEnd)?).map_err(|_| Errno::EINVAL)?;
        let end = offset.checked_add(length as u64).filter(|end| *end <= size && length != 0);
        end.ok_or(Errno::EINVAL)?;
        let page = page_size();
        let skipped = (offset % page as u64) as usize;
        let mapped = length.checked_add(skipped).and_then(NonZeroUsize::new).ok_or(Errno::EINVAL)?;
        let start = libc::off_t::try_from(offset - skipped as u64).map_err(|_| Errno::EINVAL)?;
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, is_writable);
        // SAFETY: the kernel selects the address, so the mapping replaces none.
        let pages = unsafe { mmap(None, mapped, protection, MapFlags::MAP_SHARED, fd, start) };
        let pages = pages.map_err(|e| match e {
            Errno::EACCES | Errno::ENOMEM => e,
            _ => Errno::EOPNOTSUPP,
        })?;
        mark_unmapped(pages.addr().get(), mapped.get());
        Ok(Mapping { pages, mapped, skipped })
    }

    /// Returns the address of the range's first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.pages.as_ptr().cast::<u8>().wrapping_add(self.skipped)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping. The region registered in it is deregistered before the drop, and
        // nothing else has its address.
        let _ = unsafe { munmap(self.pages, self.mapped.get()) };
    }
}
