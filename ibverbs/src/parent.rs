//! Thread domains, and parent domains, which combine a protection domain with a thread domain.

use std::ffi::c_int;

use crate::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use crate::context::is_inherited;
use crate::errno::null;
use crate::object::{FfiCell, FfiObject, Users};
use crate::pd::{ParentParts, ProtectionDomain};

/// A thread domain: the program's promise that only one thread at a time uses the objects made in it. This
/// library does not rely on it and locks in any case.
#[repr(C)]
pub struct ThreadDomain {
    c: FfiCell<ibv_td>,
    pub users: Users,
}

// SAFETY: `#[repr(C)]` with `FfiCell<ibv_td>` as the first field.
unsafe impl FfiObject for ThreadDomain {
    type C = ibv_td;

    fn handle(_: &ibv_td) -> Option<u32> {
        Some(0)
    }
}

pub unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_alloc_td` requires `attr` to point to a readable struct.
    if unsafe { (*attr).comp_mask } != 0 {
        return null(libc::EINVAL);
    }
    ThreadDomain { c: FfiCell::new(ibv_td { context }), users: Users::default() }.into_raw()
}

pub unsafe extern "C" fn dealloc_td(c: *mut ibv_td) -> c_int {
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

pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let _uncancelled = crate::cancel::disable();
    const ALLOCATORS: u32 = 1;
    const PD_CONTEXT: u32 = 2;
    /// `ALLOW_CC_UNPROTECTED_ALLOC` of later headers: the driver's own memory may be shared with the host of
    /// a confidential guest.
    const UNPROTECTED: u32 = 4;
    // SAFETY: `ibv_alloc_parent_domain` requires `attr` to point to a readable struct.
    let attr = unsafe { &*attr };
    let mask = attr.comp_mask;
    // The program's allocators would serve driver structures kept in program memory, of which this library
    // has none.
    let lacks_allocator = mask & ALLOCATORS != 0 && (attr.alloc.is_none() || attr.free.is_none());
    let is_live = ProtectionDomain::is_live(attr.pd);
    if !is_live || mask & !(ALLOCATORS | PD_CONTEXT | UNPROTECTED) != 0 || lacks_allocator {
        return null(libc::EINVAL);
    }
    // SAFETY: `is_live` found a live domain, which the program must not deallocate during the call.
    let domain = unsafe { ProtectionDomain::from_raw_ref(attr.pd) };
    if domain.context() != context {
        return null(libc::EINVAL);
    }
    domain.users.add();
    if !attr.td.is_null() {
        // SAFETY: a thread domain passed to `ibv_alloc_parent_domain` is live, or null.
        unsafe { ThreadDomain::from_raw_ref(attr.td) }.users.add();
    }
    ProtectionDomain::new_raw(context, domain.pd.clone(), Some(ParentParts { pd: attr.pd, td: attr.td }))
}

impl ParentParts {
    /// Removes the parent domain from the users of its components.
    ///
    /// # Safety
    /// The parent domain is being destroyed, so this is called once.
    pub unsafe fn release(&self) {
        // SAFETY: the parent domain counted as a user of both components, which therefore were not freed.
        unsafe {
            ProtectionDomain::release(self.pd);
            if !self.td.is_null() {
                ThreadDomain::from_raw_ref(self.td).users.remove();
            }
        }
    }
}
