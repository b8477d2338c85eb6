//! Page-aligned memory allocated by the crate, for registration as a region.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::ShareableMemory;
use super::guarded::{Racing, copy_racing};

/// Page-aligned, initially zeroed memory for a region.
///
/// The buffer is read and written by copying only: a peer may change it at any time, so no reference to its
/// bytes is ever given out. Synchronise with completions, as with DMA.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// Memory that contains the buffer; `None` if it is on the heap.
    shareable: Option<Arc<ShareableMemory>>,
}

/// Error for an access beyond the end of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} bytes at offset {offset} are not inside a buffer of {size} bytes")]
pub struct OutOfBuffer {
    /// Offset of the first byte of the access.
    pub offset: usize,
    /// Length of the access in bytes.
    pub len: usize,
    /// Size of the buffer in bytes.
    pub size: usize,
}

const PAGE: usize = 4096;

impl Buffer {
    /// Allocates `len` zero bytes.
    pub fn zeroed(len: usize) -> Buffer {
        let layout = Self::layout(len);
        // SAFETY: `layout` rounds an empty buffer up to one byte, so the size of the layout is not zero.
        let start =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        start.as_ptr().expose_provenance();
        Buffer { start, len, shareable: None }
    }

    /// Allocates `len` zero bytes that other processes of this user may map for reading, in order to copy
    /// payloads from them. The whole of the memory is allocated at once.
    ///
    /// # Errors
    /// If the system has no such memory, or too little.
    pub fn shareable(len: usize) -> io::Result<Buffer> {
        let memory = ShareableMemory::allocate(len)?;
        Ok(Buffer { start: memory.start(), len, shareable: Some(memory) })
    }

    /// Reports whether other processes may map the buffer.
    pub fn is_shareable(&self) -> bool {
        self.shareable.is_some()
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), PAGE).expect("a buffer is below isize::MAX bytes")
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reports whether the buffer has length 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte.
    pub fn addr(&self) -> usize {
        self.start.as_ptr().addr()
    }

    fn check(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBuffer> {
        if self.len.checked_sub(offset).is_none_or(|room| len > room) {
            return Err(OutOfBuffer { offset, len, size: self.len });
        }
        // SAFETY: the check above keeps `offset` within the allocation of `len` bytes.
        Ok(unsafe { self.start.as_ptr().add(offset) })
    }

    /// Copies the `out.len()` bytes at `offset` to `out`.
    ///
    /// # Errors
    /// [`OutOfBuffer`] if the range exceeds the buffer.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBuffer> {
        let from = self.check(offset, out.len())?;
        // SAFETY: `check` has verified the source range; `out` is an exclusive borrow, and so cannot overlap
        // the buffer, to whose bytes no reference exists.
        unsafe { copy_racing(from, out.as_mut_ptr(), out.len(), Racing::Source) };
        Ok(())
    }

    /// Copies `bytes` into the buffer at `offset`.
    ///
    /// # Errors
    /// [`OutOfBuffer`] if the range exceeds the buffer.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBuffer> {
        let to = self.check(offset, bytes.len())?;
        // SAFETY: `check` has verified the target range; no reference to the bytes of the buffer exists, so
        // `bytes` cannot overlap it.
        unsafe { copy_racing(bytes.as_ptr(), to, bytes.len(), Racing::Target) };
        Ok(())
    }

    /// Loads the byte at `offset` with acquire ordering, for programs that poll it.
    ///
    /// # Errors
    /// [`OutOfBuffer`] if the byte is beyond the end of the buffer.
    pub fn load_u8(&self, offset: usize) -> Result<u8, OutOfBuffer> {
        let from = self.check(offset, 1)?;
        // SAFETY: `check` has verified that the byte is inside the buffer, and the allocation lives as long
        // as the borrow of `self`.
        let byte = unsafe { AtomicU8::from_ptr(from) };
        Ok(byte.load(Ordering::Acquire))
    }

    /// Loads the 8 bytes at `offset` atomically with acquire ordering, in host byte order.
    ///
    /// # Errors
    /// [`OutOfBuffer`] if the range exceeds the buffer.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64, OutOfBuffer> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Stores 8 bytes at `offset` atomically with release ordering, in host byte order.
    ///
    /// # Errors
    /// [`OutOfBuffer`] if the range exceeds the buffer.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), OutOfBuffer> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64, OutOfBuffer> {
        let at = self.check(offset, 8)?;
        assert!(offset.is_multiple_of(8), "offset {offset} is not a multiple of 8");
        // SAFETY: `check` has verified that the 8 bytes are inside the buffer. They are aligned, as the
        // buffer is aligned to a page and `offset` is a multiple of 8, and the allocation lives as long as
        // the borrow of `self`.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = &self.shareable {
            return memory.unregister();
        }
        // SAFETY: `start` was allocated in `zeroed` with the layout of the same length, and is freed only
        // here.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:#x})", self.len, self.addr())
    }
}

// SAFETY: the buffer owns its allocation, which is not tied to a thread.
unsafe impl Send for Buffer {}
// SAFETY: the methods access bytes by atomic operations or by instructions in assembly, and never give out a
// reference to them; so threads that access the same bytes get some value, as with DMA, but no undefined
// behaviour.
unsafe impl Sync for Buffer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_access_the_same_bytes_do_not_race() {
        let buffer = Buffer::zeroed(4096);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| (0..2000u32).for_each(|i| buffer.write(3, &[i as u8; 61]).unwrap()));
            let mut out = [0; 100];
            while !writing.is_finished() {
                buffer.read(1, &mut out).unwrap();
            }
            // ThreadSanitizer sees a join, but not how a scope ends.
            writing.join().unwrap();
        });
        let mut out = [0; 63];
        buffer.read(2, &mut out).unwrap();
        assert_eq!((out[0], &out[1..62], out[62]), (0, &[(1999 % 256) as u8; 61][..], 0));
    }

    #[test]
    fn written_bytes_are_read_back_and_access_outside_the_buffer_fails() {
        let b = Buffer::zeroed(16);
        b.write(3, b"abc").unwrap();
        let mut out = [0; 5];
        b.read(2, &mut out).unwrap();
        assert_eq!(&out, b"\0abc\0");
        b.store_u64(8, 7).unwrap();
        assert_eq!((b.load_u64(8), b.load_u8(8)), (Ok(7), Ok(7u64.to_ne_bytes()[0])));
        assert_eq!(b.write(14, b"abc"), Err(OutOfBuffer { offset: 14, len: 3, size: 16 }));
        assert!(b.read(usize::MAX, &mut out).is_err());
        assert!(b.load_u64(16).is_err());
        assert_eq!((b.read(16, &mut []), b.write(17, &[]).is_err()), (Ok(()), true));
        assert!(Buffer::zeroed(0).is_empty() && !b.is_empty());
    }
}
