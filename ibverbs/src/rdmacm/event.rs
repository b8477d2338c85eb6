//! Connection manager events (`rdma_cm_event`), and the updates to an id before its event is returned.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null;
use std::time::Duration;

use urxe::verbs::cm::{CmEvent, CmEventKind, EventParam as Param};

use crate::abi::{EventParam, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param};
use crate::address;
use crate::cancel::Call;
use crate::channel::next_event;
use crate::event_objects::object_at;
use crate::object::{FfiCell, FfiObject, ffi_object};
use crate::rdmacm::channel::Channel;
use crate::rdmacm::id::{Id, errno, id_ref};
use crate::rdmacm::process::ProcessGlobals;

waiting_entry_points! {
    "RDMACM_1.0" rdma_get_cm_event(c: *mut rdma_event_channel, out: *mut *mut rdma_cm_event) -> c_int
        = get_cm_event;
}

export! {
    "RDMACM_1.0": rdma_event_str = event_str;
}

entry_points! {
    "RDMACM_1.0" minus_one rdma_ack_cm_event as none(c: *mut rdma_cm_event) = ack_cm_event;
    "RDMACM_1.4" minus_one rdma_write_cm_event as none(c: *mut rdma_cm_id, kind: c_uint, status: c_int,
        arg: u64) = write_cm_event;
}

/// Delay before a call on a destroyed channel fails.
const CLOSED_CHANNEL_DELAY: Duration = Duration::from_secs(1);

/// An event returned to the program, with its C struct.
#[repr(C)]
struct Event {
    c: FfiCell<rdma_cm_event>,
    /// Private data that the C struct points to.
    private_data: Vec<u8>,
    process: &'static ProcessGlobals,
    /// Address of the id whose destruction waits for the acknowledgement of this event; in a connection
    /// request, the address of the listener.
    held_id: usize,
}

ffi_object! { Event { c: rdma_cm_event } }

/// Returns the length of private data, capped at 255, the largest length that the C struct can hold.
fn length(data: &[u8]) -> u8 {
    data.len().min(u8::MAX.into()) as u8
}

/// Returns the parameters of an event. They point to `data`, its private data, which must not move.
fn param(event: &CmEvent, data: &[u8], join: Option<*mut c_void>) -> EventParam {
    let private_data = if data.is_empty() { null() } else { data.as_ptr().cast() };
    match &event.param {
        Param::Connection(with) => EventParam {
            conn: rdma_conn_param {
                private_data,
                private_data_len: length(data),
                responder_resources: with.responder_resources,
                initiator_depth: with.initiator_depth,
                flow_control: with.flow_control.into(),
                retry_count: with.retry_count,
                rnr_retry_count: with.rnr_retry_count,
                srq: with.srq.into(),
                qp_num: with.qp_num.get(),
            },
        },
        Param::Datagram(with) => EventParam {
            ud: rdma_ud_param {
                // The context that the program passed when it joined the group.
                private_data: join.map_or(private_data, <*mut c_void>::cast_const),
                private_data_len: length(data),
                ah_attr: address::attr(&with.address),
                qp_num: with.qp_num.get(),
                qkey: with.qkey.0,
            },
        },
        // SAFETY: the union consists of structs of integers and raw pointers, for which zeros are valid.
        Param::None => unsafe { std::mem::zeroed() },
        Param::User(arg) => EventParam { arg: *arg },
    }
}

impl Event {
    /// Updates the id to which an event refers, then allocates the C struct of the event.
    ///
    /// # Safety
    /// `held_id` is the address of the listener, or of the id that the event concerns, which is not destroyed
    /// before the event is acknowledged.
    unsafe fn new_raw(
        held_id: usize,
        event: CmEvent,
        process: &'static ProcessGlobals,
    ) -> Result<*mut rdma_cm_event, c_int> {
        let raw_id: *mut rdma_cm_id = object_at(held_id);
        let (id, listener) = match event.kind {
            // SAFETY: `raw_id` is the listener, which is live until this event is acknowledged.
            CmEventKind::ConnectRequest => (unsafe { Id::of_request(raw_id, &event) }?, raw_id),
            _ => (raw_id, std::ptr::null_mut()),
        };
        // SAFETY: `id` was made above, or is `raw_id`, which is live until the event is acknowledged.
        let id_state = unsafe { Id::from_raw_ref(id) };
        id_state.apply_event(&event);
        let join = match &event.param {
            Param::Datagram(with) => {
                with.group.and_then(|group| id_state.state().joins.get(&group.ip().to_canonical()).copied())
            }
            _ => None,
        };
        let private_data = event.private_data().to_vec();
        let param = param(&event, &private_data, join);
        let (kind, status) = (event.kind as u32, event.status);
        let c = rdma_cm_event { id, listen_id: listener, event: kind, status, param };
        Ok(Event { c: FfiCell::new(c), private_data, process, held_id }.into_raw())
    }
}

