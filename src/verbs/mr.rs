use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::context::Context;
use super::cq::Cq;
use super::qp::{Qp, QpOptions};
use super::srq::Srq;
use super::xrc::Xrcd;
use super::{CreateError, MemoryAccessError};
use crate::memory::{
    Access, AccessError, Accessor, Buffer, ManagementError, PdId, RegionInfo, Reregistration, Span, Table,
    page_size, survive_faults,
};
use crate::nic::Limits;
use crate::transport::{RecvCaps, Sge};
use crate::wire::{LKey, Qpn, RKey};

impl Drop for PdInner {
    fn drop(&mut self) {
        self.context.0.pds.give_back();
    }
}

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

    /// A region of `len` zero bytes of its own, also none: then only accesses of length 0 succeed with its keys. Its
    /// addresses are the context's choice, not those in host memory, or count from 0 with [`Access::ZERO_BASED`].
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn reg_mr(&self, len: usize, access: Access) -> Result<Mr, CreateError> {
        self.check(len.max(1), access)?;
        self.reg_mr_at(len, self.0.context.take_iova(len), access)
    }

    /// [`reg_mr`](Self::reg_mr) with the first address given, whatever the access says.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn reg_mr_iova(&self, len: usize, iova: u64, access: Access) -> Result<Mr, CreateError> {
        self.check(len.max(1), access)?;
        self.reg_mr_at(len, iova, access)
    }

    fn reg_mr_at(&self, len: usize, iova: u64, access: Access) -> Result<Mr, CreateError> {
        let buffer = Buffer::zeroed(len);
        self.check_empty(buffer.addr(), len)?;
        let span = Span { addr: buffer.addr(), len, iova, access };
        // SAFETY: the buffer is owned by the `Mr`, which deregisters before it frees.
        let raw = unsafe { self.register(span) }?;
        Ok(Mr { raw, buffer })
    }

    /// A region of memory that is not the crate's own, with `addr` as the address that peers use.
    ///
    /// # Safety
    /// The `len` bytes at `addr` must stay readable, and writable if `access` allows any writing, until the
    /// `RawMr` is dropped. Peers and the NIC read and write them at any time meanwhile, as DMA would: no
    /// `&mut` to them may be relied upon, and `&` only where nothing writes. With [`Access::ON_DEMAND`] what is not mapped is
    /// refused when it is used.
    ///
    /// On x86-64 a signal handler for SIGSEGV and SIGBUS makes an error of the work request of what is unmapped or protected all
    /// the same, and hands every other fault to the handler that was there before. The first call installs it, for the process.
    ///
    /// # Errors
    /// [`CreateError`].
    pub unsafe fn reg_mr_raw(&self, addr: *mut u8, len: usize, access: Access) -> Result<RawMr, CreateError> {
        // SAFETY: as the caller vouches.
        unsafe { self.reg_mr_raw_iova(addr, len, addr.addr() as u64, access) }
    }

    /// [`reg_mr_raw`](Self::reg_mr_raw) with the first address that peers use given.
    ///
    /// # Safety
    /// As of [`reg_mr_raw`](Self::reg_mr_raw).
    ///
    /// # Errors
    /// [`CreateError`].
    pub unsafe fn reg_mr_raw_iova(
        &self,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<RawMr, CreateError> {
        self.check(len.max(1), access)?;
        self.check_empty(addr.addr(), len)?;
        survive_faults();
        // SAFETY: the caller vouches for the memory.
        unsafe { self.register(Span { addr: addr.expose_provenance(), len, iova, access }) }
    }

    /// A region of all the process's memory as it is mapped at each use: implicit on-demand paging
    /// (`ibv_reg_mr` with address 0 and length `SIZE_MAX`). What is not mapped is refused when it is used.
    ///
    /// # Safety
    /// A holder of its key can read all memory of the process, and write it if `access` allows any writing.
    ///
    /// # Errors
    /// [`CreateError`].
    pub unsafe fn reg_mr_implicit(&self, access: Access) -> Result<RawMr, CreateError> {
        self.check(1, access)?;
        if !access.allows(Access::ON_DEMAND) {
            return Err(CreateError::Access { access, why: "an implicit region needs ON_DEMAND" });
        }
        survive_faults();
        // SAFETY: the caller vouches for what comes of it.
        let info = self.insert(|table| unsafe { table.register_implicit(self.0.id, access) })?;
        Ok(RawMr { pd: self.clone(), addr: 0, len: usize::MAX, info, is_gone: false })
    }

    /// Brings in the pages of elements that are of regions on demand, as using them would (`ibv_advise_mr`); `for_writing` if
    /// the NIC is to write them.
    ///
    /// # Errors
    /// [`AccessError`] of the first element that could not be used so.
    pub fn prefetch(&self, sges: &[Sge], for_writing: bool) -> Result<(), AccessError> {
        let needed = if for_writing { Access::LOCAL_WRITE } else { Access::LOCAL_READ };
        // No queue pair asks; only windows, which are for peers, mind which.
        let by = Accessor { pd: self.id(), qpn: Qpn::new(0) };
        self.with_table(|table| {
            sges.iter().try_for_each(|sge| table.local(by, sge.lkey, sge.addr, sge.length, needed).map(drop))
        })
    }

    pub(super) fn check(&self, len: usize, access: Access) -> Result<(), CreateError> {
        let max = self.0.context.0.limits.max_mr_size;
        if len == 0 || len as u64 > max {
            return Err(CreateError::Value { name: "a region's length", value: len as u64, min: 1, max });
        }
        if access.unknown() != Access::LOCAL_READ {
            return Err(CreateError::Access { access, why: "some of it is not known" });
        }
        if access.lets_peers_write() && !access.allows(Access::LOCAL_WRITE) {
            let writes = access & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
            return Err(CreateError::AccessNeedsLocalWrite(writes));
        }
        Ok(())
    }

    /// Whether a region without bytes may begin at `addr` in host memory.
    fn check_empty(&self, addr: usize, len: usize) -> Result<(), CreateError> {
        let Limits { max_mr_size: max, .. } = self.0.context.0.limits;
        let everywhere = self.0.context.0.habits.empty_regions_at_page_boundaries;
        match len == 0 && addr.is_multiple_of(page_size()) && !everywhere {
            true => Err(CreateError::Value {
                name: "length of a region at a page boundary",
                value: 0,
                min: 1,
                max,
            }),
            false => Ok(()),
        }
    }

    /// # Safety
    /// As [`reg_mr_raw`](Self::reg_mr_raw).
    pub(super) unsafe fn register(&self, span: Span) -> Result<RawMr, CreateError> {
        let iova = if span.access.allows(Access::ZERO_BASED) { 0 } else { span.iova };
        let span = Span { iova, ..span };
        // SAFETY: the caller vouches for the memory until the `RawMr` is dropped, which deregisters.
        let info = self.insert(|table| unsafe { table.register(self.0.id, span) })?;
        Ok(RawMr { pd: self.clone(), addr: iova, len: span.len, info, is_gone: false })
    }

    /// A new entry in the table of keys.
    pub(super) fn insert<T>(&self, make: impl FnOnce(&mut Table) -> Option<T>) -> Result<T, CreateError> {
        self.context().check_device()?;
        let max = self.0.context.0.limits.max_mr;
        let full = CreateError::Exhausted { kind: "regions and windows", max };
        self.with_table(|table| if table.len() < max as usize { make(table) } else { None }).ok_or(full)
    }

    /// Runs `f` with the table of keys; waits for the turn in progress, so nothing uses what is gone afterwards.
    pub(super) fn with_table<T>(&self, f: impl FnOnce(&mut Table) -> T) -> T {
        self.0.context.0.shards.change_memory(f)
    }

    /// A queue pair.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_qp(&self, send_cq: &Cq, recv_cq: &Cq, options: &QpOptions) -> Result<Qp, CreateError> {
        Qp::new(self, send_cq, recv_cq, None, None, options)
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
        Qp::new(self, send_cq, recv_cq, Some(srq), None, options)
    }

    /// A shared receive queue.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_srq(&self, caps: RecvCaps) -> Result<Srq, CreateError> {
        Srq::new(self, None, caps)
    }

    /// A shared receive queue for the targets of an XRC domain, which name it by its number; its receives complete
    /// on `cq`.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_xrc_srq(&self, xrcd: &Xrcd, cq: &Cq, caps: RecvCaps) -> Result<Srq, CreateError> {
        Srq::new(self, Some((xrcd, cq)), caps)
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
    /// Deregistered: dropping it has nothing left to do.
    is_gone: bool,
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

