//! Memory regions (`ibv_mr`) and memory windows (`ibv_mw`).

use std::any::Any;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use parking_lot::Mutex;
use urxe::memory::{is_mapped, may_read, may_write, page_size, prefer_huge_pages, supports_populate};
use urxe::verbs::faults::Call;
use urxe::verbs::memory::{DmMr, Mw, RawMr, WindowKind};
use urxe::verbs::{Access, MrOptions};

use crate::abi::{ibv_dm, ibv_mr, ibv_mw, ibv_pd, ibv_sge};
use crate::buffers::elements;
use crate::call_faults;
use crate::context::Context;
use crate::dm::DeviceMemory;
use crate::dma_buf::Mapping;
use crate::dmah::DmaHandle;
use crate::errno;
use crate::live_objects;
use crate::object::{FfiCell, FfiObject, Use, ffi_object};
use crate::pd::ProtectionDomain;
use crate::shared_context::MrKeys;

entry_points! {
    "IBVERBS_1.1" null ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int)
        -> *mut ibv_mr => register(pd, addr, length, addr.addr() as u64, access as c_uint);
    "IBVERBS_1.7" null ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64,
        access: c_int) -> *mut ibv_mr => register(pd, addr, length, iova, access as c_uint);
    "IBVERBS_1.12" null ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int,
        bits: c_int) -> *mut ibv_mr = reg_dmabuf_mr;
    null ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr = alloc_null_mr;
    null ibv_reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, offset: u64, length: usize, access: c_uint)
        -> *mut ibv_mr = reg_dm_mr;
    "IBVERBS_1.10" null ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr = import_mr;
    "IBVERBS_1.1" minus_four ibv_rereg_mr(mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void,
        length: usize, access: c_int) = rereg_mr;
    "IBVERBS_1.1" store ibv_dereg_mr(mr: *mut ibv_mr) on MemoryRegion(mr) unless is_inherited = dereg_mr;
    store ibv_advise_mr(pd: *mut ibv_pd, advice: c_uint, flags: u32, list: *mut ibv_sge, count: u32)
        on ProtectionDomain(pd) = advise_mr;
    null ibv_alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw = alloc_mw;
    store ibv_dealloc_mw(mw: *mut ibv_mw) on MemoryWindow(mw) unless is_inherited
        = MemoryWindow::destroy;
}

export! {
    "IBVERBS_1.1":
        ibv_fork_init = fork_init,
        ibv_dontfork_range = fork_range,
        ibv_dofork_range = fork_range;
    "IBVERBS_1.8": ibv_reg_mr_iova2 = reg_mr_iova2;
    "IBVERBS_1.10": ibv_unimport_mr = unimport_mr;
    "IBVERBS_1.13": ibv_is_fork_initialized = is_fork_initialized;
}

/// `IBV_ACCESS_OPTIONAL_RANGE`: access flags that a device may ignore.
const OPTIONAL: u32 = 0x3ff0_0000;

/// A memory region with its C struct.
#[repr(C)]
pub(crate) struct MemoryRegion {
    c: FfiCell<ibv_mr>,
    mr: Mutex<Option<Registered>>,
    /// The protection domain; `ibv_rereg_mr` can change it.
    pd: Mutex<Use<ProtectionDomain>>,
    /// The DMA handle that the region was registered with.
    pub dma_handle: OnceLock<Use<DmaHandle>>,
}

/// The registration behind a region.
enum Registered {
    /// Memory of the program, or of a DMA-buf with this mapping.
    Memory { region: RawMr, access: Access, mapping: Option<Mapping> },
    /// A null region, or a region of device memory with that memory; deregistered on drop. `()` for an
    /// imported region, which the exporting context has registered.
    Other { _held: Box<dyn Any> },
}

ffi_object! { MemoryRegion { c: ibv_mr } [context, handle] }

/// Converts access flags, dropping the optional ones that the device does not support.
fn access(bits: c_uint) -> Access {
    let optional = bits & OPTIONAL & Access::RELAXED_ORDERING.bits();
    Access::from_bits_retain(bits & !OPTIONAL | optional)
}

/// Largest region of which every page is faulted in. For writing, 128 MiB in pages of 4 KiB take 35 ms, and
/// 55 ms if transfers touch them first.
const MAX_POPULATED: usize = 256 << 20;

