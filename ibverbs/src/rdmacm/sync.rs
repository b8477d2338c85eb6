//! Calls on synchronous ids, which wait for the event that reports their completion.

use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

use urxe::verbs::cm::CmEventKind;

use crate::abi::{rdma_cm_event, rdma_cm_id};
use crate::cancel::Call;
use crate::rdmacm::event::{ack_cm_event, get_cm_event};
use crate::rdmacm::id::{Id, id_ref};

impl Id {
    /// Waits for the event that reports the completion of a call on a synchronous id. The id keeps the event
    /// until the next call.
    ///
    /// # Errors
    /// The error that the event reports, and those of [`get_cm_event`].
    fn next_call_event(&self, call: &mut Call) -> Result<(), c_int> {
        let c = self.as_c();
        let mut event: *mut rdma_cm_event = null_mut();
        // SAFETY: a synchronous id has a channel of its own, which lives as long as the id; `event` is a
        // writable local.
        unsafe { get_cm_event(call, (*c).channel, &mut event) }?;
        // SAFETY: the event was just returned and not acknowledged, so it is live. The C struct lies in
        // `self`, and only the library writes its field `event`.
        let (kind, status) = unsafe {
            (*c).event = event;
            ((*event).event, (*event).status)
        };
        match status {
            0 if kind == CmEventKind::DeviceRemoval as c_uint => Err(libc::ENODEV),
            0 => Ok(()),
            _ if kind == CmEventKind::Rejected as c_uint => Err(libc::ECONNREFUSED),
            negative => Err(negative.saturating_abs()),
        }
    }

    /// Acknowledges the event that the id has kept since the last synchronous call.
    pub(super) fn ack_kept_event(&self) {
        let c = self.as_c();
        // SAFETY: only the library writes the field `event`. A non-null event there was returned to it and is
        // acknowledged once, as the field is cleared first.
        unsafe {
            let event = std::mem::replace(&mut (*c).event, null_mut());
            if !event.is_null() {
                // Cannot fail: the event is not null.
                let _ = ack_cm_event(event);
            }
        }
    }
}

/// Makes one attempt at a call on an id. The first attempt calls `begin`, which starts the operation, and
/// returns true if an event will report the completion; on a synchronous id, the call waits for that event.
///
/// # Errors
/// [`PENDING`](crate::cancel::PENDING), and the errors of `begin` and of the operation.
///
/// # Safety
/// `c` is a live id, or null, and is not destroyed during the call.
pub(super) unsafe fn call_sync(
    call: &mut Call,
    c: *mut rdma_cm_id,
    begin: impl FnOnce(&Id) -> Result<bool, c_int>,
) -> Result<(), c_int> {
    // SAFETY: the caller passes a live id or null, which the program does not destroy during the call.
    let id = unsafe { id_ref(c) }?;
    if !call.started {
        if !begin(id)? || !id.is_synchronous() {
            return Ok(());
        }
        id.ack_kept_event();
        call.started = true;
    }
    id.next_call_event(call)
}
