//! Queries about the process's memory mappings, answered by the kernel.

use std::sync::OnceLock;

use nix::unistd::{SysconfVar, sysconf};

/// Faults in all pages of the `len` bytes at `at` for writing, and reports whether they are writable. Stops at the first
/// page that is not.
pub fn may_write(at: usize, len: usize) -> bool {
    // SAFETY: the call faults the pages in, as writes would, and changes no byte; it fails for pages that are
    // not writable.
    unsafe { libc::madvise(std::ptr::without_provenance_mut(at), len, libc::MADV_POPULATE_WRITE) == 0 }
}

/// Faults in all pages of the `len` bytes at `at`, and reports whether they are readable.
#[cfg_attr(
    not(feature = "unstable-internals"),
    allow(dead_code, reason = "for tests and the other packages")
)]
pub fn may_read(at: usize, len: usize) -> bool {
    // SAFETY: the call faults the pages in, as reads would, and changes no byte; it fails for pages that are
    // not readable.
    unsafe { libc::madvise(std::ptr::without_provenance_mut(at), len, libc::MADV_POPULATE_READ) == 0 }
}

/// Reports whether a page-aligned range is entirely mapped, whatever its protection. Does not look at
/// individual pages: the cost is proportional to the number of mappings in the range.
#[cfg_attr(
    not(feature = "unstable-internals"),
    allow(dead_code, reason = "for tests and the other packages")
)]
pub fn is_mapped(at: usize, len: usize) -> bool {
    // SAFETY: the call changes no byte; with MS_ASYNC it starts no write-back either (since Linux 2.6.19).
    unsafe { libc::msync(std::ptr::without_provenance_mut(at), len, libc::MS_ASYNC) == 0 }
}

/// Reports whether the kernel can populate pages on request (`MADV_POPULATE_WRITE`, Linux 5.14 and later),
/// which on-demand regions need. Tries it on a page of the stack.
pub fn supports_populate() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        let local = 0_u8;
        let address = (&raw const local).addr();
        may_write(address - address % page_size(), page_size())
    })
}

/// Returns the system's page size in bytes.
pub fn page_size() -> usize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0).unwrap_or(4096)
}
