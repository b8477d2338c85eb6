//! Event channels.
//!
//! Programs destroy one while another thread waits at it, or is about to (rping does, as it ends). Over a kernel that thread
//! sleeps on, or finds the descriptor closed. So it is here: who waits has the channel for its own, and looks for it among those
//! that there are.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use parking_lot::Mutex;
use urxe::verbs::cm::EventChannel;

use crate::abi::rdma_event_channel;
use crate::cm::process::Process;
use crate::errno::null;

export! {
    "RDMACM_1.0":
        rdma_create_event_channel = create,
        rdma_destroy_event_channel = destroy;
}

/// What is behind a program's pointer.
pub struct Channel {
    pub channel: EventChannel,
    /// Held from the taking of an event until its id is known by name: the next one may be that id's.
    pub reading: Mutex<()>,
    pub process: &'static Process,
}

/// All that there are, by the programs' pointers.
static CHANNELS: Mutex<BTreeMap<usize, Arc<Channel>>> = Mutex::new(BTreeMap::new());

impl Channel {
    /// The channel of a pointer.
    ///
    /// # Errors
    /// `EBADF` if there is none (any more), `ENODEV` if it is the parent's of this process.
    pub fn own(c: *mut rdma_event_channel) -> Result<Arc<Channel>, libc::c_int> {
        let channel = CHANNELS.lock().get(&c.addr()).cloned().ok_or(libc::EBADF)?;
        if channel.process.is_inherited() { Err(libc::ENODEV) } else { Ok(channel) }
    }
}

pub extern "C" fn create() -> *mut rdma_event_channel {
    let _uncancelled = crate::cancel::disable();
    let process = match Process::this() {
        Ok(process) => process,
        Err(e) => return null(e),
    };
    match EventChannel::new() {
        Ok(channel) => {
            let c = Box::into_raw(Box::new(rdma_event_channel { fd: channel.as_fd().as_raw_fd() }));
            let channel = Channel { channel, reading: Mutex::default(), process };
            CHANNELS.lock().insert(c.addr(), Arc::new(channel));
            c
        }
        Err(e) => null(e.raw_os_error().unwrap_or(libc::EMFILE)),
    }
}

pub unsafe extern "C" fn destroy(c: *mut rdma_event_channel) {
    let _uncancelled = crate::cancel::disable();
    let channel = match CHANNELS.lock().entry(c.addr()) {
        // A child leaves its parent's as it is.
        Entry::Occupied(entry) if !entry.get().process.is_inherited() => entry.remove(),
        _ => return,
    };
    // SAFETY: `create` made it, and only who has removed it is here.
    drop((channel, unsafe { Box::from_raw(c) }));
}
