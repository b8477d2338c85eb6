//! Memory regions and windows.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use urxe::verbs::{Access, Mw, NullMr, RawMr, WindowKind};

use crate::abi::{ibv_context, ibv_mr, ibv_mw, ibv_pd, ibv_sge};
use crate::domain::ProtectionDomain;
use crate::object::{Object, Shown};
use crate::{errno, post};

export! {
    "IBVERBS_1.1":
        ibv_reg_mr = reg_mr,
        ibv_rereg_mr = rereg_mr,
        ibv_dereg_mr = dereg_mr,
        ibv_fork_init = fork_init,
        ibv_dontfork_range = fork_range,
        ibv_dofork_range = fork_range;
    "IBVERBS_1.7": ibv_reg_mr_iova = reg_mr_iova;
    "IBVERBS_1.8": ibv_reg_mr_iova2 = reg_mr_iova2;
    "IBVERBS_1.10":
        ibv_import_mr = import_mr,
        ibv_unimport_mr = unimport_mr;
    "IBVERBS_1.12": ibv_reg_dmabuf_mr = reg_dmabuf_mr;
    "IBVERBS_1.13":
        ibv_is_fork_initialized = is_fork_initialized,
        ibv_import_dm = import_dm,
        ibv_unimport_dm = unimport_dm;
}

/// `IBV_ACCESS_OPTIONAL_RANGE`: what a device may leave out.
const OPTIONAL: u32 = 0x3ff0_0000;

#[repr(C)]
pub struct Region {
    c: Shown<ibv_mr>,
    mr: Mutex<Option<Registered>>,
    /// The `ibv_pd` whose user it is.
    pd: AtomicUsize,
}

enum Registered {
    Memory(RawMr, Access),
    /// Dropped with it.
    Null {
        _region: NullMr,
    },
}

// SAFETY: it is laid out so.
unsafe impl Object for Region {
    type C = ibv_mr;
}

impl Region {
    pub fn lkey(&self) -> u32 {
        // SAFETY: a plain word.
        unsafe { (*self.c.get()).lkey }
    }
}

/// The permissions that the device has.
fn access(bits: c_uint) -> Access {
    let optional = bits & OPTIONAL & Access::RELAXED_ORDERING.0;
    Access(bits & !OPTIONAL | optional)
}

/// Whether a device could pin the range: all of it is mapped, and writable at both ends if the device is to write it.
fn can_be_pinned(addr: usize, len: usize, access: Access) -> bool {
    const PAGES: usize = 4096;
    // SAFETY: the call has no requirement.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let mut state = [0_u8; PAGES];
    let first = addr - addr % page;
    let Some(end) = addr.checked_add(len) else { return false };
    let is_mapped = (first..end).step_by(page * PAGES).all(|at| {
        let len = (end - at).min(page * PAGES);
        // SAFETY: the kernel writes a byte for each page of the range, and reads none of them.
        unsafe { libc::mincore(std::ptr::without_provenance_mut(at), len, state.as_mut_ptr()) == 0 }
    });
    let last = end.saturating_sub(1);
    let ends = [first, last - last % page];
    is_mapped && (!access.allows(Access::LOCAL_WRITE) || ends.iter().all(|at| is_writable(*at, page)))
}

/// Whether a page may be written, as far as the kernel can tell.
fn is_writable(at: usize, page: usize) -> bool {
    static CAN_TELL: OnceLock<bool> = OnceLock::new();
    // SAFETY: brings in the page, as writing would, and changes no byte.
    let may_write = |at| unsafe {
        libc::madvise(std::ptr::without_provenance_mut(at), page, libc::MADV_POPULATE_WRITE) == 0
    };
    // Linux before 5.14 does not know the question: it says no even of the stack.
    let can_tell = || {
        let here = 0_u8;
        let here = (&raw const here).addr();
        may_write(here - here % page)
    };
    may_write(at) || !*CAN_TELL.get_or_init(can_tell)
}

unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    bits: c_uint,
) -> *mut ibv_mr {
    // SAFETY: a domain that was given out.
    let domain = unsafe { ProtectionDomain::of(pd) };
    let access = access(bits);
    // With on-demand paging nothing need be mapped yet.
    let on_demand = access.allows(Access::ON_DEMAND);
    let whole_process = on_demand && addr.is_null() && length == usize::MAX;
    if !on_demand && length != 0 && !can_be_pinned(addr.addr(), length, access) {
        return errno::null(libc::EFAULT);
    }
    // SAFETY: the program keeps the memory as long as the region, which is what registering means.
    let registered = unsafe {
        match whole_process {
            true => domain.pd.reg_mr_implicit(access),
            false => domain.pd.reg_mr_raw_iova(addr.cast(), length, iova, access),
        }
    };
    match registered {
        Ok(mr) => {
            let (lkey, rkey) = (mr.lkey().0, mr.rkey().0);
            let c = ibv_mr { context: domain.context(), pd, addr, length, handle: lkey >> 8, lkey, rkey };
            give(c, Registered::Memory(mr, access))
        }
        Err(e) => errno::null(e.errno()),
    }
}

fn give(c: ibv_mr, mr: Registered) -> *mut ibv_mr {
    // SAFETY: a domain that was given out.
    unsafe { ProtectionDomain::of(c.pd) }.users.add();
    let pd = AtomicUsize::new(c.pd.expose_provenance());
    Region { c: Shown::new(c), mr: Mutex::new(Some(mr)), pd }.give()
}

unsafe extern "C" fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: as the caller vouches.
    unsafe { register(pd, addr, length, addr.addr() as u64, access as c_uint) }
}

unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the caller vouches.
    unsafe { register(pd, addr, length, iova, access as c_uint) }
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: as the caller vouches.
    unsafe { register(pd, addr, length, iova, access) }
}

unsafe extern "C" fn reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    errno::null(libc::EOPNOTSUPP)
}

pub unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: a domain that was given out.
    let domain = unsafe { ProtectionDomain::of(pd) };
    match domain.pd.alloc_null_mr() {
        Ok(mr) => {
            let (context, lkey) = (domain.context(), mr.lkey().0);
            let addr = std::ptr::null_mut();
            let c = ibv_mr { context, pd, addr, length: usize::MAX, handle: lkey >> 8, lkey, rkey: lkey };
            give(c, Registered::Null { _region: mr })
        }
        Err(e) => errno::null(e.errno()),
    }
}

/// Brings pages of on-demand regions in; done when it returns, whether or not that was asked for.
pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    sges: *mut ibv_sge,
    count: u32,
) -> c_int {
    const PREFETCH: c_uint = 0;
    const PREFETCH_WRITE: c_uint = 1;
    const PREFETCH_NO_FAULT: c_uint = 2;
    const FLUSH: u32 = 1;
    if flags & !FLUSH != 0 || count == 0 {
        return libc::EINVAL;
    }
    // SAFETY: a domain that was given out, and the caller's array.
    let (domain, elements) =
        unsafe { (ProtectionDomain::of(pd), post::elements(sges, count.try_into().unwrap_or(c_int::MAX))) };
    let elements = match elements {
        Ok(elements) => elements,
        Err(e) => return e,
    };
    let done = match advice {
        PREFETCH => domain.pd.prefetch(elements, false),
        PREFETCH_WRITE => domain.pd.prefetch(elements, true),
        PREFETCH_NO_FAULT => domain.pd.check_elements(elements, false),
        _ => return libc::EOPNOTSUPP,
    };
    errno::number(done, |e| e.errno())
}

