//! What the kernel says of pages.

use std::sync::OnceLock;

/// Whether a page may be written.
pub fn may_write(at: usize, page: usize) -> bool {
    // SAFETY: brings in the page, as writing would, and changes no byte.
    unsafe { libc::madvise(std::ptr::without_provenance_mut(at), page, libc::MADV_POPULATE_WRITE) == 0 }
}

/// Whether all of some pages may be read.
pub fn may_read(at: usize, len: usize) -> bool {
    // SAFETY: brings in the pages, as reading would, and changes no byte.
    unsafe { libc::madvise(std::ptr::without_provenance_mut(at), len, libc::MADV_POPULATE_READ) == 0 }
}

/// Whether there is a mapping for all of a range, which begins with a page, whatever it allows. No page is looked at: it takes as
/// long as there are mappings in the range.
pub fn is_mapped(at: usize, len: usize) -> bool {
    // SAFETY: the call changes no byte; asynchronous, it begins no writing either (since Linux 2.6.19).
    unsafe { libc::msync(std::ptr::without_provenance_mut(at), len, libc::MS_ASYNC) == 0 }
}

/// Whether the kernel says what is mapped how: Linux before 5.14 says no even of the stack. Regions on demand need it.
pub fn knows_what_is_mapped() -> bool {
    static KNOWS: OnceLock<bool> = OnceLock::new();
    *KNOWS.get_or_init(|| {
        let here = 0_u8;
        let here = (&raw const here).addr();
        may_write(here - here % page_size(), page_size())
    })
}

/// Bytes of a page.
pub fn page_size() -> usize {
    // SAFETY: the call has no requirement.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
