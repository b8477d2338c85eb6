//! Parent domains, which combine a protection domain with a thread domain.

use std::ffi::c_int;

use crate::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd};
use crate::object::{FfiObject, Use};
use crate::pd::ProtectionDomain;

entry_points! {
    null ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr)
        -> *mut ibv_pd = alloc_parent_domain;
}

unsafe fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> Result<*mut ibv_pd, c_int> {
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
    // SAFETY: the program must not deallocate the domain during the call.
    let (domain, owner) = unsafe { (ProtectionDomain::live(attr.pd)?, (*attr.pd).context) };
    let is_known = mask & !(ALLOCATORS | PD_CONTEXT | UNPROTECTED) == 0;
    if !is_known || lacks_allocator || owner != context {
        return Err(libc::EINVAL);
    }
    // SAFETY: the domain is live, and a thread domain passed to `ibv_alloc_parent_domain` is live or null.
    let parts = unsafe { (Use::new(attr.pd), Use::given(attr.td)) };
    Ok(ProtectionDomain::new_raw(context, domain.pd.clone(), Some(parts)))
}
