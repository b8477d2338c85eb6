//! Protection domains and XRC domains.

use std::ffi::c_int;

use urxe::verbs::{Pd, Xrcd};

use crate::abi::{ibv_context, ibv_pd, ibv_td, ibv_xrcd, ibv_xrcd_init_attr};
use crate::context::{Context, is_inherited};
use crate::errno;
use crate::object::{FfiCell, FfiObject, Users, ffi_object};
use crate::shared_context::{FileId, OpenXrcd, file_id};
use crate::td::ThreadDomain;

export! {
    "IBVERBS_1.1":
        ibv_alloc_pd = alloc_pd;
    "IBVERBS_1.10":
        ibv_import_pd = import_pd,
        ibv_unimport_pd = unimport_pd;
}

/// A protection domain or a parent domain, with its C struct.
#[repr(C)]
pub(crate) struct ProtectionDomain {
    c: FfiCell<ibv_pd>,
    pub pd: Pd,
    pub users: Users,
    /// The components of a parent domain; `None` for an ordinary protection domain.
    parts: Option<ParentParts>,
}

/// The domains combined in a parent domain.
pub(crate) struct ParentParts {
    pub pd: *mut ibv_pd,
    /// The thread domain, or null.
    pub td: *mut ibv_td,
}

impl ParentParts {
    /// Removes the parent domain from the users of its components.
    ///
    /// # Safety
    /// The parent domain is being destroyed, so this is called once.
    pub(crate) unsafe fn release(&self) {
        // SAFETY: the parent domain counted as a user of both components, which therefore were not freed.
        unsafe {
            ProtectionDomain::release(self.pd);
            if !self.td.is_null() {
                ThreadDomain::from_raw_ref(self.td).users.remove();
            }
        }
    }
}

ffi_object! { ProtectionDomain { c: ibv_pd } [context, handle] }

impl ProtectionDomain {
    /// Returns the context in which the domain was created.
    pub(crate) fn context(&self) -> *mut ibv_context {
        // SAFETY: `self.c` is initialised; its `context` was set when the domain was made and is never
        // written again.
        unsafe { (*self.c.get()).context }
    }

    /// Allocates the `ibv_pd` of a domain and assigns it a new handle.
    pub(crate) fn new_raw(context: *mut ibv_context, pd: Pd, parts: Option<ParentParts>) -> *mut ibv_pd {
        // SAFETY: both callers pass on the context that the program named, which it does not close during
        // the call.
        let handle = unsafe { Context::from_raw_ref(context) }.pds.add(pd.clone());
        ProtectionDomain::with_handle(ibv_pd { context, handle }, pd, parts, Users::default())
    }

    fn with_handle(c: ibv_pd, pd: Pd, parts: Option<ParentParts>, users: Users) -> *mut ibv_pd {
        ProtectionDomain { c: FfiCell::new(c), pd, users, parts }.into_raw()
    }

    /// Removes one user of a domain. An imported domain, whose import counts as a user, is freed with the
    /// last of them.
    ///
    /// # Safety
    /// `c` is live and had that user.
    pub(crate) unsafe fn release(c: *mut ibv_pd) {
        // SAFETY: the user that is removed kept the domain alive until here. If `remove` returns true,
        // neither an import nor another user refers to the domain any more, so no other thread can reach it.
        unsafe {
            if ProtectionDomain::from_raw_ref(c).users.remove() {
                drop(ProtectionDomain::from_raw(c));
            }
        }
    }
}

pub(crate) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let _uncancelled = crate::cancel::disable();
    inject_fault!(ibv_alloc_pd, null);
    // SAFETY: `ibv_alloc_pd` requires an open context, which the program does not close during the call.
    match unsafe { Context::from_raw_ref(context) }.nic.alloc_pd() {
        Ok(pd) => ProtectionDomain::new_raw(context, pd, None),
        Err(e) => errno::null(e.errno()),
    }
}

