//! Buffers that the library allocates (`ibv_alloc_buf`), and registration with all attributes in one struct
//! (`ibv_reg_mr_ex`).

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_uint, c_void};

use urxe::memory::page_size;

use crate::abi::{ibv_buf, ibv_dm, ibv_mr, ibv_mr_init_attr, ibv_pd};
use crate::dmah::DmaHandle;
use crate::errno::{minus_one, non_null};
use crate::mr::{self, MemoryRegion};
use crate::object::{FfiCell, FfiObject, Use, ffi_object};
use crate::pd::ProtectionDomain;

entry_points! {
    "IBVERBS_1.15" null ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr
        = reg_mr_ex;
    "IBVERBS_1.17" null ibv_alloc_buf(pd: *mut ibv_pd, size: usize, out: *mut *mut ibv_buf) -> *mut c_void
        = alloc_buf;
    "IBVERBS_1.17" null ibv_reg_buf_mr(pd: *mut ibv_pd, buf: *mut ibv_buf, addr: *mut c_void, length: usize,
        access: c_int) -> *mut ibv_mr => register(pd, buf, addr, length, None, access);
}

export! {
    "IBVERBS_1.16": ibv_dm_export_dmabuf_fd = dm_export_dmabuf_fd;
    "IBVERBS_1.17": ibv_free_buf = free_buf;
    "IBVERBS_1.18": ibv_export_buf_dmabuf_fd = export_buf_dmabuf_fd;
}

/// A buffer with its handle. It does not come from a parent domain's allocation functions.
#[repr(C)]
struct Buffer {
    c: FfiCell<ibv_buf>,
    /// Address of the `ibv_pd` for which the buffer was allocated.
    pd: usize,
    memory: *mut u8,
    layout: Layout,
}

ffi_object! { Buffer { c: ibv_buf } [] }

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `alloc_buf` allocated the memory with this layout, and nothing else frees it.
        unsafe { dealloc(self.memory, self.layout) };
    }
}

/// Registers a part of a buffer (`ibv_reg_buf_mr`). `iova` is the address that requests use, by default
/// `addr`.
///
/// # Safety
/// `buf` and `pd` may be dangling if they are not live. The buffer is not freed before the region is
/// deregistered.
unsafe fn register(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    iova: Option<u64>,
    access: c_int,
) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: the program must not free the buffer during the call.
    let buffer = unsafe { Buffer::live(buf) }?;
    let offset = addr.addr().checked_sub(buffer.memory.addr());
    let end = offset.and_then(|offset| offset.checked_add(length));
    if buffer.pd != pd.addr() || end.is_none_or(|end| end > buffer.layout.size()) {
        return Err(libc::EINVAL);
    }
    // SAFETY: the range lies in the buffer, which stays allocated until after the deregistration.
    unsafe { mr::register(pd, addr, length, iova.unwrap_or(addr.addr() as u64), access as c_uint) }
}

unsafe fn alloc_buf(pd: *mut ibv_pd, size: usize, out: *mut *mut ibv_buf) -> Result<*mut c_void, c_int> {
    if !ProtectionDomain::is_live(pd) || size == 0 || out.is_null() {
        return Err(libc::EINVAL);
    }
    let layout = Layout::from_size_align(size, page_size()).map_err(|_| libc::ENOMEM)?;
    // SAFETY: the layout's size is not 0.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(libc::ENOMEM);
    }
    let c = FfiCell::new(ibv_buf { addr: memory.cast() });
    let buf = Buffer { c, pd: pd.addr(), memory, layout }.into_raw();
    // SAFETY: `ibv_alloc_buf` requires `out` to point to a writable pointer; null was excluded.
    unsafe { *out = buf };
    Ok(memory.cast())
}

unsafe extern "C" fn free_buf(buf: *mut ibv_buf) {
    let _uncancelled = crate::cancel::disable();
    if Buffer::is_live(buf) {
        // SAFETY: `is_live` found a live buffer, whose pointer the program gives up with this call.
        drop(unsafe { Buffer::from_raw(buf) });
    }
}

/// Fails with `ENODATA`, because the buffers of `ibv_alloc_buf` are ordinary memory.
unsafe extern "C" fn export_buf_dmabuf_fd(_buf: *mut ibv_buf) -> c_int {
    minus_one(libc::ENODATA)
}

/// Fails with `EOPNOTSUPP`, because this NIC's device memory is ordinary memory, not a DMA-buf.
unsafe extern "C" fn dm_export_dmabuf_fd(_dm: *mut ibv_dm) -> c_int {
    minus_one(libc::EOPNOTSUPP)
}

unsafe fn reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> Result<*mut ibv_mr, c_int> {
    /// Bits of `comp_mask`.
    const IOVA: u64 = 1;
    const ADDR: u64 = 2;
    const FD: u64 = 4;
    const FD_OFFSET: u64 = 8;
    const DMAH: u64 = 16;
    const BUF: u64 = 32;
    // SAFETY: `ibv_reg_mr_ex` requires `attr` to point to a readable struct.
    let attr = unsafe { &*attr };
    let has = |bit| attr.comp_mask & bit != 0;
    // A region is in memory or in a DMA-buf, and the memory may be a part of a buffer.
    let is_contradictory = has(ADDR) == has(FD) || has(FD_OFFSET) && !has(FD) || has(BUF) && !has(ADDR);
    if attr.comp_mask & !(IOVA | ADDR | FD | FD_OFFSET | DMAH | BUF) != 0 || is_contradictory {
        return Err(libc::EINVAL);
    }
    if has(DMAH) && !DmaHandle::is_live(attr.dmah) {
        return Err(libc::EINVAL);
    }
    let iova = has(IOVA).then_some(attr.iova);
    // SAFETY: the requirements of the three functions are those of `ibv_reg_mr_ex`: the program keeps the
    // memory, the buffer or the DMA-buf until it has deregistered the region.
    let region = unsafe {
        if has(FD) {
            let offset = if has(FD_OFFSET) { attr.fd_offset } else { 0 };
            let iova = iova.unwrap_or(offset);
            non_null(mr::ibv_reg_dmabuf_mr(pd, offset, attr.length, iova, attr.fd, attr.access))?
        } else if has(BUF) {
            register(pd, attr.buf, attr.addr, attr.length, iova, attr.access)?
        } else {
            let iova = iova.unwrap_or(attr.addr.addr() as u64);
            mr::register(pd, attr.addr, attr.length, iova, attr.access as c_uint)?
        }
    };
    if has(DMAH) {
        // SAFETY: `is_live` found a live handle, which the program must not deallocate during the call. The
        // region was made above, and the program has no pointer to it yet.
        unsafe { MemoryRegion::from_raw_ref(region).dma_handle.get_or_init(|| Use::new(attr.dmah)) };
    }
    Ok(region)
}
