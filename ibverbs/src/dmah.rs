//! DMA handles (`ibv_dmah`): hints about the processor and the kind of memory that DMA targets.

use std::ffi::c_int;

use crate::abi::{ibv_context, ibv_dmah, ibv_dmah_init_attr};
use crate::object::{FfiCell, FfiObject, Users, destroy_unused, ffi_object};

entry_points! {
    "IBVERBS_1.15" null ibv_alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr)
        -> *mut ibv_dmah = alloc_dmah;
    "IBVERBS_1.15" store ibv_dealloc_dmah(dmah: *mut ibv_dmah) on DmaHandle(dmah) unless is_inherited
        = destroy_unused::<DmaHandle>;
}

/// A DMA handle with its C struct. The hints are checked but have no effect, because this NIC copies with the
/// processor and sends no PCIe transactions.
#[repr(C)]
pub(crate) struct DmaHandle {
    c: FfiCell<ibv_dmah>,
    /// Number of memory regions registered with the handle.
    users: Users,
}

ffi_object! { DmaHandle { c: ibv_dmah, users } [context] }

unsafe fn alloc_dmah(
    context: *mut ibv_context,
    attr: *mut ibv_dmah_init_attr,
) -> Result<*mut ibv_dmah, c_int> {
    /// Bits of `comp_mask`.
    const CPU_ID: u32 = 1;
    const PROCESSING_HINT: u32 = 2;
    const MEMORY_TYPE: u32 = 4;
    /// A processing hint has two bits in a PCIe transaction.
    const MAX_HINT: u8 = 3;
    /// `IBV_TPH_MEM_TYPE_PM`.
    const MAX_MEMORY_TYPE: u8 = 1;
    // SAFETY: `ibv_alloc_dmah` requires `attr` to point to a readable struct.
    let attr = unsafe { &*attr };
    let mask = attr.comp_mask;
    if mask & !(CPU_ID | PROCESSING_HINT | MEMORY_TYPE) != 0
        || mask & PROCESSING_HINT != 0 && attr.ph > MAX_HINT
        || mask & MEMORY_TYPE != 0 && attr.tph_mem_type > MAX_MEMORY_TYPE
    {
        return Err(libc::EINVAL);
    }
    Ok(DmaHandle { c: FfiCell::new(ibv_dmah { context }), users: Users::default() }.into_raw())
}