impl RawMr {
    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Deregisters, as dropping does, but not while windows are bound to it.
    ///
    /// # Errors
    /// The region as it was, and [`ManagementError::WindowsBound`].
    pub fn dereg(self) -> Result<(), (RawMr, ManagementError)> {
        let mut this = self;
        let done = this.pd.with_table(|table| table.deregister(this.info.lkey));
        this.is_gone = done.is_ok();
        done.map_err(|e| (this, e))
    }

    /// Registers anew, in another domain, with other permissions, other memory, or all of that. Other memory has new
    /// keys.
    ///
    /// # Safety
    /// As of [`Pd::reg_mr_raw`], for the memory that it has then.
    ///
    /// # Errors
    /// [`CreateError`]; then nothing has changed.
    pub unsafe fn rereg_raw(
        &mut self,
        pd: Option<&Pd>,
        memory: Option<(*mut u8, usize)>,
        access: Option<Access>,
    ) -> Result<(), CreateError> {
        survive_faults();
        let translation = memory.map(|(addr, len)| (addr.expose_provenance(), len, addr.addr() as u64));
        // SAFETY: as the caller vouches.
        unsafe { self.rereg_as(pd, translation, access) }
    }

    /// # Safety
    /// As of [`rereg_raw`](Self::rereg_raw).
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
        let change = Reregistration { pd: pd.map(Pd::id), translation, access };
        // SAFETY: as the caller vouches.
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
        if !self.is_gone {
            let _ = self.pd.with_table(|table| table.revoke(self.info.lkey));
        }
    }
}

