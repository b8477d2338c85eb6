//! Calls on synchronous ids, which wait for the event that reports their completion.

use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

use urxe::verbs::cm::CmEventKind;

use crate::abi::{rdma_cm_event, rdma_cm_id};
use crate::cancel::{Call, Step, blocking};
use crate::errno::{self, minus_one};
use crate::rdmacm::event::{ack_cm_event, next_cm_event};
use crate::rdmacm::id::{Id, id_ref, result_code};

impl Id {
    /// Waits for the event that reports the completion of a call on a synchronous id. The id keeps the event
    /// until the next call.
    ///
    /// # Errors
    /// The error that the event reports.
    fn next_call_event(&self, call: &mut Call) -> Step<Result<(), c_int>> {
        let c = self.as_c();
        let mut event: *mut rdma_cm_event = null_mut();
        // SAFETY: a synchronous id has a channel of its own, which lives as long as the id; `event` is a
        // writable local.
        match unsafe { next_cm_event((*c).channel, &mut event, call) } {
            Step::Wait => return Step::Wait,
            Step::Done(0) => {}
            Step::Done(_) => return Step::Done(Err(errno::get())),
        }
        // SAFETY: the event was just returned and not acknowledged, so it is live. The C struct lies in
        // `self`, and only the library writes its field `event`.
        let (kind, status) = unsafe {
            (*c).event = event;
            ((*event).event, (*event).status)
        };
        Step::Done(match status {
            0 if kind == CmEventKind::DeviceRemoval as c_uint => Err(libc::ENODEV),
            0 => Ok(()),
            _ if kind == CmEventKind::Rejected as c_uint => Err(libc::ECONNREFUSED),
            negative => Err(negative.saturating_abs()),
        })
    }

    /// Acknowledges the event that the id has kept since the last synchronous call.
    pub(super) fn ack_kept_event(&self) {
        let c = self.as_c();
        // SAFETY: only the library writes the field `event`. A non-null event there was returned to it and is
        // acknowledged once, as the field is cleared first.
        unsafe {
            let event = std::mem::replace(&mut (*c).event, null_mut());
            if !event.is_null() {
                ack_cm_event(event);
            }
        }
    }
}

/// Defines C functions that start an operation on an id and, on a synchronous id, wait for its completion,
/// one in each row: `"NODE" NAME(c, ARGUMENTS) = PATH;`. The Rust function at `PATH` starts the operation, as
/// described for [`call_sync`].
macro_rules! sync_entry_points {
    ($($node:literal $name:ident($c:ident: $id:ty $(, $argument:ident: $kind:ty)*) = $start:path;)*) => {$(
        export! { $node: $name = $name; }

        pub(super) use $name::entry as $name;

        mod $name {
            use super::*;

            pub(in $crate::rdmacm) unsafe extern "C-unwind" fn entry($c: $id $(, $argument: $kind)*) -> std::ffi::c_int {
                inject_fault!($name, minus_one);
                // SAFETY: the program meets the requirements of the C function, which are those of the Rust
                // function; a null id is checked. This frame holds pointers and integers only, with nothing to
                // drop.
                #[allow(unused_unsafe, reason = "some of the functions are safe")]
                unsafe { $crate::rdmacm::sync::call_sync($c, |id| $start(id $(, $argument)*)) }
            }
        }
    )*};
}
pub(super) use sync_entry_points;

/// Calls `begin`, which starts an operation on an id. If it returns true, an event will report the
/// completion; on a synchronous id, this function waits for it.
///
/// # Safety
/// `c` is a live id, or null. The caller's frame has nothing to drop ([`blocking`]).
pub(super) unsafe fn call_sync(
    c: *mut rdma_cm_id,
    mut begin: impl FnMut(&Id) -> Result<bool, c_int>,
) -> c_int {
    blocking(|call| {
        // SAFETY: the caller passes a live id or null, which the program does not destroy during the call.
        let id = match unsafe { id_ref(c) } {
            Ok(id) => id,
            Err(e) => return Step::Done(minus_one(e)),
        };
        if !call.started {
            match begin(id) {
                Ok(true) if id.is_synchronous() => id.ack_kept_event(),
                result => return Step::Done(result_code(result.map(|_| ()))),
            }
            call.started = true;
        }
        match id.next_call_event(call) {
            Step::Wait => Step::Wait,
            Step::Done(result) => Step::Done(result_code(result)),
        }
    })
}
