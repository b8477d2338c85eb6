//! Protection domains and XRC domains.

use std::ffi::c_int;

use urxe::verbs::{Pd, Xrcd};

use crate::abi::{ibv_context, ibv_pd, ibv_td, ibv_xrcd, ibv_xrcd_init_attr};
use crate::context::{Context, is_inherited};
use crate::errno;
use crate::object::{Object, Shown, Users};

export! {
    "IBVERBS_1.1":
        ibv_alloc_pd = alloc_pd;
    "IBVERBS_1.10":
        ibv_import_pd = import_pd,
        ibv_unimport_pd = unimport_pd;
}

#[repr(C)]
pub struct ProtectionDomain {
    c: Shown<ibv_pd>,
    pub pd: Pd,
    pub users: Users,
    /// Of a parent domain.
    parts: Option<Parts>,
}

/// What a parent domain is made of.
pub struct Parts {
    pub pd: *mut ibv_pd,
    /// Or null.
    pub td: *mut ibv_td,
}

// SAFETY: it is laid out so.
unsafe impl Object for ProtectionDomain {
    type C = ibv_pd;

    fn handle(c: &ibv_pd) -> Option<u32> {
        Some(c.handle)
    }
}

impl ProtectionDomain {
    pub fn context(&self) -> *mut ibv_context {
        // SAFETY: set when it was made, and never changed.
        unsafe { (*self.c.get()).context }
    }

    /// Hands one to C under a number of its own.
    pub fn give_new(context: *mut ibv_context, pd: Pd, parts: Option<Parts>) -> *mut ibv_pd {
        // SAFETY: an open context.
        let handle = unsafe { Context::of(context) }.pds.add(pd.clone());
        ProtectionDomain::give_numbered(ibv_pd { context, handle }, pd, parts, Users::default())
    }

    fn give_numbered(c: ibv_pd, pd: Pd, parts: Option<Parts>, users: Users) -> *mut ibv_pd {
        ProtectionDomain { c: Shown::new(c), pd, users, parts }.give()
    }

    /// Says that one of its users is gone.
    ///
    /// # Safety
    /// The domain was given out and had that user.
    pub unsafe fn leave(c: *mut ibv_pd) {
        // SAFETY: it could not go while it had the user; unless it is there for its users alone, of which this was the last.
        unsafe {
            if ProtectionDomain::of(c).users.remove() {
                drop(ProtectionDomain::take(c));
            }
        }
    }
}

pub unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: an open context.
    match unsafe { Context::of(context) }.nic.alloc_pd() {
        Ok(pd) => ProtectionDomain::give_new(context, pd, None),
        Err(e) => errno::null(e.errno()),
    }
}

pub unsafe extern "C" fn dealloc_pd(c: *mut ibv_pd) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: as below.
    if unsafe { is_inherited((*c).context) } {
        return 0;
    }
    // SAFETY: a domain that was given out, of an open context.
    unsafe {
        if ProtectionDomain::of(c).users.any() {
            return libc::EBUSY;
        }
        Context::of((*c).context).pds.remove((*c).handle);
        let domain = ProtectionDomain::take(c);
        if let Some(parts) = &domain.parts {
            parts.leave();
        }
    }
    0
}

unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: an open context.
    match unsafe { Context::of(context) }.pds.get(handle) {
        Some(pd) => {
            let users = Users::of_import();
            ProtectionDomain::give_numbered(ibv_pd { context, handle }, pd, None, users)
        }
        None => errno::null(libc::ENOENT),
    }
}

/// Programs do this before they destroy what they have made in it.
unsafe extern "C" fn unimport_pd(c: *mut ibv_pd) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: a domain that was imported, and is of this process.
    unsafe {
        if !is_inherited((*c).context) {
            ProtectionDomain::leave(c);
        }
    }
}

/// A file, by device and inode.
pub type File = (u64, u64);

/// An XRC domain that was opened with a file, and how often.
pub struct Opened {
    xrcd: Xrcd,
    times: usize,
}

#[repr(C)]
pub struct XrcDomain {
    c: Shown<ibv_xrcd>,
    pub xrcd: Xrcd,
    /// By which others of this process open the same domain.
    file: Option<File>,
    pub users: Users,
}

// SAFETY: it is laid out so.
unsafe impl Object for XrcDomain {
    type C = ibv_xrcd;

    fn handle(_: &ibv_xrcd) -> Option<u32> {
        Some(0)
    }
}

impl XrcDomain {
    pub fn context(&self) -> *mut ibv_context {
        // SAFETY: set when it was made, and never changed.
        unsafe { (*self.c.get()).context }
    }
}

/// The file of a descriptor.
pub fn file_of(fd: c_int) -> Option<File> {
    // SAFETY: all of it may be zeros.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills it.
    let done = unsafe { libc::fstat(fd, &mut stat) };
    (done == 0).then_some((stat.st_dev, stat.st_ino))
}

fn open(context: &Context, attr: &ibv_xrcd_init_attr) -> Result<(Xrcd, Option<File>), c_int> {
    let new = || context.nic.open_xrcd().map_err(|e| e.errno());
    if attr.fd == -1 {
        return Ok((new()?, None));
    }
    let file = file_of(attr.fd).ok_or(libc::EBADF)?;
    let mut files = context.files.lock();
    match files.get_mut(&file) {
        Some(_) if attr.oflags & libc::O_EXCL != 0 => Err(libc::EINVAL),
        Some(opened) => {
            opened.times += 1;
            Ok((opened.xrcd.clone(), Some(file)))
        }
        None if attr.oflags & libc::O_CREAT == 0 => Err(libc::EAGAIN),
        None => {
            let xrcd = new()?;
            files.insert(file, Opened { xrcd: xrcd.clone(), times: 1 });
            Ok((xrcd, Some(file)))
        }
    }
}

pub unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    let _uncancelled = crate::cancel::disable();
    /// FD and OFLAGS, both of which must be given.
    const NEEDED: u32 = 3;
    // SAFETY: the caller's struct.
    let attr = unsafe { &*attr };
    if attr.comp_mask != NEEDED {
        return errno::null(libc::EINVAL);
    }
    // SAFETY: an open context.
    match open(unsafe { Context::of(context) }, attr) {
        Ok((xrcd, file)) => {
            XrcDomain { c: Shown::new(ibv_xrcd { context }), xrcd, file, users: Users::default() }.give()
        }
        Err(e) => errno::null(e),
    }
}

pub unsafe extern "C" fn close_xrcd(c: *mut ibv_xrcd) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: as below.
    if unsafe { is_inherited((*c).context) } {
        return 0;
    }
    // SAFETY: a domain that was given out, of an open context.
    unsafe {
        let domain = XrcDomain::of(c);
        if domain.users.any() {
            return libc::EBUSY;
        }
        if let Some(file) = domain.file {
            let mut files = Context::of(domain.context()).files.lock();
            let times = files.get_mut(&file).map_or(0, |opened| {
                opened.times -= 1;
                opened.times
            });
            if times == 0 {
                files.remove(&file);
            }
        }
        drop(XrcDomain::take(c));
    }
    0
}