/// Faults in the range, as a device would pin it, and reports whether that is possible: it must be mapped and
/// readable, and if the device may write to it, its first and last page must be writable. Of a range larger
/// than [`MAX_POPULATED`], which may be sparse, only these two pages are faulted in.
fn can_be_pinned(addr: usize, len: usize, access: Access) -> bool {
    let page = page_size();
    let first = addr - addr % page;
    let Some(end) = addr.checked_add(len) else { return false };
    if !is_mapped(first, end - first) {
        return false;
    }
    if !supports_populate() {
        return true;
    }
    let (is_populated, writes) = (end - first <= MAX_POPULATED, access.allows(Access::LOCAL_WRITE));
    if is_populated && writes {
        prefer_huge_pages(first, end - first);
        if may_write(first, end - first) {
            return true;
        }
    }
    let last = end.saturating_sub(1);
    let ends = [first, last - last % page];
    let can_be_read = match is_populated {
        true => may_read(first, end - first),
        false => ends.iter().all(|at| may_read(*at, page)),
    };
    can_be_read && (!writes || ends.iter().all(|at| may_write(*at, page)))
}

/// Registers memory for `ibv_reg_mr` and its variants.
///
/// # Safety
/// The requirements of `ibv_reg_mr`: the program keeps the memory valid as long as the region, which peers
/// and the NIC access as DMA would; it does not deallocate the domain during the call.
pub(crate) unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    bits: c_uint,
) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: the program must not deallocate the domain during the call.
    let domain = unsafe { ProtectionDomain::live(pd) }?;
    let access = access(bits);
    let whole_process = addr.is_null() && length == usize::MAX && access.allows(Access::ON_DEMAND);
    let is_pinned = !access.allows(Access::ON_DEMAND) && length != 0;
    if is_pinned && !can_be_pinned(addr.addr(), length, access) {
        return Err(libc::EFAULT);
    }
    if access.allows(Access::ON_DEMAND) && !supports_populate() {
        return Err(libc::EOPNOTSUPP);
    }
    crate::unmapping::watch();
    // SAFETY: the contract of `ibv_reg_mr` is that of these functions: the program keeps the memory mapped
    // until it deregisters the region, and expects the NIC and peers to access it meanwhile. A region on
    // demand is checked at each access.
    let registered = unsafe {
        match whole_process {
            true => domain.pd.reg_mr_implicit(access),
            false => domain.pd.reg_mr_raw(addr.cast(), length, MrOptions::new(access).iova(iova)),
        }
    };
    let region = registered.map_err(|e| e.errno())?;
    let keys = MrKeys { lkey: region.lkey().0, rkey: region.rkey().0, length };
    Ok(new_mr(pd, addr, keys, None, Registered::Memory { region, access, mapping: None }))
}

/// Allocates the `ibv_mr` of a region with the given handle, or with a new one.
fn new_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    keys: MrKeys,
    handle: Option<u32>,
    mr: Registered,
) -> *mut ibv_mr {
    let MrKeys { lkey, rkey, length } = keys;
    // SAFETY: every caller passes a live domain, whose `context` was set when it was made and is open.
    let (context, owner, domain) =
        unsafe { ((*pd).context, Context::from_raw_ref((*pd).context), Use::new(pd)) };
    let handle = handle.unwrap_or_else(|| owner.mrs.add(keys));
    let c = FfiCell::new(ibv_mr { context, pd, addr, length, handle, lkey, rkey });
    let (mr, pd) = (Mutex::new(Some(mr)), Mutex::new(domain));
    MemoryRegion { c, mr, pd, dma_handle: OnceLock::new() }.into_raw()
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let _uncancelled = crate::cancel::disable();
    // `verbs.h` compiles a call of `ibv_reg_mr` to one of this function if the flags are not constant.
    let call = if iova == addr.addr() as u64 { Call::ibv_reg_mr } else { Call::ibv_reg_mr_iova };
    if let Some(errno) = call_faults::on_call(call) {
        return errno::null(errno);
    }
    // SAFETY: the caller meets the requirements of `ibv_reg_mr_iova2`, which are those of `ibv_reg_mr`.
    unsafe { register(pd, addr, length, iova, access) }.unwrap_or_else(errno::null)
}

