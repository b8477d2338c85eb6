//! Creation, destruction and migration of ids (`rdma_cm_id`).

use std::ffi::{c_int, c_uint, c_void};

use urxe::verbs::cm::PortSpace;

use crate::abi::{rdma_cm_id, rdma_event_channel};
use crate::object::FfiObject;
use crate::qp::qp_type;
use crate::rdmacm::channel;
use crate::rdmacm::id::{Id, IdState, id_ref, with_channel};
use crate::rdmacm::process::ProcessGlobals;

entry_points! {
    "RDMACM_1.0" minus_one rdma_create_id(channel: *mut rdma_event_channel, out: *mut *mut rdma_cm_id,
        context: *mut c_void, space: c_uint) = create_id;
    "RDMACM_1.0" minus_one rdma_destroy_id as none(c: *mut rdma_cm_id) = destroy_id;
    "RDMACM_1.0" minus_one rdma_migrate_id(c: *mut rdma_cm_id, to: *mut rdma_event_channel) = migrate;
}

/// Creates an id on the channel `on`, or on a private channel if `on` is null.
///
/// # Safety
/// `on` is a channel of this library, or null.
pub(super) unsafe fn create(
    on: *mut rdma_event_channel,
    context: *mut c_void,
    space: c_uint,
    qp_type: Option<c_uint>,
) -> Result<*mut rdma_cm_id, c_int> {
    let process = ProcessGlobals::current()?;
    let space = u16::try_from(space).ok().and_then(PortSpace::from_code).ok_or(libc::EPROTONOSUPPORT)?;
    let service = match qp_type {
        Some(number) => Some(self::qp_type(number).ok_or(libc::EOPNOTSUPP)?),
        None => None,
    };
    let (channel, id) = with_channel(on, |on| match service {
        Some(service) => process.manager.create_id_with_qp_type(on, space, service),
        None => process.manager.create_id(on, space),
    })?;
    let state = IdState { synchronous: on.is_null(), ..IdState::default() };
    Ok(Id::new_raw(process, id, channel, context, state))
}

unsafe fn create_id(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: c_uint,
) -> Result<(), c_int> {
    if out.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `rdma_create_id` requires a channel or null; `out` was checked for null and points to a
    // writable pointer.
    unsafe { create(channel, context, space, None).map(|id| *out = id) }
}

/// Destroys an id (`rdma_destroy_id`).
///
/// # Safety
/// `c` is a live id, or null. The caller gives up its pointer.
pub(super) unsafe fn destroy_id(c: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: the caller passes a live id, which the program does not destroy during the call, or null.
    let id = match unsafe { id_ref(c) } {
        Err(libc::ENODEV) => return Ok(()),
        id => id?,
    };
    let process = id.process;
    process.ids.remove(id.id.number());
    id.id.destroy();
    id.ack_kept_event();
    process.unacked.wait(c.addr());
    // SAFETY: the id is no longer registered and all its events are acknowledged, so no other thread can
    // reach it; the program gives up its pointer, and `id` is not used after `from_raw`. A channel of the
    // id's own has no other user.
    unsafe {
        let channel = (*c).channel;
        let synchronous = id.is_synchronous();
        drop(Id::from_raw(c));
        if synchronous {
            channel::destroy(channel);
        }
    }
    Ok(())
}

/// Moves an id to another channel, or to a private channel if `to` is null (`rdma_migrate_id`).
///
/// # Safety
/// `c` is a live id, or null; `to` is a channel of this library, or null.
unsafe fn migrate(c: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<(), c_int> {
    // SAFETY: `id_ref` accepts null; otherwise the caller passes a live id, which the program does not
    // destroy during the call.
    let id = unsafe { id_ref(c) }?;
    let (raw_channel, ()) = with_channel(to, |to| id.id.migrate(to))?;
    id.ack_kept_event();
    let was_synchronous = std::mem::replace(&mut id.state().synchronous, to.is_null());
    // SAFETY: only the library writes the field `channel`. If the id was synchronous, its previous channel
    // was its own and has no other user.
    unsafe {
        let previous = std::mem::replace(&mut (*c).channel, raw_channel);
        if was_synchronous {
            channel::destroy(previous);
        }
    }
    Ok(())
}
