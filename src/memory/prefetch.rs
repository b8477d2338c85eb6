//! Prefetching of cache lines.

/// Length of a cache line in bytes.
const LINE: usize = 64;

/// Begins to load the cache lines of `len` bytes at `at` for writing, so that they are no longer in the
/// caches of other cores when this core stores to them. Has no effect on addresses that are not mapped.
#[inline]
pub(super) fn prefetch_for_write(at: *const u8, len: usize) {
    for offset in (0..len).step_by(LINE) {
        let line = at.wrapping_add(offset);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a prefetch accesses no memory. Processors without the instruction ignore it.
        unsafe {
            std::arch::asm!("prefetchw [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = line;
    }
}
