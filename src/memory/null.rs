//! Memory behind null regions (`ibv_alloc_null_mr`).

use std::sync::LazyLock;

use super::{Access, AccessError, Buffer, HostSlice};

/// Maximum length of one access to a null region, in bytes: more than a packet can carry.
const NULL_RUN: usize = 1 << 16;

/// Buffers that back all null regions: one that is read, and one that is written.
static ZEROS: LazyLock<Buffer> = LazyLock::new(|| Buffer::zeroed(NULL_RUN));
static SINK: LazyLock<Buffer> = LazyLock::new(|| Buffer::zeroed(NULL_RUN));

/// Allocates the buffers. Called when a null region is registered, so that the data path, also of a forked
/// child, finds them allocated.
pub(super) fn allocate() {
    LazyLock::force(&ZEROS);
    LazyLock::force(&SINK);
}

/// Returns the memory that an access to `len` bytes of a null region reads or writes.
pub(super) fn run(key: u32, addr: u64, len: u32, needed: Access) -> Result<HostSlice, AccessError> {
    if len as usize > NULL_RUN {
        let region_len = NULL_RUN as u64;
        return Err(AccessError::OutOfRange { key, addr, len: len.into(), start: addr, region_len });
    }
    let buffer = if needed.allows(Access::LOCAL_WRITE) { &SINK } else { &ZEROS };
    // SAFETY: both buffers have `NULL_RUN` bytes, which `len` does not exceed, and are never freed.
    Ok(unsafe { HostSlice::from_raw(buffer.addr(), len as usize) })
}
