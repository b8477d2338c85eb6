//! DMA handles (`ibv_dmah`): hints about the processor and the kind of memory that DMA targets.

use std::ffi::c_int;
use std::sync::Arc;

use crate::abi::{ibv_context, ibv_dmah, ibv_dmah_init_attr};
use crate::context::is_inherited;
use crate::errno::null;
use crate::object::{FfiCell, FfiObject, ffi_object};

export! {
    "IBVERBS_1.15":
        ibv_alloc_dmah = alloc_dmah;
}

/// A DMA handle with its C struct. The hints are checked but have no effect, because this NIC copies with the
/// processor and sends no PCIe transactions.
#[repr(C)]
pub(crate) struct DmaHandle {
    c: FfiCell<ibv_dmah>,
    /// Cloned by each memory region registered with the handle.
    pub users: Arc<()>,
}

ffi_object! { DmaHandle { c: ibv_dmah } [context] }

unsafe extern "C" fn alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah {
    let _uncancelled = crate::cancel::disable();
    inject_fault!(ibv_alloc_dmah, null);
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
        return null(libc::EINVAL);
    }
    DmaHandle { c: FfiCell::new(ibv_dmah { context }), users: Arc::default() }.into_raw()
}

pub(crate) unsafe extern "C" fn dealloc_dmah(c: *mut ibv_dmah) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `c` is live (checked by the `entry_points` wrapper), and its context is open, or a copy of the
    // parent's after fork.
    if unsafe { is_inherited((*c).context) } {
        return 0;
    }
    // SAFETY: `c` is live as above. Without users, no region refers to it, and the program gives up its
    // pointer.
    unsafe {
        if Arc::strong_count(&DmaHandle::from_raw_ref(c).users) > 1 {
            return libc::EBUSY;
        }
        drop(DmaHandle::from_raw(c));
    }
    0
}
