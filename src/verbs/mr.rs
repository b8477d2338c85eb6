//! Memory regions.

use std::fmt;
use std::ops::Range;

use super::faults::Call;
use super::{CreateError, MemoryAccessError, Pd};
use crate::memory::{
    Access, AccessError, Accessor, Buffer, Extent, ManagementError, RegionInfo, ReregMr, Table,
    install_fault_handler, page_size,
};
use crate::nic::Limits;
use crate::sys::setters::setters;
use crate::transport::{RemoteAddr, Sge};
use crate::wire::{LKey, Qpn, RKey};

impl Pd {
    /// Allocates `len` zeroed bytes and registers them as a region. `options` is either [`Access`] flags or
    /// [`MrOptions`]. If `len` is 0, only accesses of length 0 succeed. Addresses in the region are not host
    /// addresses: the context chooses the start address, unless [`MrOptions::iova`] is set.
    ///
    /// # Errors
    /// [`CreateError::Value`] for a length above the device's limit; [`CreateError::AccessNeedsLocalWrite`];
    /// [`CreateError::Access`]; [`CreateError::Exhausted`]; [`CreateError::DeviceFatal`].
    pub fn reg_mr(&self, len: usize, options: impl Into<MrOptions>) -> Result<Mr, CreateError> {
        self.context().inject(Call::ibv_reg_mr)?;
        let MrOptions { access, iova, shareable } = options.into();
        self.check(len.max(1), access)?;
        let iova = iova.unwrap_or_else(|| self.context().alloc_iova(len));
        let buffer = allocate(len, shareable);
        self.check_empty(buffer.addr(), len)?;
        let extent = Extent { addr: buffer.addr(), len, iova, access };
        // SAFETY: the `Mr` owns the buffer and drops `raw`, which deregisters, before it; the buffer's bytes
        // are accessed by copying only.
        let raw = unsafe { self.register(extent) }?;
        let freed = Freed(buffer.is_shareable().then(|| self.clone()));
        Ok(Mr { raw, buffer, _freed: freed })
    }

    /// Registers memory owned by the caller. Addresses in the region are host addresses, unless
    /// [`MrOptions::iova`] sets another start address.
    ///
    /// # Safety
    /// The `len` bytes at `addr` must stay readable, and writable if `access` allows any writing, until the
    /// `RawMr` is dropped. Peers and the NIC read and write them at any time meanwhile, as with DMA: the
    /// caller must not rely on any `&mut` to them, and on `&` only where nothing writes. With
    /// [`Access::ON_DEMAND`] they may be unmapped, and an access to an unmapped page fails.
    ///
    /// On x86-64 a handler for SIGSEGV and SIGBUS turns an access to memory that is unmapped or protected
    /// nevertheless into an error of the work request, and passes every other fault to the handler that was
    /// installed before. The first call installs it for the whole process.
    ///
    /// # Errors
    /// [`CreateError::Value`] for a length above the device's limit, or of 0 at a page boundary unless the
    /// personality allows that; [`CreateError::AccessNeedsLocalWrite`]; [`CreateError::Access`] for unknown
    /// flags; [`CreateError::Exhausted`]; [`CreateError::DeviceFatal`].
    pub unsafe fn reg_mr_raw(
        &self,
        addr: *mut u8,
        len: usize,
        options: impl Into<MrOptions>,
    ) -> Result<RawMr, CreateError> {
        self.context().inject(Call::ibv_reg_mr)?;
        let MrOptions { access, iova, .. } = options.into();
        let iova = iova.unwrap_or(addr.addr() as u64);
        self.check(len.max(1), access)?;
        self.check_empty(addr.addr(), len)?;
        install_fault_handler();
        // SAFETY: the caller keeps the memory valid until the `RawMr` is dropped.
        let mr = unsafe { self.register(Extent { addr: addr.expose_provenance(), len, iova, access }) }?;
        self.with_table(|table| table.pin(mr.info.lkey));
        Ok(mr)
    }