/// Makes one attempt to complete `rdma_get_cm_event`.
///
/// # Safety
/// `out` points to a writable pointer, or is null. `c` may be any pointer: it is only looked up.
pub(super) unsafe fn get_cm_event(
    call: &mut Call,
    c: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_event,
) -> Result<(), c_int> {
    if c.is_null() || out.is_null() {
        return Err(libc::EINVAL);
    }
    let channel = Channel::lookup(c).inspect_err(|e| {
        if *e == libc::EBADF {
            // Had the call come a moment earlier, it would be sleeping while the program, which may be about
            // to exit, ends. The delay imitates that.
            std::thread::sleep(CLOSED_CHANNEL_DELAY);
        }
    })?;
    let (process, fd) = (channel.process, channel.channel.as_fd().as_raw_fd());
    let take = || {
        let guard = channel.read_lock.lock();
        channel.channel.try_event().map(|event| (event, guard))
    };
    loop {
        let announce = || channel.channel.get_event_by(Some(Duration::ZERO), take).ok();
        let (event, _read_guard) = next_event(call, fd, take, announce)?;
        let number = event.listen_id.as_ref().unwrap_or(&event.id).number();
        // A thread that destroys an id removes its number first; events of such an id are dropped.
        let count = |address| process.unacked.count(address);
        let Some(held_id) = process.ids.look_up(number, count) else { continue };
        // SAFETY: the id was registered when this event was counted, and its destruction waits for the
        // acknowledgement.
        let event = unsafe { Event::new_raw(held_id, event, process) };
        let event = event.inspect_err(|_| process.unacked.ack(held_id))?;
        // SAFETY: `out` was checked for null, and points to a writable pointer.
        unsafe { *out = event };
        return Ok(());
    }
}

/// Acknowledges an event (`rdma_ack_cm_event`).
///
/// # Safety
/// `c` is an event that was returned and is not acknowledged yet, or null. The caller gives up its pointer.
pub(super) unsafe fn ack_cm_event(c: *mut rdma_cm_event) -> Result<(), c_int> {
    if c.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller passes an event that is not acknowledged yet, and gives up its pointer. Null was
    // excluded.
    unsafe {
        if !Event::from_raw_ref(c).process.is_inherited() {
            let event = Event::from_raw(c);
            let (process, held_id) = (event.process, event.held_id);
            drop(event);
            process.unacked.ack(held_id);
        }
    }
    Ok(())
}

unsafe fn write_cm_event(c: *mut rdma_cm_id, kind: c_uint, status: c_int, arg: u64) -> Result<(), c_int> {
    if kind != CmEventKind::User as c_uint {
        return Err(libc::EINVAL);
    }
    // SAFETY: `rdma_write_cm_event` requires a live id; null is checked.
    unsafe { id_ref(c) }?.id.write_event(status, arg).map_err(errno)
}

extern "C" fn event_str(number: c_int) -> *const c_char {
    const NAMES: [&CStr; 19] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        c"RDMA_CM_EVENT_USER",
    ];
    let found = usize::try_from(number).ok().and_then(|i| NAMES.get(i));
    found.unwrap_or(&c"UNKNOWN EVENT").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_event_str_returns_the_names_of_the_header() {
        let name = |number| {
            // SAFETY: `event_str` returns a pointer to a static, zero-terminated string.
            unsafe { CStr::from_ptr(event_str(number)) }.to_str().unwrap()
        };
        for kind in [
            CmEventKind::AddrResolved,
            CmEventKind::Established,
            CmEventKind::TimewaitExit,
            CmEventKind::User,
        ] {
            assert_eq!(name(kind as c_int), kind.name());
        }
        assert_eq!([name(-1), name(19)], ["UNKNOWN EVENT"; 2]);
    }
}
