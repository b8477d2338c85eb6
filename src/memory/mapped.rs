//! Queries about the process's memory mappings, answered by the kernel.

use std::sync::OnceLock;

use nix::unistd::{SysconfVar, sysconf};

/// Faults in all pages of the `len` bytes at `at` for writing, and reports whether they are writable. Stops
/// at the first page that is not.
pub fn may_write(at: usize, len: usize) -> bool {
    // SAFETY: the call faults the pages in, as writes would, and changes no byte; it fails for pages that are
    // not writable.
    unsafe { libc::madvise(std::ptr::without_provenance_mut(at), len, libc::MADV_POPULATE_WRITE) == 0 }
}

/// Size of a huge page on x86-64 and, with base pages of 4 KiB, on most other architectures.
#[cfg(any(test, feature = "unstable-internals"))]
const HUGE_PAGE: usize = 2 << 20;

/// Asks the kernel to fault in huge pages for the `len` bytes at `at`, where they consist of whole huge
/// pages.
///
/// Registration of 128 MiB takes 20 to 25 instead of 61 to 98 ms with the kernel's default setting `madvise`.
#[cfg(any(test, feature = "unstable-internals"))]
pub fn prefer_huge_pages(at: usize, len: usize) {
    let (start, end) = (at.next_multiple_of(HUGE_PAGE), (at + len) / HUGE_PAGE * HUGE_PAGE);
    if start < end {
        // SAFETY: the call changes no byte. It fails for memory that cannot be in huge pages, which then
        // stays in small ones.
        unsafe {
            libc::madvise(std::ptr::without_provenance_mut(start), end - start, libc::MADV_HUGEPAGE);
        }
    }
}

/// Faults in all pages of the `len` bytes at `at`, and reports whether they are readable.
pub fn may_read(at: usize, len: usize) -> bool {
    // SAFETY: the call faults the pages in, as reads would, and changes no byte; it fails for pages that are
    // not readable.
    unsafe { libc::madvise(std::ptr::without_provenance_mut(at), len, libc::MADV_POPULATE_READ) == 0 }
}

/// Reports whether a page-aligned range is entirely mapped, whatever its protection. Does not look at
/// individual pages: the cost is proportional to the number of mappings in the range.
#[cfg(any(test, feature = "unstable-internals"))]
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

#[cfg(all(test, not(miri)))]
mod tests {
    use std::num::NonZeroUsize;

    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;

    /// Returns the flags of the mapping that contains `at`.
    fn flags_of(at: usize) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps.lines().skip_while(|line| {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let bounds = range.and_then(|(start, end)| {
                Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
            });
            !bounds.is_some_and(|bounds| bounds.contains(&at))
        });
        lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap().to_string()
    }

    #[test]
    fn huge_pages_are_preferred_only_where_the_whole_page_is_in_the_range() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            println!("skipped: the kernel has no transparent huge pages");
            return;
        }
        let len = NonZeroUsize::new(4 * HUGE_PAGE).unwrap();
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel picks affects no other memory.
        let map = unsafe { mmap_anonymous(None, len, access, MapFlags::MAP_PRIVATE) }.unwrap();
        let first = map.expose_provenance().get().next_multiple_of(HUGE_PAGE);
        prefer_huge_pages(first + 1, HUGE_PAGE);
        prefer_huge_pages(usize::MAX - HUGE_PAGE, HUGE_PAGE);
        assert!(!flags_of(first).contains(" hg"), "{}", flags_of(first));
        prefer_huge_pages(first + 1, 2 * HUGE_PAGE);
        let prefers = [0, 1, 2].map(|page| flags_of(first + page * HUGE_PAGE).contains(" hg"));
        assert_eq!(prefers, [false, true, false]);
        // SAFETY: the test no longer uses the mapping.
        unsafe { munmap(map, len.get()) }.unwrap();
    }
}
