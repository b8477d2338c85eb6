//! Asynchronous events (`ibv_async_event`).

use std::ffi::{c_int, c_void};
use std::time::Duration;

use urxe::verbs::AsyncEvent;

use crate::abi::{ibv_async_event, ibv_context, ibv_cq, ibv_qp, ibv_srq};
use crate::cancel::Call;
use crate::channel::next_event;
use crate::context::Context;
use crate::event_objects::object_at;

waiting_entry_points! {
    "IBVERBS_1.1" ibv_get_async_event(c: *mut ibv_context, out: *mut ibv_async_event) -> c_int
        = get_async_event;
}

export! {
    "IBVERBS_1.1": ibv_ack_async_event = ack_async_event;
}

/// Returns the address of the queue to which an event refers, and counts the event, so that destroying the
/// queue waits for its acknowledgement. Returns the port number for an event that refers to no queue, and
/// `None` if the queue has been destroyed.
fn affiliated_object(context: &Context, event: AsyncEvent) -> Option<usize> {
    let count = |address: usize| context.unacked.count(address);
    match (event.qpn(), event.cq(), event.srq()) {
        (Some(qpn), ..) => context.event_objects.qps.look_up(qpn, count),
        (_, Some(id), _) => context.event_objects.cqs.look_up(id, count),
        (.., Some(id)) => context.event_objects.srqs.look_up(id, count),
        _ => Some(1),
    }
}

unsafe fn get_async_event(
    call: &mut Call,
    c: *mut ibv_context,
    out: *mut ibv_async_event,
) -> Result<(), c_int> {
    // SAFETY: `ibv_get_async_event` requires an open context, which the program does not close during the
    // call; `async_fd` is not written after it was opened.
    let (context, fd) = unsafe { (Context::from_raw_ref(c), (*c).async_fd) };
    let nic = &context.nic;
    loop {
        let event = next_event(call, fd, || nic.next_event(), || nic.wait_event(Duration::ZERO).ok())?;
        let Some(address) = affiliated_object(context, event) else { continue };
        // SAFETY: `ibv_get_async_event` requires `out` to point to a writable struct.
        unsafe { *out = ibv_async_event { element: object_at::<c_void>(address), event_type: event.code() } };
        return Ok(());
    }
}

/// Returns the context of the QP, CQ or shared receive queue to which an event refers, or `None` for a port
/// or device event.
///
/// # Safety
/// `get_async_event` filled `event`, which has not yet been acknowledged.
unsafe fn owner(event: &ibv_async_event) -> Option<*mut ibv_context> {
    // SAFETY: the event type determines which struct `element` points to, and destroying that queue waits
    // until the event is acknowledged.
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
    // SAFETY: `ibv_ack_async_event` requires an event that `ibv_get_async_event` returned and that is not
    // acknowledged yet; so its queue exists, and the context of that is open.
    unsafe {
        if let Some(context) = owner(&*event) {
            Context::from_raw_ref(context).unacked.ack((*event).element.addr());
        }
    }
}
