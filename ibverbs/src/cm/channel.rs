//! Event channels.

use std::os::fd::{AsFd, AsRawFd};

use parking_lot::Mutex;
use urxe::verbs::cm::EventChannel;

use crate::abi::rdma_event_channel;
use crate::cm::process::Process;
use crate::errno::null;
use crate::object::{Object, Shown};

export! {
    "RDMACM_1.0":
        rdma_create_event_channel = create,
        rdma_destroy_event_channel = destroy;
}

#[repr(C)]
pub struct Channel {
    c: Shown<rdma_event_channel>,
    pub channel: EventChannel,
    /// Held from the taking of an event until its id is known by name: the next one may be that id's.
    pub reading: Mutex<()>,
    pub process: &'static Process,
}

// SAFETY: it is laid out so.
unsafe impl Object for Channel {
    type C = rdma_event_channel;
}

pub extern "C" fn create() -> *mut rdma_event_channel {
    let process = match Process::this() {
        Ok(process) => process,
        Err(e) => return null(e),
    };
    match EventChannel::new() {
        Ok(channel) => {
            let fd = channel.as_fd().as_raw_fd();
            let c = Shown::new(rdma_event_channel { fd });
            Channel { c, channel, reading: Mutex::default(), process }.give()
        }
        Err(e) => null(e.raw_os_error().unwrap_or(libc::EMFILE)),
    }
}

pub unsafe extern "C" fn destroy(c: *mut rdma_event_channel) {
    // SAFETY: a channel that was given out, and is used no more; a child leaves its parent's as it is.
    unsafe {
        if !c.is_null() && !Channel::of(c).process.is_inherited() {
            drop(Channel::take(c));
        }
    }
}