    /// Registers the process's entire address space, as mapped at the time of each access: implicit on-demand
    /// paging (`ibv_reg_mr` with address 0 and length `SIZE_MAX`). `access` must include
    /// [`Access::ON_DEMAND`]. An access to an unmapped page fails.
    ///
    /// # Safety
    /// Anyone with the region's key can read all memory of the process, and write it if `access` allows any
    /// writing.
    ///
    /// # Errors
    /// [`CreateError::Access`] without [`Access::ON_DEMAND`] or with unknown flags;
    /// [`CreateError::AccessNeedsLocalWrite`]; [`CreateError::Exhausted`]; [`CreateError::DeviceFatal`].
    pub unsafe fn reg_mr_implicit(&self, access: Access) -> Result<RawMr, CreateError> {
        self.context().inject(Call::ibv_reg_mr)?;
        self.check(1, access)?;
        if !access.allows(Access::ON_DEMAND) {
            return Err(CreateError::Access { access, reason: "an implicit region requires ON_DEMAND" });
        }
        install_fault_handler();
        // SAFETY: the caller accepts that the key gives access to all memory of the process.
        let info = self.insert(|table| unsafe { table.register_implicit(self.id(), access) })?;
        Ok(RawMr { pd: self.clone(), addr: 0, len: usize::MAX, info, is_deregistered: false })
    }

    /// Faults in the pages of scatter/gather elements in on-demand regions, as a work request would
    /// (`ibv_advise_mr`): for writing by the NIC if `for_writing` is true, otherwise for reading.
    ///
    /// # Errors
    /// [`AccessError`] of the first element that could not be accessed.
    pub fn prefetch(&self, sges: &[Sge], for_writing: bool) -> Result<(), AccessError> {
        let needed = if for_writing { Access::LOCAL_WRITE } else { Access::LOCAL_READ };
        // The access is not on behalf of a queue pair; only windows, which are for peers, check its number.
        let by = Accessor { pd: self.id(), qpn: Qpn::new(0) };
        self.with_table(|table| {
            sges.iter().try_for_each(|sge| table.local(by, sge.lkey, sge.addr, sge.length, needed).map(drop))
        })
    }

    pub(super) fn check(&self, len: usize, access: Access) -> Result<(), CreateError> {
        CreateError::check("region length", len as u64, 1..=self.context().0.limits.max_mr_size)?;
        if access.unknown() != Access::LOCAL_READ {
            return Err(CreateError::Access { access, reason: "it has unknown flags" });
        }
        if access.allows_remote_modification() && !access.allows(Access::LOCAL_WRITE) {
            let writes = access & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
            return Err(CreateError::AccessNeedsLocalWrite(writes));
        }
        Ok(())
    }

    /// Fails if the region is empty and begins at a page boundary, unless the personality allows that.
    fn check_empty(&self, addr: usize, len: usize) -> Result<(), CreateError> {
        let Limits { max_mr_size: max, .. } = self.context().0.limits;
        let everywhere = self.context().0.quirks.empty_regions_at_page_boundaries;
        match len == 0 && addr.is_multiple_of(page_size()) && !everywhere {
            true => {
                Err(CreateError::Value { name: "length of a page-aligned region", value: 0, min: 1, max })
            }
            false => Ok(()),
        }
    }

    /// # Safety
    /// As for [`reg_mr_raw`](Self::reg_mr_raw).
    pub(super) unsafe fn register(&self, extent: Extent) -> Result<RawMr, CreateError> {
        let iova = if extent.access.allows(Access::ZERO_BASED) { 0 } else { extent.iova };
        let extent = Extent { iova, ..extent };
        // SAFETY: the caller keeps the memory valid until the `RawMr` is dropped, which deregisters it.
        let info = self.insert(|table| unsafe { table.register(self.id(), extent) })?;
        Ok(RawMr { pd: self.clone(), addr: iova, len: extent.len, info, is_deregistered: false })
    }

