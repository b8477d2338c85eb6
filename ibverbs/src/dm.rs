//! Device memory (`ibv_dm`).

use std::ffi::{c_int, c_void};

use urxe::verbs::memory::Dm;

use crate::abi::{ibv_alloc_dm_attr, ibv_context, ibv_dm};
use crate::buffers::bytes;
use crate::context::{Context, is_inherited};
use crate::object::{FfiCell, FfiObject, Used, Users, destroy_unused, ffi_object};

entry_points! {
    null ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm = alloc_dm;
    store ibv_free_dm(dm: *mut ibv_dm) on DeviceMemory(dm) unless is_inherited = free_dm;
    store memcpy_to_dm as none(c: *mut ibv_dm, offset: u64, from: *const c_void, length: usize)
        on DeviceMemory(c) = copy_to_dm;
    store memcpy_from_dm as none(to: *mut c_void, c: *mut ibv_dm, offset: u64, length: usize) = copy_from_dm;
    "IBVERBS_1.13" null ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm = import_dm;
}

export! {
    "IBVERBS_1.13": ibv_unimport_dm = unimport_dm;
}

/// Granularity of copies in bytes. Hardware requires programs to access device memory in words.
const WORD: usize = 4;

/// Device memory with its C struct.
#[repr(C)]
pub(crate) struct DeviceMemory {
    c: FfiCell<ibv_dm>,
    pub dm: Dm,
    /// Number of memory regions registered in the device memory.
    users: Users,
}

ffi_object! { DeviceMemory { c: ibv_dm, users } [context, handle] }

/// Creates the `ibv_dm` for device memory, with the handle that `ibv_import_dm` uses to find it.
fn new_dm(context: *mut ibv_context, dm: Dm, handle: u32, users: Users) -> *mut ibv_dm {
    let c = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: 0,
        handle,
    };
    DeviceMemory { c: FfiCell::new(c), dm, users }.into_raw()
}

unsafe fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> Result<*mut ibv_dm, c_int> {
    // SAFETY: `ibv_alloc_dm` requires `attr` to point to a readable struct, and an open context.
    let (attr, of) = unsafe { (&*attr, Context::from_raw_ref(context)) };
    // Every requested alignment is met, as addresses in device memory start at 0.
    if attr.comp_mask != 0 {
        return Err(libc::EINVAL);
    }
    let dm = of.nic.alloc_dm(attr.length).map_err(|e| e.errno())?;
    let handle = of.dms.add(dm.clone());
    Ok(new_dm(context, dm, handle, Users::default()))
}

unsafe fn free_dm(c: *mut ibv_dm) -> Result<(), c_int> {
    // SAFETY: `c` is live (checked by the entry point), and its context is open.
    unsafe {
        let (context, handle) = (Context::from_raw_ref((*c).context), (*c).handle);
        destroy_unused::<DeviceMemory>(c)?;
        context.dms.remove(handle);
    }
    Ok(())
}

/// Converts the offset of a copy to an index, and fails unless offset and length are multiples of `WORD`.
fn first_byte(offset: u64, length: usize) -> Result<usize, c_int> {
    match usize::try_from(offset) {
        Ok(first) if first.is_multiple_of(WORD) && length.is_multiple_of(WORD) => Ok(first),
        Ok(_) => Err(libc::EINVAL),
        Err(_) => Err(libc::EFAULT),
    }
}

/// Copies to device memory; called through a function pointer in the C struct.
unsafe fn copy_to_dm(c: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> Result<(), c_int> {
    // SAFETY: the entry point found live memory at `c`, which the program must not free during the call; it
    // provides `length` readable bytes at `from`.
    let (dm, bytes) = unsafe { (&DeviceMemory::from_raw_ref(c).dm, bytes(from, length)) };
    dm.write(first_byte(offset, length)?, bytes).map_err(|e| e.errno())
}

/// Copies from device memory, otherwise like [`copy_to_dm`].
unsafe fn copy_from_dm(to: *mut c_void, c: *mut ibv_dm, offset: u64, length: usize) -> Result<(), c_int> {
    if length == 0 {
        return Ok(());
    }
    // SAFETY: `ibv_memcpy_from_dm` requires live memory, and `length` writable bytes at `to` that are the
    // caller's alone during the call. They may be uninitialised: they are only written.
    let (dm, out) = unsafe {
        (&DeviceMemory::from_raw_ref(c).dm, std::slice::from_raw_parts_mut(to.cast::<u8>(), length))
    };
    dm.read(first_byte(offset, length)?, out).map_err(|e| e.errno())
}

unsafe fn import_dm(context: *mut ibv_context, handle: u32) -> Result<*mut ibv_dm, c_int> {
    // SAFETY: `ibv_import_dm` requires an open context, which the program does not close during the call.
    let dm = unsafe { Context::from_raw_ref(context) }.dms.get(handle).ok_or(libc::ENOENT)?;
    Ok(new_dm(context, dm, handle, Users::imported()))
}

unsafe extern "C" fn unimport_dm(c: *mut ibv_dm) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_unimport_dm` requires live, imported memory, whose import counts as the user that is
    // removed. Its context is open, or a copy of the parent's after fork.
    unsafe {
        if !is_inherited((*c).context) {
            DeviceMemory::release(c);
        }
    }
}
