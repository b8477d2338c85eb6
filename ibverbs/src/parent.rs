//! Parent domains, which combine a protection domain with a thread domain.

use crate::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd};
use crate::errno::null;
use crate::object::FfiObject;
use crate::pd::{ParentParts, ProtectionDomain};
use crate::td::ThreadDomain;

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let _uncancelled = crate::cancel::disable();
    inject_fault!(ibv_alloc_parent_domain, null);
    const ALLOCATORS: u32 = 1;
    const PD_CONTEXT: u32 = 2;
    /// `ALLOW_CC_UNPROTECTED_ALLOC` of later headers: in a confidential guest, the driver's own memory may be
    /// shared with the host.
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
