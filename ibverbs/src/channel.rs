//! Completion channels (`ibv_comp_channel`).

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use urxe::verbs::{CompletionChannel, signals_restart_calls};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::cancel::{Call, PENDING};
use crate::context::Context;
use crate::event_objects::object_at;
use crate::object::{FfiCell, FfiObject, Users, destroy_unused, ffi_object};

entry_points! {
    "IBVERBS_1.0" null ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel
        = create_comp_channel;
    "IBVERBS_1.0" store ibv_destroy_comp_channel(c: *mut ibv_comp_channel) on CompChannel(c)
        unless is_inherited = destroy_unused::<CompChannel>;
}

waiting_entry_points! {
    "IBVERBS_1.1" ibv_get_cq_event(c: *mut ibv_comp_channel, cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void) -> c_int = get_cq_event;
}

/// Upper bound of a single wait; the caller then waits again.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(3600);

/// Makes one attempt to take an event. If there is none, makes the call wait for the descriptor, unless the
/// program has set `O_NONBLOCK`. `announce` announces the wait, so that the background thread drives the
/// devices during the wait, and returns an event that has arrived meanwhile.
///
/// # Errors
/// [`PENDING`] if the call must wait; `EAGAIN` if there is no event and the descriptor is non-blocking;
/// `EINTR` if a signal has interrupted the previous wait, unless signals restart calls.
pub(crate) fn next_event<T>(
    call: &mut Call,
    fd: c_int,
    take: impl FnOnce() -> Option<T>,
    announce: impl FnOnce() -> Option<T>,
) -> Result<T, c_int> {
    if let Some(event) = take() {
        return Ok(event);
    }
    // SAFETY: this `fcntl` command only reads status flags; a bad descriptor makes it fail.
    if unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 } {
        return Err(libc::EAGAIN);
    }
    if let Some(event) = announce() {
        return Ok(event);
    }
    match call.take_failure() {
        Some(libc::EINTR) if !signals_restart_calls() => return Err(libc::EINTR),
        // The system lacks memory: a short pause instead of a busy loop.
        Some(e) if e != libc::EINTR => call.wait_for(-1, 0, Some(Duration::from_millis(1))),
        _ => call.wait_for(fd, libc::POLLIN, None),
    }
    Err(PENDING)
}

/// A completion channel with its C struct.
#[repr(C)]
pub(crate) struct CompChannel {
    c: FfiCell<ibv_comp_channel>,
    pub channel: CompletionChannel,
    users: Users,
}

ffi_object! { CompChannel { c: ibv_comp_channel, users } [context] }

/// Makes a descriptor blocking, which is the initial state of the kernel's descriptors.
pub(crate) fn set_blocking(fd: c_int) {
    // SAFETY: these `fcntl` commands only read and set status flags and take no pointer; a bad descriptor
    // makes them fail.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK);
    }
}

unsafe fn create_comp_channel(context: *mut ibv_context) -> Result<*mut ibv_comp_channel, c_int> {
    // SAFETY: `ibv_create_comp_channel` requires an open context, which the program does not close during
    // the call.
    let channel = unsafe { Context::from_raw_ref(context) }.nic.create_channel().map_err(|e| e.errno())?;
    let fd = channel.as_fd().as_raw_fd();
    set_blocking(fd);
    let c = FfiCell::new(ibv_comp_channel { context, fd, refcnt: 0 });
    Ok(CompChannel { c, channel, users: Users::default() }.into_raw())
}

unsafe fn get_cq_event(
    call: &mut Call,
    c: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> Result<(), c_int> {
    // SAFETY: `ibv_get_cq_event` requires a live channel, which the program does not destroy during the call;
    // its context stays open as long as the channel exists, and `fd` is not written after the channel is
    // made.
    let (channel, fd, objects) = unsafe {
        (&CompChannel::from_raw_ref(c).channel, (*c).fd, &Context::from_raw_ref((*c).context).event_objects)
    };
    let address = loop {
        let event = next_event(call, fd, || channel.next_event(), || channel.prepare_wait())?;
        // An event that is taken must be acknowledged, and destroying a queue whose number is still
        // registered waits for that. The events of a queue that is already being destroyed are dropped.
        if let Some(address) = objects.cqs.look_up(event.id(), |_| ()) {
            event.into_cq();
            break address;
        }
    };
    let raw_cq: *mut ibv_cq = object_at(address);
    // SAFETY: `ibv_get_cq_event` requires two writable pointers. The queue was registered after the event was
    // taken, so its destruction waits for the acknowledgement of the event, which the program makes later.
    unsafe {
        *cq = raw_cq;
        *cq_context = (*raw_cq).cq_context;
    }
    Ok(())
}
