//! Allocator of the drop-in library.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

use urxe::sys::pinned::mark_unmapped;

/// Size from which an allocation is a mapping of its own, as by default in glibc (M_MMAP_THRESHOLD in
/// mallopt(3)). Queues are the largest allocations: one of 2048 completions is that long.
const MAPPED: usize = 128 << 10;

/// Alignment of mappings, on every architecture.
const PAGE: usize = 4096;

#[global_allocator]
static ALLOCATOR: MappedWhenLarge = MappedWhenLarge;

/// Takes large allocations from the kernel, and others from the C library.
///
/// The C library may reuse memory that a program has registered, and its mappings are not reported to
/// [`pinned`](urxe::sys::pinned). So a key of memory that the program has freed could give access to the
/// library's queues.
struct MappedWhenLarge;

fn is_mapped(layout: Layout) -> bool {
    layout.size() >= MAPPED && layout.align() <= PAGE
}

fn map(len: usize) -> *mut u8 {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: the kernel chooses an unused range, so no other memory is affected.
    let Ok(at) = (unsafe { mmap_anonymous(null_mut(), len, protection, flags) }) else { return null_mut() };
    mark_unmapped(at.addr(), len);
    at.cast()
}

// SAFETY: blocks of `is_mapped` layouts are private mappings of at least the layout's size, which is not 0,
// at a multiple of the page size, which is not less than the alignment; all others are blocks of `System`.
// The layout, which the caller passes again, tells which one a block is.
unsafe impl GlobalAlloc for MappedWhenLarge {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller guarantees a layout that is not empty.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller guarantees a layout that is not empty.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a block of this allocator and its layout, and does not use the block any
        // more. `munmap` fails if it would exceed the maximum number of mappings, and then the block
        // stays.
        unsafe {
            match is_mapped(layout) {
                true => drop(munmap(block.cast(), layout.size())),
                false => System.dealloc(block, layout),
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that `size` is not 0 and, rounded up to the alignment, is at most
        // `isize::MAX`.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the caller passes a block of this allocator and its layout. `mremap` moves a whole mapping
        // to a range that the kernel chooses; the new block has room for the bytes that are copied.
        unsafe {
            match (is_mapped(layout), is_mapped(new)) {
                (false, false) => System.realloc(block, layout, size),
                (true, true) => {
                    let moved = mremap(block.cast(), layout.size(), size, MremapFlags::MAYMOVE);
                    let Ok(moved) = moved else { return null_mut() };
                    mark_unmapped(moved.addr(), size);
                    moved.cast()
                }
                _ => {
                    let to = self.alloc(new);
                    if !to.is_null() {
                        to.copy_from_nonoverlapping(block, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                    to
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_keeps_its_bytes_while_it_grows_and_shrinks() {
        let layout = |size| Layout::from_size_align(size, 64).unwrap();
        let mut size = 1000;
        // SAFETY: the layouts are not empty, each block is freed or reallocated once with its current layout,
        // and accessed within its size.
        unsafe {
            let mut block = MappedWhenLarge.alloc_zeroed(layout(size));
            block.add(999).write(7);
            for to in [MAPPED - 1, MAPPED, 3 * MAPPED, 100 * MAPPED, MAPPED + 1, 5000] {
                block = MappedWhenLarge.realloc(block, layout(size), to);
                block.add(to - 1).write(9);
                assert_eq!((block.read(), block.add(999).read(), block.addr() % 64), (0, 7, 0));
                size = to;
            }
            MappedWhenLarge.dealloc(block, layout(size));
        }
    }
}