unsafe extern "C" fn rereg_mr(
    c: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    bits: c_int,
) -> c_int {
    const TRANSLATION: c_int = 1;
    const PD: c_int = 2;
    const ACCESS: c_int = 4;
    /// `IBV_REREG_MR_ERR_INPUT`: the region is as it was.
    const REFUSED: c_int = -1;
    let refuse = |e| {
        errno::set(e);
        REFUSED
    };
    if flags & !(TRANSLATION | PD | ACCESS) != 0 {
        return refuse(libc::EINVAL);
    }
    // SAFETY: a region that was given out.
    let region = unsafe { Region::of(c) };
    let mut mr = region.mr.lock();
    let Some(Registered::Memory(mr, of_before)) = &mut *mr else { return refuse(libc::EINVAL) };
    let asked = if flags & ACCESS != 0 { access(bits as c_uint) } else { *of_before };
    if flags & TRANSLATION != 0 && length == 0 {
        return refuse(libc::EINVAL);
    }
    let on_demand = asked.allows(Access::ON_DEMAND);
    if flags & TRANSLATION != 0 && !on_demand && !can_be_pinned(addr.addr(), length, asked) {
        return refuse(libc::EFAULT);
    }
    // SAFETY: a domain that was given out, if the flags say so.
    let domain = (flags & PD != 0).then(|| unsafe { ProtectionDomain::of(pd) });
    let memory = (flags & TRANSLATION != 0).then_some((addr.cast(), length));
    let access = (flags & ACCESS != 0).then_some(asked);
    // SAFETY: the program keeps the memory as long as the region.
    if let Err(e) = unsafe { mr.rereg_raw(domain.map(|d| &d.pd), memory, access) } {
        return refuse(e.errno());
    }
    *of_before = asked;
    // SAFETY: the region's struct, which the program does not use in the meantime.
    let shown = unsafe { &mut *c };
    (shown.lkey, shown.rkey) = (mr.lkey().0, mr.rkey().0);
    if let Some(domain) = domain {
        domain.users.add();
        let old = region.pd.swap(pd.expose_provenance(), Ordering::AcqRel);
        // SAFETY: the domain that it was of, which could not go while it was.
        unsafe { ProtectionDomain::of(std::ptr::with_exposed_provenance_mut(old)) }.users.remove();
        shown.pd = pd;
    }
    if memory.is_some() {
        (shown.addr, shown.length) = (addr, length);
    }
    0
}

unsafe extern "C" fn dereg_mr(c: *mut ibv_mr) -> c_int {
    // SAFETY: a region that was given out.
    let region = unsafe { Region::of(c) };
    let mut mr = region.mr.lock();
    if let Some(Registered::Memory(memory, access)) = mr.take()
        && let Err((memory, e)) = memory.dereg()
    {
        *mr = Some(Registered::Memory(memory, access));
        return e.errno();
    }
    drop(mr);
    // SAFETY: its domain could not go while it was there; and the program uses the region no more.
    unsafe {
        ProtectionDomain::of(std::ptr::with_exposed_provenance_mut(region.pd.load(Ordering::Acquire)))
            .users
            .remove();
        drop(Region::take(c));
    }
    0
}

#[repr(C)]
pub struct Window {
    c: Shown<ibv_mw>,
    pub mw: Mw,
}

// SAFETY: it is laid out so.
unsafe impl Object for Window {
    type C = ibv_mw;
}

impl Window {
    pub fn set_rkey(&self, rkey: u32) {
        // SAFETY: a plain word, which changes with each bind.
        unsafe { (*self.c.get()).rkey = rkey };
    }
}

pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    let window = match kind {
        1 => WindowKind::Type1,
        2 => WindowKind::Type2B,
        _ => return errno::null(libc::EINVAL),
    };
    // SAFETY: a domain that was given out.
    let domain = unsafe { ProtectionDomain::of(pd) };
    match domain.pd.alloc_mw(window) {
        Ok(mw) => {
            domain.users.add();
            let (context, rkey) = (domain.context(), mw.rkey().0);
            let c = ibv_mw { context, pd, rkey, handle: rkey >> 8, r#type: kind };
            Window { c: Shown::new(c), mw }.give()
        }
        Err(e) => errno::null(e.errno()),
    }
}

pub unsafe extern "C" fn dealloc_mw(c: *mut ibv_mw) -> c_int {
    // SAFETY: a window that was given out, and its domain, which could not go while it was there.
    unsafe {
        let pd = (*c).pd;
        drop(Window::take(c));
        ProtectionDomain::of(pd).users.remove();
    }
    0
}

/// Nothing is pinned here, so a child has copies as of all its memory.
unsafe extern "C" fn fork_init() -> c_int {
    0
}

unsafe extern "C" fn fork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

unsafe extern "C" fn is_fork_initialized() -> c_uint {
    /// `IBV_FORK_UNNEEDED`
    const UNNEEDED: c_uint = 2;
    UNNEEDED
}

unsafe extern "C" fn import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    errno::null(libc::EOPNOTSUPP)
}

unsafe extern "C" fn unimport_mr(_mr: *mut ibv_mr) {}

unsafe extern "C" fn import_dm(_context: *mut ibv_context, _handle: u32) -> *mut crate::abi::ibv_dm {
    errno::null(libc::EOPNOTSUPP)
}

unsafe extern "C" fn unimport_dm(_dm: *mut crate::abi::ibv_dm) {}