unsafe fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    bits: c_int,
) -> Result<*mut ibv_mr, c_int> {
    /// Flags that the kernel accepts for a DMA-buf.
    const PERMITTED: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC)
        .union(Access::RELAXED_ORDERING);
    let access = access(bits as c_uint);
    let page = page_size() as u64;
    // SAFETY: the program must not deallocate the domain during the call, and its context is open.
    let (domain, context) = unsafe { (ProtectionDomain::live(pd)?, Context::from_raw_ref((*pd).context)) };
    if !context.device.has_dma_buf() {
        return Err(libc::EOPNOTSUPP);
    }
    if !PERMITTED.contains(access) || offset % page != iova % page {
        return Err(libc::EINVAL);
    }
    let mapping =
        Mapping::new(fd, offset, length, access.allows(Access::LOCAL_WRITE)).map_err(|e| e as c_int)?;
    let options = MrOptions::new(access).iova(iova);
    // SAFETY: the range is mapped for this access, and stays so until `dereg_mr` has deregistered the region.
    let region = unsafe { domain.pd.reg_mr_raw(mapping.start(), length, options) }.map_err(|e| e.errno())?;
    let keys = MrKeys { lkey: region.lkey().0, rkey: region.rkey().0, length };
    // As in libibverbs, the address of the region is its offset in the DMA-buf.
    let addr = std::ptr::without_provenance_mut(offset as usize);
    let memory = Registered::Memory { region, access, mapping: Some(mapping) };
    Ok(new_mr(pd, addr, keys, None, memory))
}

unsafe fn alloc_null_mr(pd: *mut ibv_pd) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: the program must not deallocate the domain during the call.
    let mr = unsafe { ProtectionDomain::live(pd) }?.pd.alloc_null_mr().map_err(|e| e.errno())?;
    // Only the lkey is valid (ibv_alloc_null_mr(3)). As with mlx5, the rkey is 0, which names no
    // region here either.
    let keys = MrKeys { lkey: mr.lkey().0, rkey: 0, length: usize::MAX };
    Ok(new_mr(pd, std::ptr::null_mut(), keys, None, Registered::Other { _held: Box::new(mr) }))
}

unsafe fn reg_dm_mr(
    pd: *mut ibv_pd,
    c: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: the program must not free the two objects during the call.
    let (domain, memory) = unsafe { (ProtectionDomain::live(pd)?, DeviceMemory::live(c)?) };
    let range = usize::try_from(offset).ok().and_then(|first| Some(first..first.checked_add(length)?));
    let range = range.ok_or(libc::EINVAL)?;
    let region = domain.pd.reg_dm_mr(&memory.dm, range, self::access(access)).map_err(|e| e.errno())?;
    let keys = MrKeys { lkey: region.lkey().0, rkey: region.rkey().0, length: region.len() };
    // SAFETY: the memory is live as above.
    let held: (DmMr, Use<DeviceMemory>) = (region, unsafe { Use::new(c) });
    Ok(new_mr(pd, std::ptr::null_mut(), keys, None, Registered::Other { _held: Box::new(held) }))
}