    /// Adds an entry to the key table, unless the device's limit has been reached.
    pub(super) fn insert<T>(&self, make: impl FnOnce(&mut Table) -> Option<T>) -> Result<T, CreateError> {
        self.context().check_device()?;
        let max = self.context().0.limits.max_mr;
        let full = CreateError::Exhausted { kind: "regions and windows", max };
        self.with_table(|table| if table.len() < max as usize { make(table) } else { None }).ok_or(full)
    }

    /// Runs `f` on the key table after every shard has finished its current turn, so that no shard still uses
    /// an entry that `f` removes.
    pub(super) fn with_table<T>(&self, f: impl FnOnce(&mut Table) -> T) -> T {
        self.context().0.shards.change_memory(f)
    }
}

/// Attributes for registering a memory region with [`Pd::reg_mr`] or [`Pd::reg_mr_raw`].
///
/// ```
/// # use urxe::verbs::*;
/// # let pd = Context::on_fabric(&Fabric::new())?.alloc_pd()?;
/// let mr = pd.reg_mr(4096, MrOptions::new(Access::ALL).iova(0x7000_0000))?;
/// assert_eq!(mr.remote(16).va, 0x7000_0010);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MrOptions {
    /// Operations that the region permits.
    pub access: Access,
    /// I/O virtual address of the first byte, for work requests and peers; `None` for the registering
    /// function's default. Ignored with [`Access::ZERO_BASED`], which makes addresses start at 0.
    pub iova: Option<u64>,
    /// Whether [`Pd::reg_mr`] allocates memory that other processes can map, so that long payloads take one
    /// copy instead of two on their way to a process of this host: from this region to their
    /// destination. Such memory is allocated as a whole at once. A process to which a reliable
    /// connection has sent from the region may read all of it, and a forked child shares it with its
    /// parent. If the system does not provide such memory, the region has ordinary memory. The default is
    /// false.
    pub shareable: bool,
}

setters!(MrOptions { access: Access, shareable: bool } optional { iova: u64 });

/// Allocates the memory of a region.
fn allocate(len: usize, shareable: bool) -> Buffer {
    let shared = match shareable {
        true => Buffer::shareable(len),
        false => return Buffer::zeroed(len),
    };
    shared.unwrap_or_else(|error| {
        trace_event!(WARN, "urxe::memory", "region not shareable", len = len, reason = %error);
        Buffer::zeroed(len)
    })
}

impl MrOptions {
    /// Returns options with the given permissions and the default address.
    pub fn new(access: Access) -> MrOptions {
        MrOptions { access, iova: None, shareable: false }
    }
}

impl Default for MrOptions {
    /// Returns options that permit every kind of local and remote access ([`Access::ALL`]).
    fn default() -> MrOptions {
        MrOptions::new(Access::ALL)
    }
}

impl From<Access> for MrOptions {
    fn from(access: Access) -> MrOptions {
        MrOptions::new(access)
    }
}

/// A registered region whose memory is owned elsewhere. Dropping it deregisters the region.
pub struct RawMr {
    pd: Pd,
    addr: u64,
    len: usize,
    info: RegionInfo,
    /// Whether the region has already been deregistered, so that dropping it does nothing.
    is_deregistered: bool,
}

impl RawMr {
    /// Returns the address of the first byte, for work requests and peers.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reports whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the local key.
    pub fn lkey(&self) -> LKey {
        self.info.lkey
    }

    /// Returns the remote key.
    pub fn rkey(&self) -> RKey {
        self.info.rkey
    }

    /// Returns a scatter/gather element for the given byte range of the region. A range outside the region is
    /// rejected only when the element is used.
    pub fn sge(&self, range: Range<usize>) -> Sge {
        Sge {
            addr: self.addr + range.start as u64,
            length: range.end.saturating_sub(range.start) as u32,
            lkey: self.info.lkey,
        }
    }

    /// Returns the remote address of the byte at `offset`, for use by a peer.
    pub fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { va: self.addr + offset as u64, rkey: self.info.rkey }
    }
}

