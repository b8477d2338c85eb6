//! Allocator that counts the allocated bytes, to measure the memory that a queue pair takes and to detect
//! leaks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);

/// Returns the number of bytes currently allocated, not counting the allocator's overhead.
pub fn live() -> i64 {
    LIVE.load(Ordering::SeqCst)
}

// SAFETY: every method passes its arguments to the system's allocator unchanged and returns its result, so
// that its guarantees hold; the counter is an atomic integer and does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `alloc`, and the arguments are passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `alloc_zeroed`, and the arguments are passed on
        // unchanged.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `dealloc`: `ptr` came from this allocator, and so from
        // `System`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_add(size as i64 - layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `realloc`: `ptr` came from this allocator, and so from
        // `System`.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