/// Changes a region (`ibv_rereg_mr`). Errors are reported as `IBV_REREG_MR_ERR_CMD`, as if the kernel had
/// rejected the command. With libibverbs, the region must not be used after that; here, it is unchanged.
unsafe fn rereg_mr(
    c: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    bits: c_int,
) -> Result<c_int, c_int> {
    const TRANSLATION: c_int = 1;
    const PD: c_int = 2;
    const ACCESS: c_int = 4;
    /// `IBV_REREG_MR_ERR_INPUT`: libibverbs itself rejects the arguments.
    const ERR_INPUT: c_int = -1;
    let has_no_range = flags & TRANSLATION != 0 && (addr.is_null() || length == 0);
    if flags & !(TRANSLATION | PD | ACCESS) != 0 || has_no_range || bits != 0 && flags & ACCESS == 0 {
        errno::set(libc::EINVAL);
        return Ok(ERR_INPUT);
    }
    if flags == 0 || !MemoryRegion::is_live(c) || flags & PD != 0 && !ProtectionDomain::is_live(pd) {
        return Err(libc::EINVAL);
    }
    // SAFETY: `is_live` found a live region at `c`, which the program must not deregister during the call.
    let region = unsafe { MemoryRegion::from_raw_ref(c) };
    let mut mr = region.mr.lock();
    let Some(Registered::Memory { region: mr, access: old_access, mapping: None }) = &mut *mr else {
        return Err(libc::EINVAL);
    };
    let new_access = if flags & ACCESS != 0 { access(bits as c_uint) } else { *old_access };
    let (to, len) =
        if flags & TRANSLATION != 0 { (addr.addr(), length) } else { (mr.addr() as usize, mr.len()) };
    if len == 0 {
        return Err(libc::EINVAL);
    }
    let is_pinned = !new_access.allows(Access::ON_DEMAND);
    let was_pinned = flags & TRANSLATION == 0 && !old_access.allows(Access::ON_DEMAND);
    if is_pinned && !was_pinned && !can_be_pinned(to, len, new_access) {
        return Err(libc::EFAULT);
    }
    // SAFETY: with this flag, `is_live` found a live domain at `pd`.
    let domain = (flags & PD != 0).then(|| unsafe { ProtectionDomain::from_raw_ref(pd) });
    let memory = (flags & TRANSLATION != 0).then_some((addr.cast(), length));
    let access = (flags & ACCESS != 0).then_some(new_access);
    // SAFETY: the contract of `ibv_rereg_mr`: the program keeps the new memory mapped until it deregisters
    // the region, and expects the NIC and peers to access it meanwhile.
    unsafe { mr.rereg_raw(domain.map(|d| &d.pd), memory, access) }.map_err(|e| e.errno())?;
    *old_access = new_access;
    // SAFETY: `c` is live; `ibv_rereg_mr` requires that the program does not use the region during the call,
    // and the lock held above excludes other calls of this function.
    let c_mr = unsafe { &mut *c };
    (c_mr.lkey, c_mr.rkey) = (mr.lkey().0, mr.rkey().0);
    if domain.is_some() {
        // SAFETY: `is_live` found a live domain at `pd`.
        *region.pd.lock() = unsafe { Use::new(pd) };
        c_mr.pd = pd;
    }
    if memory.is_some() {
        (c_mr.addr, c_mr.length) = (addr, length);
    }
    let keys = MrKeys { lkey: c_mr.lkey, rkey: c_mr.rkey, length: c_mr.length };
    // SAFETY: `c` is live, and the program closes a context only after it has destroyed the objects in it.
    unsafe { Context::from_raw_ref(c_mr.context) }.mrs.set(c_mr.handle, keys);
    Ok(0)
}

unsafe fn dereg_mr(c: *mut ibv_mr) -> Result<(), c_int> {
    // SAFETY: `c` is live (checked by the entry point), and the program does not use it in
    // another call meanwhile.
    let region = unsafe { MemoryRegion::from_raw_ref(c) };
    let mut mr = region.mr.lock();
    if let Some(Registered::Memory { region, access, mapping }) = mr.take()
        && let Err((region, e)) = region.dereg()
    {
        *mr = Some(Registered::Memory { region, access, mapping });
        return Err(e.errno());
    }
    drop(mr);
    // SAFETY: the context is open. The program gives up its pointer with this call; the lock guard is
    // dropped, and `region` is not used after `from_raw`.
    unsafe {
        Context::from_raw_ref((*c).context).mrs.remove((*c).handle);
        drop(MemoryRegion::from_raw(c));
    }
    Ok(())
}

/// A memory window with its C struct.
#[repr(C)]
pub(crate) struct MemoryWindow {
    c: FfiCell<ibv_mw>,
    pub held: ManuallyDrop<(Mw, Use<ProtectionDomain>)>,
}

ffi_object! { MemoryWindow { c: ibv_mw } [context, handle] }