impl RawMr {
    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Deregisters the region, as dropping it does, but fails while windows are bound to it.
    ///
    /// # Errors
    /// The unchanged region and [`ManagementError::WindowsBound`].
    pub fn dereg(self) -> Result<(), (RawMr, ManagementError)> {
        let mut this = self;
        let done = this.pd.with_table(|table| table.deregister(this.info.lkey));
        this.is_deregistered = done.is_ok();
        done.map_err(|e| (this, e))
    }

    /// Re-registers the region (`ibv_rereg_mr`) with a different protection domain, different memory,
    /// different permissions, or any combination of these. Changing the memory changes the keys.
    ///
    /// # Safety
    /// As for [`Pd::reg_mr_raw`], for the memory that the region has afterwards.
    ///
    /// # Errors
    /// [`CreateError`], for example while windows are bound to the region; then nothing has changed.
    pub unsafe fn rereg_raw(
        &mut self,
        pd: Option<&Pd>,
        memory: Option<(*mut u8, usize)>,
        access: Option<Access>,
    ) -> Result<(), CreateError> {
        install_fault_handler();
        let translation = memory.map(|(addr, len)| (addr.expose_provenance(), len, addr.addr() as u64));
        // SAFETY: this function has the same contract, which the caller upholds.
        unsafe { self.rereg_as(pd, translation, access) }?;
        self.pd.with_table(|table| table.pin(self.info.lkey));
        Ok(())
    }

    /// # Safety
    /// As for [`rereg_raw`](Self::rereg_raw).
    unsafe fn rereg_as(
        &mut self,
        pd: Option<&Pd>,
        translation: Option<(usize, usize, u64)>,
        access: Option<Access>,
    ) -> Result<(), CreateError> {
        if pd.is_some_and(|pd| !pd.context().is(self.pd.context())) {
            return Err(CreateError::OtherContext("protection domain"));
        }
        self.pd.context().check_device()?;
        self.pd.check(translation.map_or(1, |(_, len, _)| len.max(1)), access.unwrap_or_default())?;
        if let Some((addr, len, _)) = translation {
            self.pd.check_empty(addr, len)?;
        }
        let change = ReregMr { pd: pd.map(Pd::id), translation, access };
        // SAFETY: the caller keeps the memory valid until the `RawMr` is dropped or registered anew.
        self.info = self.pd.with_table(|table| unsafe { table.reregister(self.info.lkey, &change) })?;
        if let Some((_, len, iova)) = translation {
            (self.addr, self.len) = (iova, len);
        }
        if let Some(pd) = pd {
            self.pd = pd.clone();
        }
        Ok(())
    }
}

impl Drop for RawMr {
    fn drop(&mut self) {
        if !self.is_deregistered {
            let _ = self.pd.with_table(|table| table.revoke(self.info.lkey));
        }
    }
}

/// A null region: every address reads as zero, and writes are discarded. It can only be used locally, to skip
/// parts of a message that are not needed. Dropping it deregisters it.
#[derive(Debug)]
pub struct NullMr {
    pd: Pd,
    lkey: LKey,
}

impl Pd {
    /// Registers a null region (`ibv_alloc_null_mr`).
    ///
    /// # Errors
    /// [`CreateError::Exhausted`]; [`CreateError::DeviceFatal`].
    pub fn alloc_null_mr(&self) -> Result<NullMr, CreateError> {
        let lkey = self.insert(|table| table.register_null(self.id()))?;
        Ok(NullMr { pd: self.clone(), lkey })
    }
}

impl NullMr {
    /// Returns a scatter/gather element that stands for `length` bytes of the null region.
    pub fn sge(&self, length: u32) -> Sge {
        Sge { addr: 0, length, lkey: self.lkey }
    }

    /// Returns the local key; there is no remote key.
    pub fn lkey(&self) -> LKey {
        self.lkey
    }
}

