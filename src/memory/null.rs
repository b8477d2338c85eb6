//! Memory behind null regions (`ibv_alloc_null_mr`).

use super::{Access, AccessError, Buffer, HostSlice};

/// Maximum length of one access to a null region, in bytes: more than a packet can carry.
const NULL_RUN: usize = 1 << 16;

/// Buffers that back all null regions of a table. Another table has buffers of its own, to which its NIC may
/// write in another thread at the same time; only the shards of one NIC write to the same ones.
#[derive(Debug)]
pub(super) struct Null {
    zeros: Buffer,
    sink: Buffer,
}

impl Default for Null {
    fn default() -> Null {
        Null { zeros: Buffer::zeroed(NULL_RUN), sink: Buffer::zeroed(NULL_RUN) }
    }
}

impl Null {
    /// Returns the memory that an access to `len` bytes reads or writes.
    pub fn run(&self, key: u32, addr: u64, len: u32, needed: Access) -> Result<HostSlice, AccessError> {
        if len as usize > NULL_RUN {
            let region_len = NULL_RUN as u64;
            return Err(AccessError::OutOfRange { key, addr, len: len.into(), start: addr, region_len });
        }
        let buffer = if needed.allows(Access::LOCAL_WRITE) { &self.sink } else { &self.zeros };
        // SAFETY: both buffers have `NULL_RUN` bytes, which `len` does not exceed, and live as long as the
        // table.
        Ok(unsafe { HostSlice::from_raw(buffer.addr(), len as usize) })
    }
}
