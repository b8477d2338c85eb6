//! Opening, closing and importing devices.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use crate::abi::{ibv_context, ibv_device};
use crate::channel::set_blocking;
use crate::context::{Context, is_inherited};
use crate::counters::Publisher;
use crate::device::Device;
use crate::log::warn;
use crate::object::FfiObject;
use crate::ops;
use crate::shared_context::{self, SharedContext};

entry_points! {
    "IBVERBS_1.1" null ibv_open_device(device: *mut ibv_device) -> *mut ibv_context = open_device;
    "IBVERBS_1.1" store ibv_close_device(context: *mut ibv_context) = close_device;
    "IBVERBS_1.10" null ibv_import_device(cmd_fd: c_int) -> *mut ibv_context = import_device;
}

unsafe fn open_device(device: *mut ibv_device) -> Result<*mut ibv_context, c_int> {
    // SAFETY: `ibv_open_device` requires a device of the list; devices are never freed.
    let device = unsafe { Device::from_raw_ref(device) };
    let nic = device.open().map_err(|e| {
        warn(&e.to_string());
        e.errno()
    })?;
    let (file, shared) = shared_context::create(device, nic)?;
    Ok(new_context(file, shared))
}

/// Allocates the `ibv_context` of an opened device. The program owns it until it closes the device.
fn new_context(file: OwnedFd, shared: Arc<SharedContext>) -> *mut ibv_context {
    let mut c = ops::table();
    c.context.device = shared.device.as_c();
    // Nothing reads from this descriptor: programs only print it, or pass it to `ibv_import_device`.
    c.context.cmd_fd = file.as_raw_fd();
    c.context.async_fd = shared.nic.event_fd().as_raw_fd();
    set_blocking(c.context.async_fd);
    c.context.num_comp_vectors = shared.nic.query_device().limits.num_comp_vectors as c_int;
    c.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    c.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    Context::new_raw(c, shared, file)
}

unsafe fn close_device(c: *mut ibv_context) -> Result<(), c_int> {
    // SAFETY: `ibv_close_device` requires an open context, which may be the parent's after a fork.
    if unsafe { is_inherited(c) } {
        return Ok(());
    }
    // SAFETY: the context is open, and the program gives up its pointer with this call, which no other call
    // may use at the same time. Objects that still exist hold the NIC themselves.
    let context = unsafe { Context::from_raw(c) };
    context.device.record_retransmissions(&context.nic);
    context.device.with_publisher(Publisher::publish);
    let device = context.device;
    drop(context);
    device.end_publisher_of_closed_nic();
    Ok(())
}

/// Opens a context that shares objects with the context whose `cmd_fd` is given, and takes ownership of the
/// descriptor.
unsafe fn import_device(cmd_fd: c_int) -> Result<*mut ibv_context, c_int> {
    let shared = shared_context::find(cmd_fd).ok_or(libc::EINVAL)?;
    // SAFETY: `shared_context::find` found the descriptor open, and `ibv_import_device` transfers its
    // ownership from the program.
    Ok(new_context(unsafe { OwnedFd::from_raw_fd(cmd_fd) }, shared))
}
