//! Asynchronous events.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use urxe::verbs::AsyncEvent;

use crate::abi::{ibv_async_event, ibv_context, ibv_cq, ibv_qp, ibv_srq};
use crate::cancel::{Call, Step, blocking};
use crate::channel::{is_nonblocking, wait_for_event};
use crate::context::{Context, address_of, queue_at};
use crate::errno::minus_one;

export! {
    "IBVERBS_1.1":
        ibv_get_async_event = get_async_event,
        ibv_ack_async_event = ack_async_event;
}

/// The address of the queue that an event is about, which from now on waits for its acknowledgement; the number of the
/// port if it is about none. `None` where that queue is gone.
fn take_element(context: &Context, event: AsyncEvent) -> Option<usize> {
    let given = |address: usize| context.unacked.given(address);
    match (event.qpn(), event.cq(), event.srq()) {
        (Some(qpn), ..) => context.named.qps.look_up(qpn, given),
        (_, Some(id), _) => context.named.cqs.look_up(id, given),
        (.., Some(id)) => context.named.srqs.look_up(id, given),
        _ => Some(1),
    }
}

unsafe extern "C-unwind" fn get_async_event(c: *mut ibv_context, out: *mut ibv_async_event) -> c_int {
    // SAFETY: as the caller vouches.
    blocking(|call| unsafe { next_async_event(c, out, call) })
}

unsafe fn next_async_event(c: *mut ibv_context, out: *mut ibv_async_event, call: &mut Call) -> Step<c_int> {
    // SAFETY: an open context.
    let context = unsafe { Context::of(c) };
    // SAFETY: a plain integer.
    let fd = unsafe { (*c).async_fd };
    loop {
        let event = match context.nic.next_event() {
            Some(event) => event,
            None if is_nonblocking(fd) => return Step::Done(minus_one(libc::EAGAIN)),
            // Has the device driven while the thread waits.
            None => match context.nic.wait_event(Duration::ZERO) {
                Ok(event) => event,
                Err(_) => return wait_for_event(call, fd),
            },
        };
        let Some(address) = take_element(context, event) else { continue };
        // SAFETY: the caller's struct.
        unsafe { *out = ibv_async_event { element: queue_at::<c_void>(address), event_type: event.code() } };
        return Step::Done(0);
    }
}

/// Whether events of this number are about a QP, a CQ or a shared receive queue, and the context of that.
unsafe fn owner(event: &ibv_async_event) -> Option<*mut ibv_context> {
    // SAFETY: the event names a queue that is there until the event is acknowledged.
    unsafe {
        match event.event_type {
            0 => Some((*event.element.cast::<ibv_cq>()).context),
            1..=7 | 16 => Some((*event.element.cast::<ibv_qp>()).context),
            14 | 15 => Some((*event.element.cast::<ibv_srq>()).context),
            _ => None,
        }
    }
}

unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: the caller's struct, as `get_async_event` filled it.
    unsafe {
        if let Some(context) = owner(&*event) {
            Context::of(context).unacked.acknowledged(address_of((*event).element));
        }
    }
}
