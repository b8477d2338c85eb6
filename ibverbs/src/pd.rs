//! Protection domains and XRC domains.

use std::ffi::c_int;
use std::sync::{Arc, Weak};

use urxe::verbs::{Pd, Xrcd};

use crate::abi::{ibv_context, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr};
use crate::context::{Context, is_inherited};
use crate::object::{FfiCell, FfiObject, Use, Used, Users, destroy_unused, ffi_object};
use crate::shared_context::file_id;
use crate::td::ThreadDomain;

entry_points! {
    "IBVERBS_1.1" null ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd = alloc_pd;
    "IBVERBS_1.1" store ibv_dealloc_pd(pd: *mut ibv_pd) on ProtectionDomain(pd) unless is_inherited
        = dealloc_pd;
    "IBVERBS_1.10" null ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd = import_pd;
    null ibv_open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd = open_xrcd;
    store ibv_close_xrcd(xrcd: *mut ibv_xrcd) on XrcDomain(xrcd) unless is_inherited
        = destroy_unused::<XrcDomain>;
}

export! {
    "IBVERBS_1.10": ibv_unimport_pd = unimport_pd;
}

/// A protection domain or a parent domain, with its C struct.
#[repr(C)]
pub(crate) struct ProtectionDomain {
    c: FfiCell<ibv_pd>,
    pub pd: Pd,
    users: Users,
    /// The components of a parent domain; `None` for an ordinary protection domain.
    _parts: Option<ParentParts>,
}

/// The domains combined in a parent domain, and the thread domain, if there is one.
pub(crate) type ParentParts = (Use<ProtectionDomain>, Option<Use<ThreadDomain>>);

ffi_object! { ProtectionDomain { c: ibv_pd, users } [context, handle] }

impl ProtectionDomain {
    /// Allocates the `ibv_pd` of a domain and assigns it a new handle.
    pub(crate) fn new_raw(context: *mut ibv_context, pd: Pd, parts: Option<ParentParts>) -> *mut ibv_pd {
        // SAFETY: both callers pass on the context that the program named, which it does not close during
        // the call.
        let handle = unsafe { Context::from_raw_ref(context) }.pds.add(pd.clone());
        ProtectionDomain::with_handle(ibv_pd { context, handle }, pd, parts, Users::default())
    }

    fn with_handle(c: ibv_pd, pd: Pd, parts: Option<ParentParts>, users: Users) -> *mut ibv_pd {
        ProtectionDomain { c: FfiCell::new(c), pd, users, _parts: parts }.into_raw()
    }
}

unsafe fn alloc_pd(context: *mut ibv_context) -> Result<*mut ibv_pd, c_int> {
    // SAFETY: `ibv_alloc_pd` requires an open context, which the program does not close during the call.
    let pd = unsafe { Context::from_raw_ref(context) }.nic.alloc_pd().map_err(|e| e.errno())?;
    Ok(ProtectionDomain::new_raw(context, pd, None))
}

unsafe fn dealloc_pd(c: *mut ibv_pd) -> Result<(), c_int> {
    // SAFETY: `c` is live (checked by the entry point), and its context is open.
    unsafe {
        let (context, handle) = (Context::from_raw_ref((*c).context), (*c).handle);
        destroy_unused::<ProtectionDomain>(c)?;
        context.pds.remove(handle);
    }
    Ok(())
}

unsafe fn import_pd(context: *mut ibv_context, handle: u32) -> Result<*mut ibv_pd, c_int> {
    // SAFETY: `ibv_import_pd` requires an open context, which the program does not close during the call.
    let pd = unsafe { Context::from_raw_ref(context) }.pds.get(handle).ok_or(libc::ENOENT)?;
    Ok(ProtectionDomain::with_handle(ibv_pd { context, handle }, pd, None, Users::imported()))
}

/// Ends the import of a domain (`ibv_unimport_pd`). Programs may call it before they destroy the objects
/// created in the domain.
unsafe extern "C" fn unimport_pd(c: *mut ibv_pd) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_unimport_pd` requires a live, imported domain, whose import counts as the user that is
    // removed. Its context is open, or a copy of the parent's after fork.
    unsafe {
        if !is_inherited((*c).context) {
            ProtectionDomain::release(c);
        }
    }
}

/// An XRC domain with its C struct.
#[repr(C)]
pub(crate) struct XrcDomain {
    c: FfiCell<ibv_xrcd>,
    /// The domain, shared by all `ibv_xrcd` that were opened with the same file.
    pub xrcd: Arc<Xrcd>,
    users: Users,
}

ffi_object! { XrcDomain { c: ibv_xrcd, users } [context] }

/// Opens the XRC domain for the file whose descriptor is in `attr`, or a private domain if the descriptor is
/// -1.
fn open(context: &Context, attr: &ibv_xrcd_init_attr) -> Result<Arc<Xrcd>, c_int> {
    let open_new = || context.nic.open_xrcd().map(Arc::new).map_err(|e| e.errno());
    if attr.fd == -1 {
        return open_new();
    }
    let file = file_id(attr.fd).ok_or(libc::EBADF)?;
    let mut files = context.files.lock();
    files.retain(|_, xrcd| xrcd.strong_count() > 0);
    match files.get(&file).and_then(Weak::upgrade) {
        Some(_) if attr.oflags & libc::O_EXCL != 0 => Err(libc::EINVAL),
        Some(opened) => Ok(opened),
        None if attr.oflags & libc::O_CREAT == 0 => Err(libc::EAGAIN),
        None => {
            let xrcd = open_new()?;
            files.insert(file, Arc::downgrade(&xrcd));
            Ok(xrcd)
        }
    }
}

unsafe fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> Result<*mut ibv_xrcd, c_int> {
    /// Bits `FD` and `OFLAGS` of `comp_mask`, both required.
    const REQUIRED: u32 = 3;
    // SAFETY: `ibv_open_xrcd` requires `attr` to point to a readable struct.
    let attr = unsafe { &*attr };
    if attr.comp_mask != REQUIRED {
        return Err(libc::EINVAL);
    }
    // SAFETY: `ibv_open_xrcd` requires an open context, which the program does not close during the call.
    let xrcd = open(unsafe { Context::from_raw_ref(context) }, attr)?;
    let c = FfiCell::new(ibv_xrcd { context });
    Ok(XrcDomain { c, xrcd, users: Users::default() }.into_raw())
}
