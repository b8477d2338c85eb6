//! Thread domains, and parent domains: a protection domain together with a thread domain.

use std::ffi::c_int;

use crate::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use crate::context::is_inherited;
use crate::domain::{Parts, ProtectionDomain};
use crate::errno::null;
use crate::object::{Object, Shown, Users};

/// Says that one thread at a time uses what is made in it. Everything is locked here all the same.
#[repr(C)]
pub struct ThreadDomain {
    c: Shown<ibv_td>,
    pub users: Users,
}

// SAFETY: it is laid out so.
unsafe impl Object for ThreadDomain {
    type C = ibv_td;

    fn handle(_: &ibv_td) -> Option<u32> {
        Some(0)
    }
}

pub unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: the caller's struct.
    if unsafe { (*attr).comp_mask } != 0 {
        return null(libc::EINVAL);
    }
    ThreadDomain { c: Shown::new(ibv_td { context }), users: Users::default() }.give()
}

pub unsafe extern "C" fn dealloc_td(c: *mut ibv_td) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: as below.
    if unsafe { is_inherited((*c).context) } {
        return 0;
    }
    // SAFETY: a domain that was given out.
    unsafe {
        if ThreadDomain::of(c).users.any() {
            return libc::EBUSY;
        }
        drop(ThreadDomain::take(c));
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
    /// `ALLOW_CC_UNPROTECTED_ALLOC`, of later headers: a driver's own memory may be shared with the host of a confidential guest.
    const UNPROTECTED: u32 = 4;
    // SAFETY: the caller's struct.
    let attr = unsafe { &*attr };
    let mask = attr.comp_mask;
    // A program's own allocators are for what a driver keeps in the program's memory, of which there is nothing here.
    let halved = mask & ALLOCATORS != 0 && (attr.alloc.is_none() || attr.free.is_none());
    let is_known = ProtectionDomain::is_known(attr.pd);
    if !is_known || mask & !(ALLOCATORS | PD_CONTEXT | UNPROTECTED) != 0 || halved {
        return null(libc::EINVAL);
    }
    // SAFETY: a domain that was given out.
    let domain = unsafe { ProtectionDomain::of(attr.pd) };
    if domain.context() != context {
        return null(libc::EINVAL);
    }
    domain.users.add();
    if !attr.td.is_null() {
        // SAFETY: a domain that was given out.
        unsafe { ThreadDomain::of(attr.td) }.users.add();
    }
    ProtectionDomain::give_new(context, domain.pd.clone(), Some(Parts { pd: attr.pd, td: attr.td }))
}

impl Parts {
    /// Lets go of what a parent domain is made of.
    ///
    /// # Safety
    /// The parent domain is going.
    pub unsafe fn leave(&self) {
        // SAFETY: neither could go while the parent domain was there.
        unsafe {
            ProtectionDomain::leave(self.pd);
            if !self.td.is_null() {
                ThreadDomain::of(self.td).users.remove();
            }
        }
    }
}
