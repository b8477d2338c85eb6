//! Thread domains (`ibv_td`).

use std::ffi::c_int;

use crate::abi::{ibv_context, ibv_td, ibv_td_init_attr};
use crate::object::{FfiCell, FfiObject, Users, destroy_unused, ffi_object};

entry_points! {
    null ibv_alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td = alloc_td;
    store ibv_dealloc_td(td: *mut ibv_td) on ThreadDomain(td) unless is_inherited
        = destroy_unused::<ThreadDomain>;
}

/// A thread domain: the program's promise that only one thread at a time uses the objects created in it. This
/// library does not rely on the promise and always locks.
#[repr(C)]
pub(crate) struct ThreadDomain {
    c: FfiCell<ibv_td>,
    users: Users,
}

ffi_object! { ThreadDomain { c: ibv_td, users } [context] }

unsafe fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> Result<*mut ibv_td, c_int> {
    // SAFETY: `ibv_alloc_td` requires `attr` to point to a readable struct.
    if unsafe { (*attr).comp_mask } != 0 {
        return Err(libc::EINVAL);
    }
    Ok(ThreadDomain { c: FfiCell::new(ibv_td { context }), users: Users::default() }.into_raw())
}
