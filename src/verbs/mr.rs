use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::context::Context;
use super::cq::Cq;
use super::qp::{Qp, QpOptions};
use super::srq::Srq;
use super::{CreateError, MemoryAccessError};
use crate::memory::{Access, Buffer, PdId, RegionInfo};
use crate::transport::{RecvCaps, Sge};
use crate::wire::{LKey, RKey};

/// A protection domain: regions and queue pairs of different domains have nothing to do with each other.
/// Cheap to clone; it lives as long as anything made in it.
#[derive(Clone, Debug)]
pub struct Pd(Arc<PdInner>);

#[derive(Debug)]
struct PdInner {
    context: Context,
    id: PdId,
}

impl Pd {
    pub(super) fn new(context: Context, id: u32) -> Pd {
        Pd(Arc::new(PdInner { context, id: PdId(id) }))
    }

    /// The context that it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(super) fn id(&self) -> PdId {
        self.0.id
    }

    /// A region of `len` zero bytes of its own. Its addresses are the context's choice, not those in host
    /// memory.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn reg_mr(&self, len: usize, access: Access) -> Result<Mr, CreateError> {
        self.check(len, access)?;
        let buffer = Buffer::zeroed(len);
        let addr = buffer.addr();
        // SAFETY: the buffer is owned by the `Mr`, which deregisters before it frees.
        let raw = unsafe { self.register(addr, len, self.0.context.take_iova(len), access) }?;
        Ok(Mr { raw, buffer })
    }

    /// A region of memory that is not the crate's own, with `addr` as the address that peers use.
    ///
    /// # Safety
    /// The `len` bytes at `addr` must stay readable, and writable if `access` allows any writing, until the
    /// `RawMr` is dropped. Peers and the NIC read and write them at any time meanwhile, as DMA would: no
    /// `&mut` to them may be relied upon, and `&` only where nothing writes.
    ///
    /// # Errors
    /// [`CreateError`].
    pub unsafe fn reg_mr_raw(&self, addr: *mut u8, len: usize, access: Access) -> Result<RawMr, CreateError> {
        self.check(len, access)?;
        // SAFETY: the caller vouches for the memory.
        unsafe { self.register(addr.expose_provenance(), len, addr.addr() as u64, access) }
    }

    fn check(&self, len: usize, access: Access) -> Result<(), CreateError> {
        let max = self.0.context.0.limits.max_mr_size;
        if len == 0 || len as u64 > max {
            return Err(CreateError::Value { name: "a region's length", value: len as u64, min: 1, max });
        }
        let writes = access & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if writes != Access::LOCAL_READ && !access.allows(Access::LOCAL_WRITE) {
            return Err(CreateError::AccessNeedsLocalWrite(writes));
        }
        Ok(())
    }

    /// # Safety
    /// As [`reg_mr_raw`](Self::reg_mr_raw).
    unsafe fn register(
        &self,
        addr: usize,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<RawMr, CreateError> {
        let max = self.0.context.0.limits.max_mr;
        let mut table = self.0.context.0.shard.memory.write();
        if table.len() >= max as usize {
            return Err(CreateError::Exhausted { kind: "regions", max });
        }
        // SAFETY: the caller vouches for the memory until the `RawMr` is dropped, which deregisters.
        let info = unsafe { table.register(self.0.id, addr, len, iova, access) }
            .ok_or(CreateError::Exhausted { kind: "regions", max })?;
        drop(table);
        Ok(RawMr { pd: self.clone(), addr: iova, len, info })
    }

    /// A queue pair.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_qp(&self, send_cq: &Cq, recv_cq: &Cq, options: &QpOptions) -> Result<Qp, CreateError> {
        Qp::new(self, send_cq, recv_cq, None, options)
    }

    /// A queue pair that takes its receives from a shared queue; `options.recv` does not count.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_qp_on_srq(
        &self,
        send_cq: &Cq,
        recv_cq: &Cq,
        srq: &Srq,
        options: &QpOptions,
    ) -> Result<Qp, CreateError> {
        Qp::new(self, send_cq, recv_cq, Some(srq), options)
    }

    /// A shared receive queue.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_srq(&self, caps: RecvCaps) -> Result<Srq, CreateError> {
        Srq::new(self, caps)
    }
}

/// Memory at a peer: what a WRITE, READ or atomic is aimed at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteAddr {
    /// Address of the first byte.
    pub va: u64,
    /// Key of the region.
    pub rkey: RKey,
}

/// A registered region of memory that something else owns. Dropping it deregisters.
pub struct RawMr {
    pd: Pd,
    addr: u64,
    len: usize,
    info: RegionInfo,
}

impl RawMr {
    /// Address of the first byte, for work requests and peers.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The local key.
    pub fn lkey(&self) -> LKey {
        self.info.lkey
    }

    /// The remote key.
    pub fn rkey(&self) -> RKey {
        self.info.rkey
    }

    /// Bytes `range` as a scatter/gather element. A range outside is refused when it is used.
    pub fn sge(&self, range: Range<usize>) -> Sge {
        Sge {
            addr: self.addr + range.start as u64,
            length: range.end.saturating_sub(range.start) as u32,
            lkey: self.info.lkey,
        }
    }

    /// The byte at `offset`, for a peer to aim at.
    pub fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { va: self.addr + offset as u64, rkey: self.info.rkey }
    }
}

impl Drop for RawMr {
    fn drop(&mut self) {
        // Waits for the turn in progress, so nothing touches the memory afterwards.
        self.pd.0.context.0.shard.memory.write().deregister(self.info.lkey);
    }
}

impl fmt::Debug for RawMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mr({} bytes at {:#x}, {:?})", self.len, self.addr, self.info.lkey)
    }
}

/// A registered region that owns its memory. Peers may change it at any time, so it is read and written by
/// copying; synchronise with completions.
#[derive(Debug)]
pub struct Mr {
    /// Dropped, and thereby deregistered, before the buffer.
    raw: RawMr,
    buffer: Buffer,
}

impl std::ops::Deref for Mr {
    type Target = RawMr;
    fn deref(&self) -> &RawMr {
        &self.raw
    }
}

impl Mr {
    /// Copies the bytes at `offset` to all of `out`.
    ///
    /// # Errors
    /// [`MemoryAccessError`] outside the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), MemoryAccessError> {
        self.buffer.read(offset, out)
    }

    /// Copies all of `bytes` to `offset`.
    ///
    /// # Errors
    /// [`MemoryAccessError`] outside the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryAccessError> {
        self.buffer.write(offset, bytes)
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.buffer.len()];
        // In range by construction.
        let _ = self.buffer.read(0, &mut out);
        out
    }

    /// The region's memory, for polling on a byte or word.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}
