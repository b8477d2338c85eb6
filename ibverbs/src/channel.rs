//! Completion channels.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use urxe::verbs::{CompletionChannel, signals_restart_calls};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::cancel::{Call, Step, blocking};
use crate::context::{Context, is_inherited, queue_at};
use crate::errno::{minus_one, null};
use crate::object::{Object, Shown, Users};
use crate::queue::Queue;

export! {
    "IBVERBS_1.0":
        ibv_create_comp_channel = create_comp_channel;
    "IBVERBS_1.1":
        ibv_get_cq_event = get_cq_event,
        ibv_ack_cq_events = ack_cq_events;
}

/// How long each wait lasts at most; it is begun anew.
pub const LONG: Duration = Duration::from_secs(3600);

/// Has a call wait for an event of this descriptor; or what it returns at once, if a signal has interrupted it.
pub fn wait_for_event(call: &mut Call, fd: c_int) -> Step<c_int> {
    match call.take_failure() {
        Some(libc::EINTR) if !signals_restart_calls() => Step::Done(minus_one(libc::EINTR)),
        // The system lacks memory: a short rest is better than a loop.
        Some(e) if e != libc::EINTR => {
            call.wait_for(-1, 0, Some(Duration::from_millis(1)));
            Step::Wait
        }
        _ => {
            call.wait_for(fd, libc::POLLIN, None);
            Step::Wait
        }
    }
}

#[repr(C)]
pub struct Channel {
    c: Shown<ibv_comp_channel>,
    pub channel: CompletionChannel,
    pub users: Users,
}

// SAFETY: it is laid out so.
unsafe impl Object for Channel {
    type C = ibv_comp_channel;

    fn handle(_: &ibv_comp_channel) -> Option<u32> {
        Some(0)
    }
}

/// As the kernel gives out descriptors: reading waits, until the program says otherwise (O_NONBLOCK).
pub fn block(fd: c_int) {
    // SAFETY: only flags of a descriptor are read and set.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK);
    }
}

/// Whether the program wants no call to wait for what comes by this descriptor.
pub fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: only flags of a descriptor are read.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

pub unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: an open context.
    match unsafe { Context::of(context) }.nic.create_channel() {
        Ok(channel) => {
            let fd = channel.as_fd().as_raw_fd();
            block(fd);
            let c = Shown::new(ibv_comp_channel { context, fd, refcnt: 0 });
            Channel { c, channel, users: Users::default() }.give()
        }
        Err(e) => null(e.errno()),
    }
}

pub unsafe extern "C" fn destroy_comp_channel(c: *mut ibv_comp_channel) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: as below.
    if unsafe { is_inherited((*c).context) } {
        return 0;
    }
    // SAFETY: a channel that was given out.
    unsafe {
        if Channel::of(c).users.any() {
            return libc::EBUSY;
        }
        drop(Channel::take(c));
    }
    0
}

unsafe extern "C-unwind" fn get_cq_event(
    c: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: as the caller vouches.
    blocking(|call| unsafe { next_cq_event(c, cq, cq_context, call) })
}

unsafe fn next_cq_event(
    c: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
    call: &mut Call,
) -> Step<c_int> {
    // SAFETY: a channel that was given out.
    let channel = unsafe { Channel::of(c) };
    // SAFETY: a plain integer.
    let fd = unsafe { (*c).fd };
    // SAFETY: an open context, as its channel is.
    let named = unsafe { &Context::of((*c).context).named };
    let address = loop {
        let event = match channel.channel.next_event() {
            Some(event) => event,
            None if is_nonblocking(fd) => return Step::Done(minus_one(libc::EAGAIN)),
            // Has the device driven while the thread waits.
            None => match channel.channel.get_event(Duration::ZERO) {
                Ok(event) => event,
                Err(_) => return wait_for_event(call, fd),
            },
        };
        // Taken, it is to be acknowledged, and a queue that still has its name waits for that. One that is being destroyed
        // has no events any more.
        if let Some(address) = named.cqs.look_up(event.id(), |_| ()) {
            event.into_cq();
            break address;
        }
    };
    let found: *mut ibv_cq = queue_at(address);
    // SAFETY: the caller's pointers; the queue is there, as it waits for its events.
    unsafe {
        *cq = found;
        *cq_context = (*found).cq_context;
    }
    Step::Done(0)
}

unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: a queue that was given out.
    // More than there are is the program's mistake, of which the call has no word.
    let _ = unsafe { Queue::of(cq) }.cq.ack_events(count.into());
}