impl MemoryWindow {
    /// Allocates the `ibv_mw` of the window, reusing the memory of a destroyed window if there is any.
    fn into_raw_in_kept_memory(self) -> *mut ibv_mw {
        let memory = live_objects::take_kept_memory().map_or_else(Box::new_uninit, |address| {
            // SAFETY: `destroy` left the memory behind: a heap allocation of a `MemoryWindow` whose content
            // was dropped. `take_kept_memory` removed it from the registry, so this is the only reference to
            // it.
            unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut(address)) }
        });
        self.into_raw_in(memory)
    }

    /// Drops the Rust state of a window (`ibv_dealloc_mw`). The C struct stays allocated for reuse, because
    /// the inline `ibv_dealloc_mw` reads the context from it even if the window is already destroyed.
    ///
    /// # Safety
    /// `live_objects` has an entry for the window, and no other thread uses it any more.
    unsafe fn destroy(c: *mut ibv_mw) -> Result<(), c_int> {
        let window: *mut MemoryWindow = c.cast();
        live_objects::remove(c.addr());
        // SAFETY: the window is live, as `live_objects` has it, and `remove` ends that: `held` is dropped
        // exactly once.
        unsafe { ManuallyDrop::drop(&mut (*window).held) };
        live_objects::keep_memory(window.expose_provenance());
        Ok(())
    }
}

unsafe fn alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> Result<*mut ibv_mw, c_int> {
    let window = match kind {
        1 => WindowKind::Type1,
        2 => WindowKind::Type2B,
        _ => return Err(libc::EINVAL),
    };
    // SAFETY: the program must not deallocate the domain during the call.
    let (domain, context, pd_use) = unsafe { (ProtectionDomain::live(pd)?, (*pd).context, Use::new(pd)) };
    let mw = domain.pd.alloc_mw(window).map_err(|e| e.errno())?;
    let rkey = mw.rkey().0;
    let c = FfiCell::new(ibv_mw { context, pd, rkey, handle: rkey >> 8, r#type: kind });
    Ok(MemoryWindow { c, held: ManuallyDrop::new((mw, pd_use)) }.into_raw_in_kept_memory())
}

/// Always succeeds: no memory is pinned, so a forked child gets a copy of registered memory, as of any other
/// memory.
unsafe extern "C" fn fork_init() -> c_int {
    0
}

unsafe extern "C" fn fork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

unsafe extern "C" fn is_fork_initialized() -> c_uint {
    /// `IBV_FORK_UNNEEDED`.
    const UNNEEDED: c_uint = 2;
    UNNEEDED
}

unsafe fn import_mr(pd: *mut ibv_pd, handle: u32) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: the program must not deallocate the domain during the call, and its context is open.
    let (_, context) = unsafe { (ProtectionDomain::live(pd)?, Context::from_raw_ref((*pd).context)) };
    let keys = context.mrs.get(handle).ok_or(libc::ENOENT)?;
    // The address is unknown: only the exporter has it.
    Ok(new_mr(pd, std::ptr::null_mut(), keys, Some(handle), Registered::Other { _held: Box::new(()) }))
}

unsafe extern "C" fn unimport_mr(c: *mut ibv_mr) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_unimport_mr` requires a live, imported region, which the program gives up.
    drop(unsafe { MemoryRegion::from_raw(c) });
}

/// Faults in pages of on-demand regions. The pages are present when the call returns, with or without
/// `IBV_ADVISE_MR_FLAG_FLUSH`.
unsafe fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> Result<(), c_int> {
    const PREFETCH: c_uint = 0;
    const PREFETCH_WRITE: c_uint = 1;
    const PREFETCH_NO_FAULT: c_uint = 2;
    const FLUSH: u32 = 1;
    let for_writing = match advice {
        PREFETCH => false,
        PREFETCH_WRITE => true,
        // Mapped pages need no preparation: the NIC has no page table of its own.
        PREFETCH_NO_FAULT => return Ok(()),
        _ => return Err(libc::EOPNOTSUPP),
    };
    if flags & !FLUSH != 0 || count == 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the entry point found a live domain at `pd`. `ibv_advise_mr` requires a list of
    // `count` readable elements, which are used during the call only.
    let (sges, domain) = unsafe {
        let count = c_int::try_from(count).map_err(|_| libc::EINVAL)?;
        (elements(list, count)?, ProtectionDomain::from_raw_ref(pd))
    };
    domain.pd.prefetch(&sges, for_writing).map_err(|e| e.errno())
}