pub(crate) unsafe extern "C" fn dealloc_pd(c: *mut ibv_pd) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `c` is live (checked by the `entry_points` wrapper, or made by this library), and its context
    // is open, or a copy of the parent's after fork.
    if unsafe { is_inherited((*c).context) } {
        return 0;
    }
    // SAFETY: `c` and its context are live as above. Without users, no object refers to the domain, and the
    // program gives up its pointer. A parent domain held a use of each of its parts until here.
    unsafe {
        if ProtectionDomain::from_raw_ref(c).users.any() {
            return libc::EBUSY;
        }
        Context::from_raw_ref((*c).context).pds.remove((*c).handle);
        let domain = ProtectionDomain::from_raw(c);
        if let Some(parts) = &domain.parts {
            parts.release();
        }
    }
    0
}

unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    let _uncancelled = crate::cancel::disable();
    inject_fault!(ibv_import_pd, null);
    // SAFETY: `ibv_import_pd` requires an open context, which the program does not close during the call.
    match unsafe { Context::from_raw_ref(context) }.pds.get(handle) {
        Some(pd) => {
            let users = Users::imported();
            ProtectionDomain::with_handle(ibv_pd { context, handle }, pd, None, users)
        }
        None => errno::null(libc::ENOENT),
    }
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
    pub xrcd: Xrcd,
    /// The file through which this process can open the domain again; `None` for a private domain.
    file: Option<FileId>,
    pub users: Users,
}

ffi_object! { XrcDomain { c: ibv_xrcd } [context] }

impl XrcDomain {
    /// Returns the context in which the domain was created.
    pub(crate) fn context(&self) -> *mut ibv_context {
        // SAFETY: `self.c` is initialised; its `context` was set when the domain was made and is never
        // written again.
        unsafe { (*self.c.get()).context }
    }
}

/// Opens the XRC domain for the file whose descriptor is in `attr`, or a private domain if the descriptor is
/// -1.
fn open(context: &Context, attr: &ibv_xrcd_init_attr) -> Result<(Xrcd, Option<FileId>), c_int> {
    let open_new = || context.nic.open_xrcd().map_err(|e| e.errno());
    if attr.fd == -1 {
        return Ok((open_new()?, None));
    }
    let file = file_id(attr.fd).ok_or(libc::EBADF)?;
    let mut files = context.files.lock();
    match files.get_mut(&file) {
        Some(_) if attr.oflags & libc::O_EXCL != 0 => Err(libc::EINVAL),
        Some(opened) => {
            opened.open_count += 1;
            Ok((opened.xrcd.clone(), Some(file)))
        }
        None if attr.oflags & libc::O_CREAT == 0 => Err(libc::EAGAIN),
        None => {
            let xrcd = open_new()?;
            files.insert(file, OpenXrcd { xrcd: xrcd.clone(), open_count: 1 });
            Ok((xrcd, Some(file)))
        }
    }
}

pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    let _uncancelled = crate::cancel::disable();
    inject_fault!(ibv_open_xrcd, null);
    /// Bits `FD` and `OFLAGS` of `comp_mask`, both required.
    const REQUIRED: u32 = 3;
    // SAFETY: `ibv_open_xrcd` requires `attr` to point to a readable struct.
    let attr = unsafe { &*attr };
    if attr.comp_mask != REQUIRED {
        return errno::null(libc::EINVAL);
    }
    // SAFETY: `ibv_open_xrcd` requires an open context, which the program does not close during the call.
    match open(unsafe { Context::from_raw_ref(context) }, attr) {
        Ok((xrcd, file)) => {
            XrcDomain { c: FfiCell::new(ibv_xrcd { context }), xrcd, file, users: Users::default() }
                .into_raw()
        }
        Err(e) => errno::null(e),
    }
}

pub(crate) unsafe extern "C" fn close_xrcd(c: *mut ibv_xrcd) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `c` is live (checked by the `entry_points` wrapper), and its context is open, or a copy of the
    // parent's after fork.
    if unsafe { is_inherited((*c).context) } {
        return 0;
    }
    // SAFETY: `c` and its context are live as above. Without users, no object refers to the domain, and the
    // program gives up its pointer with this call.
    unsafe {
        let domain = XrcDomain::from_raw_ref(c);
        if domain.users.any() {
            return libc::EBUSY;
        }
        if let Some(file) = domain.file {
            let mut files = Context::from_raw_ref(domain.context()).files.lock();
            let open_count = files.get_mut(&file).map_or(0, |opened| {
                opened.open_count -= 1;
                opened.open_count
            });
            if open_count == 0 {
                files.remove(&file);
            }
        }
        drop(XrcDomain::from_raw(c));
    }
    0
}