/// A region that reads as zeros and takes all that is written to it, at every address; for the parts of a message
/// that nobody wants. Dropping it deregisters.
#[derive(Debug)]
pub struct NullMr {
    pd: Pd,
    lkey: LKey,
}

impl Pd {
    /// A null region.
    ///
    /// # Errors
    /// [`CreateError::Exhausted`].
    pub fn alloc_null_mr(&self) -> Result<NullMr, CreateError> {
        let lkey = self.insert(|table| table.register_null(self.id()))?;
        Ok(NullMr { pd: self.clone(), lkey })
    }
}

impl NullMr {
    /// `length` bytes of it.
    pub fn sge(&self, length: u32) -> Sge {
        Sge { addr: 0, length, lkey: self.lkey }
    }

    /// The local key; there is no remote one.
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
    /// Registers anew, in another domain, with other permissions, with `len` zero bytes of other memory, or all of
    /// that. Other memory has new keys.
    ///
    /// # Errors
    /// [`CreateError`]; then nothing has changed.
    pub fn rereg(
        &mut self,
        pd: Option<&Pd>,
        len: Option<usize>,
        access: Option<Access>,
    ) -> Result<(), CreateError> {
        let buffer = len.map(Buffer::zeroed);
        let translation =
            buffer.as_ref().map(|b| (b.addr(), b.len(), self.raw.pd.context().take_iova(b.len())));
        // SAFETY: the old buffer stays until the table has forgotten it, the new one as long as the region.
        unsafe { self.raw.rereg_as(pd, translation, access) }?;
        if let Some(buffer) = buffer {
            self.buffer = buffer;
        }
        Ok(())
    }

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
