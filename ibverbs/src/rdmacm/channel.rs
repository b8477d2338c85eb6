//! Event channels (`rdma_event_channel`).
//!
//! Some programs destroy a channel while another thread waits on it, or is about to (rping does, at its end).
//! With the kernel's librdmacm, that thread keeps sleeping, or finds the descriptor closed. To allow the same
//! here, a waiting thread holds a reference of its own and looks the channel up in a registry instead of
//! following the pointer.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use parking_lot::Mutex;
use urxe::verbs::cm::EventChannel;

use crate::abi::rdma_event_channel;
use crate::rdmacm::process::ProcessGlobals;

entry_points! {
    "RDMACM_1.0" null rdma_create_event_channel() -> *mut rdma_event_channel = create;
}

export! {
    "RDMACM_1.0": rdma_destroy_event_channel = destroy;
}

/// State of an event channel (`rdma_event_channel`).
pub(super) struct Channel {
    pub channel: EventChannel,
    /// Held from the removal of an event from the channel until its id has been looked up, because the next
    /// event may refer to the same id.
    pub read_lock: Mutex<()>,
    pub process: &'static ProcessGlobals,
}

/// All channels, by the address of their `rdma_event_channel`.
static CHANNELS: Mutex<BTreeMap<usize, Arc<Channel>>> = Mutex::new(BTreeMap::new());

impl Channel {
    /// Returns the channel of an `rdma_event_channel`; the pointer may be dangling.
    ///
    /// # Errors
    /// `EBADF` if there is no such channel (any more), `ENODEV` if it belongs to the parent of this process.
    pub(super) fn lookup(c: *mut rdma_event_channel) -> Result<Arc<Channel>, c_int> {
        let channel = CHANNELS.lock().get(&c.addr()).cloned().ok_or(libc::EBADF)?;
        if channel.process.is_inherited() { Err(libc::ENODEV) } else { Ok(channel) }
    }
}

fn create() -> Result<*mut rdma_event_channel, c_int> {
    let process = ProcessGlobals::current()?;
    let channel = EventChannel::new().map_err(|e| e.raw_os_error().unwrap_or(libc::EMFILE))?;
    let c = Box::into_raw(Box::new(rdma_event_channel { fd: channel.as_fd().as_raw_fd() }));
    let channel = Channel { channel, read_lock: Mutex::default(), process };
    CHANNELS.lock().insert(c.addr(), Arc::new(channel));
    Ok(c)
}

/// Destroys a channel (`rdma_destroy_event_channel`); threads that wait on it keep its Rust state alive.
pub(super) unsafe extern "C" fn destroy(c: *mut rdma_event_channel) {
    let _uncancelled = crate::cancel::disable();
    let channel = match CHANNELS.lock().entry(c.addr()) {
        // A forked child does not destroy the channels of its parent.
        Entry::Occupied(entry) if !entry.get().process.is_inherited() => entry.remove(),
        _ => return,
    };
    // SAFETY: `create` obtained `c` from a box and registered it. This thread has removed the entry, so no
    // other one frees the box.
    drop((channel, unsafe { Box::from_raw(c) }));
}
