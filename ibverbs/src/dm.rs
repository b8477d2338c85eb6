//! Device memory (`ibv_dm`).

use std::ffi::{c_int, c_uint, c_void};

use urxe::verbs::Dm;

use crate::abi::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::context::{Context, is_inherited};
use crate::domain::ProtectionDomain;
use crate::entry;
use crate::errno::null;
use crate::object::{Object, Shown, Users};
use crate::region;

export! {
    "IBVERBS_1.13":
        ibv_import_dm = import_dm,
        ibv_unimport_dm = unimport_dm;
}

/// Granularity of copies in bytes: programs access device memory in words, as hardware demands.
const WORD: usize = 4;

/// Device memory with its C struct.
#[repr(C)]
pub struct DeviceMemory {
    c: Shown<ibv_dm>,
    dm: Dm,
    /// Number of regions of it.
    pub users: Users,
}

// SAFETY: `#[repr(C)]` with `Shown<ibv_dm>` as the first field.
unsafe impl Object for DeviceMemory {
    type C = ibv_dm;

    fn handle(c: &ibv_dm) -> Option<u32> {
        Some(c.handle)
    }
}

/// Hands device memory to the program, with the handle by which it can be imported.
fn give(context: *mut ibv_context, dm: Dm, handle: u32, users: Users) -> *mut ibv_dm {
    let c = ibv_dm {
        context,
        memcpy_to_dm: Some(entry::memcpy_to_dm),
        memcpy_from_dm: Some(entry::memcpy_from_dm),
        comp_mask: 0,
        handle,
    };
    DeviceMemory { c: Shown::new(c), dm, users }.give()
}

impl DeviceMemory {
    /// Removes one user. Frees imported memory that is unimported and has no users left.
    ///
    /// # Safety
    /// `c` is live and had that user.
    pub unsafe fn leave(c: *mut ibv_dm) {
        // SAFETY: the user that is removed kept the memory alive until here. If `remove` returns true,
        // neither an import nor another user refers to it any more, so no other thread can reach it.
        unsafe {
            if DeviceMemory::of(c).users.remove() {
                drop(DeviceMemory::take(c));
            }
        }
    }
}

pub unsafe extern "C" fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_alloc_dm` requires `attr` to point to a readable struct, and an open context.
    let (attr, of) = unsafe { (&*attr, Context::of(context)) };
    // Every requested alignment is met, as addresses in device memory start at 0.
    if attr.comp_mask != 0 {
        return null(libc::EINVAL);
    }
    match of.nic.alloc_dm(attr.length) {
        Ok(dm) => {
            let handle = of.dms.add(dm.clone());
            give(context, dm, handle, Users::default())
        }
        Err(e) => null(e.errno()),
    }
}

pub unsafe extern "C" fn free_dm(c: *mut ibv_dm) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `c` is live (checked by the `entry` wrapper), and its context is open, or a copy of the
    // parent's after fork.
    if unsafe { is_inherited((*c).context) } {
        return 0;
    }
    // SAFETY: `c` and its context are live as above. Without users, no region refers to the memory, and the
    // program gives up its pointer.
    unsafe {
        if DeviceMemory::of(c).users.any() {
            return libc::EBUSY;
        }
        Context::of((*c).context).dms.remove((*c).handle);
        drop(DeviceMemory::take(c));
    }
    0
}

/// Returns the first byte of a copy as an index, if offset and length are allowed.
fn place(offset: u64, length: usize) -> Result<usize, c_int> {
    match usize::try_from(offset) {
        Ok(first) if first.is_multiple_of(WORD) && length.is_multiple_of(WORD) => Ok(first),
        Ok(_) => Err(libc::EINVAL),
        Err(_) => Err(libc::EFAULT),
    }
}

pub unsafe extern "C" fn memcpy_to_dm(
    c: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: the `entry` wrapper found live memory at `c`; the program provides `length` readable bytes at
    // `from`.
    let (dm, bytes) = unsafe { (&DeviceMemory::of(c).dm, crate::post::bytes(from, length)) };
    place(offset, length).and_then(|at| dm.write(at, bytes).map_err(|e| e.errno())).err().unwrap_or(0)
}

pub unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    c: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    let _uncancelled = crate::cancel::disable();
    if length == 0 {
        return 0;
    }
    // SAFETY: `ibv_memcpy_from_dm` requires live memory, and `length` writable bytes at `to` that are the
    // caller's alone during the call. They may be uninitialised: they are only written.
    let (dm, out) =
        unsafe { (&DeviceMemory::of(c).dm, std::slice::from_raw_parts_mut(to.cast::<u8>(), length)) };
    place(offset, length).and_then(|at| dm.read(at, out).map_err(|e| e.errno())).err().unwrap_or(0)
}

pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    c: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    let _uncancelled = crate::cancel::disable();
    if !ProtectionDomain::is_known(pd) || !DeviceMemory::is_known(c) {
        return null(libc::EINVAL);
    }
    // SAFETY: `is_known` found a live domain and live device memory, which the program must not free during
    // the call.
    let (domain, memory) = unsafe { (ProtectionDomain::of(pd), DeviceMemory::of(c)) };
    let range = usize::try_from(offset).ok().and_then(|first| Some(first..first.checked_add(length)?));
    let Some(range) = range else { return null(libc::EINVAL) };
    match domain.pd.reg_dm_mr(&memory.dm, range, region::access(access)) {
        Ok(mr) => {
            memory.users.add();
            region::give_of_device(pd, mr, c)
        }
        Err(e) => null(e.errno()),
    }
}

unsafe extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_import_dm` requires an open context.
    match unsafe { Context::of(context) }.dms.get(handle) {
        Some(dm) => give(context, dm, handle, Users::of_import()),
        None => null(libc::ENOENT),
    }
}

unsafe extern "C" fn unimport_dm(c: *mut ibv_dm) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_unimport_dm` requires live, imported memory, whose import counts as the user that is
    // removed. Its context is open, or a copy of the parent's after fork.
    unsafe {
        if !is_inherited((*c).context) {
            DeviceMemory::leave(c);
        }
    }
}
