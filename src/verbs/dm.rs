//! Device memory (`ibv_alloc_dm`).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::faults::Call;
use super::{Context, CreateError, MemoryAccessError, Pd, RawMr};
use crate::memory::{Access, Buffer, Extent};

/// Device memory (`ibv_alloc_dm`), emulated with host memory that counts against the device's limit. Cheap to
/// clone; it lives as long as any region registered on it.
#[derive(Clone)]
pub struct Dm(Arc<DmInner>);

struct DmInner {
    context: Context,
    buffer: Buffer,
}

/// A registered region of device memory, addressed by offset from its start. Dropping it deregisters it.
#[derive(Debug)]
pub struct DmMr {
    raw: RawMr,
    dm: Dm,
}

impl Context {
    /// Allocates `len` bytes of zeroed device memory.
    ///
    /// # Errors
    /// [`CreateError::Value`] for 0 or more than the device has; [`CreateError::Exhausted`] for more than is
    /// left; [`CreateError::DeviceFatal`].
    pub fn alloc_dm(&self, len: usize) -> Result<Dm, CreateError> {
        self.inject(Call::ibv_alloc_dm)?;
        self.check_device()?;
        CreateError::check("length of device memory", len as u64, 1..=self.0.limits.max_dm_size)?;
        self.0.device_memory.acquire(len as u64)?;
        Ok(Dm(Arc::new(DmInner { context: self.clone(), buffer: Buffer::zeroed(len) })))
    }
}

impl Dm {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.buffer.len()
    }

    /// Reports whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` with the bytes that start at `offset` (`ibv_memcpy_from_dm`).
    ///
    /// # Errors
    /// [`MemoryAccessError`] outside the memory.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), MemoryAccessError> {
        self.0.buffer.read(offset, out)
    }

    /// Copies `bytes` into the device memory, starting at `offset` (`ibv_memcpy_to_dm`).
    ///
    /// # Errors
    /// [`MemoryAccessError`] outside the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryAccessError> {
        self.0.buffer.write(offset, bytes)
    }
}

impl Drop for DmInner {
    fn drop(&mut self) {
        self.context.0.device_memory.release(self.buffer.len() as u64);
    }
}

impl fmt::Debug for Dm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dm({} bytes)", self.len())
    }
}

impl Pd {
    /// Registers part of the device memory (`ibv_reg_dm_mr`). The region is addressed by offset from its
    /// start, so `access` must include [`Access::ZERO_BASED`].
    ///
    /// # Errors
    /// [`CreateError::OtherContext`] for device memory of another context; [`CreateError::Access`] without
    /// [`Access::ZERO_BASED`] or with unknown flags; [`CreateError::AccessNeedsLocalWrite`];
    /// [`CreateError::Value`] for a range outside the device memory or above the device's limit;
    /// [`CreateError::Exhausted`]; [`CreateError::DeviceFatal`].
    pub fn reg_dm_mr(&self, dm: &Dm, range: Range<usize>, access: Access) -> Result<DmMr, CreateError> {
        self.context().inject(Call::ibv_reg_dm_mr)?;
        if !dm.0.context.is(self.context()) {
            return Err(CreateError::OtherContext("device memory"));
        }
        if !access.allows(Access::ZERO_BASED) {
            return Err(CreateError::Access {
                access,
                reason: "a region of device memory requires ZERO_BASED",
            });
        }
        if range.end > dm.len() || range.start > range.end {
            let (value, max) = (range.end as u64, dm.len() as u64);
            return Err(CreateError::Value { name: "end of the range of device memory", value, min: 1, max });
        }
        // An empty part is allowed, although it is of no use.
        self.check(range.len().max(1), access)?;
        let extent = Extent { addr: dm.0.buffer.addr() + range.start, len: range.len(), iova: 0, access };
        // SAFETY: the `DmMr` holds a reference to the device memory, and drops `raw`, which deregisters,
        // before it.
        let raw = unsafe { self.register(extent) }?;
        Ok(DmMr { raw, dm: dm.clone() })
    }
}

impl DmMr {
    /// Returns the device memory on which the region is registered.
    pub fn dm(&self) -> &Dm {
        &self.dm
    }
}

impl std::ops::Deref for DmMr {
    type Target = RawMr;
    fn deref(&self) -> &RawMr {
        &self.raw
    }
}