impl Drop for NullMr {
    fn drop(&mut self) {
        let _ = self.pd.with_table(|table| table.deregister(self.lkey));
    }
}

impl fmt::Debug for RawMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mr({} bytes at {:#x}, {:?})", self.len, self.addr, self.info.lkey)
    }
}

/// A registered region that owns its memory. Peers may modify the memory at any time, so it is accessed only
/// by copying; use completions for synchronisation.
#[derive(Debug)]
pub struct Mr {
    /// Registration, declared before the buffer so that the region is deregistered before its memory is
    /// freed.
    raw: RawMr,
    buffer: Buffer,
    _freed: Freed,
}

/// Wakes the NIC when the memory of a shareable region has been freed, so that the NIC withdraws the memory
/// from the processes that have mapped it. The kernel keeps the memory until the last of them has unmapped
/// it.
#[derive(Debug)]
struct Freed(Option<Pd>);

impl Drop for Freed {
    fn drop(&mut self) {
        if let Some(pd) = &self.0 {
            pd.context().0.shards.wake();
        }
    }
}

impl std::ops::Deref for Mr {
    type Target = RawMr;
    fn deref(&self) -> &RawMr {
        &self.raw
    }
}

impl Mr {
    /// Re-registers the region with a different protection domain, `len` newly allocated zeroed bytes,
    /// different permissions, or any combination of these. Changing the memory changes the keys.
    ///
    /// # Errors
    /// [`CreateError`], for example while windows are bound to the region; then nothing has changed.
    pub fn rereg(
        &mut self,
        pd: Option<&Pd>,
        len: Option<usize>,
        access: Option<Access>,
    ) -> Result<(), CreateError> {
        let buffer = len.map(|len| allocate(len, self.buffer.is_shareable()));
        let translation =
            buffer.as_ref().map(|b| (b.addr(), b.len(), self.raw.pd.context().alloc_iova(b.len())));
        // SAFETY: the old buffer is dropped only after the table no longer refers to it; the new one lives as
        // long as the region.
        unsafe { self.raw.rereg_as(pd, translation, access) }?;
        if let Some(buffer) = buffer {
            let freed = Freed(self.buffer.is_shareable().then(|| self.raw.pd.clone()));
            self.buffer = buffer;
            drop(freed);
        }
        Ok(())
    }

    /// Fills `out` with the bytes that start at `offset`.
    ///
    /// # Errors
    /// [`MemoryAccessError`] outside the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), MemoryAccessError> {
        self.buffer.read(offset, out)
    }

    /// Returns a copy of the bytes in `range`.
    ///
    /// ```
    /// # use urxe::verbs::*;
    /// # let pd = Context::on_fabric(&Fabric::new())?.alloc_pd()?;
    /// let mr = pd.reg_mr(4096, Access::LOCAL_WRITE)?;
    /// mr.write(100, b"hello")?;
    /// assert_eq!(mr.read_vec(100..105)?, b"hello");
    /// assert!(mr.read_vec(4095..4097).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryAccessError`] outside the region. A range that ends before it begins is empty.
    pub fn read_vec(&self, range: Range<usize>) -> Result<Vec<u8>, MemoryAccessError> {
        let Range { start: offset, end } = range;
        let (len, size) = (end.saturating_sub(offset), self.buffer.len());
        // Checked before the allocation, whose length a caller may have got from a peer.
        if len > size {
            return Err(MemoryAccessError { offset, len, size });
        }
        let mut out = vec![0; len];
        self.buffer.read(offset, &mut out)?;
        Ok(out)
    }

    /// Copies `bytes` into the region, starting at `offset`.
    ///
    /// # Errors
    /// [`MemoryAccessError`] outside the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryAccessError> {
        self.buffer.write(offset, bytes)
    }

    /// Returns a copy of the entire region.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.buffer.len()];
        // In range: `out` has the length of the buffer.
        let _ = self.buffer.read(0, &mut out);
        out
    }

    /// Returns the region's memory, for polling a byte or word.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}
