//! Thread domains (`ibv_td`).

use std::ffi::c_int;

use crate::abi::{ibv_context, ibv_td, ibv_td_init_attr};
use crate::context::is_inherited;
use crate::errno::null;
use crate::object::{FfiCell, FfiObject, Users, ffi_object};

/// A thread domain: the program's promise that only one thread at a time uses the objects created in it. This
/// library does not rely on the promise and always locks.
#[repr(C)]
pub(crate) struct ThreadDomain {
    c: FfiCell<ibv_td>,
    pub users: Users,
}

ffi_object! { ThreadDomain { c: ibv_td } [context] }

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    let _uncancelled = crate::cancel::disable();
    inject_fault!(ibv_alloc_td, null);
    // SAFETY: `ibv_alloc_td` requires `attr` to point to a readable struct.
    if unsafe { (*attr).comp_mask } != 0 {
        return null(libc::EINVAL);
    }
    ThreadDomain { c: FfiCell::new(ibv_td { context }), users: Users::default() }.into_raw()
}

pub(crate) unsafe extern "C" fn dealloc_td(c: *mut ibv_td) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `c` is live (checked by the `entry_points` wrapper), and its context is open, or a copy of the
    // parent's after fork.
    if unsafe { is_inherited((*c).context) } {
        return 0;
    }
    // SAFETY: `c` is live as above. Without users, no parent domain refers to it, and the program gives up
    // its pointer.
    unsafe {
        if ThreadDomain::from_raw_ref(c).users.any() {
            return libc::EBUSY;
        }
        drop(ThreadDomain::from_raw(c));
    }
    0
}
