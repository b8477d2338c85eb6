//! Connection calls: listen, connect, accept, reject and disconnect.

use std::ffi::{c_int, c_uint, c_void};
use std::net::{Ipv4Addr, SocketAddr};

use urxe::verbs::cm::{ConnParam, RejReason};
use urxe::verbs::{AsyncEvent, QpType, Qpn};

use crate::abi::{rdma_cm_id, rdma_conn_param};
use crate::context::Context;
use crate::rdmacm::id::{Id, Offered, errno, id_ref};
use crate::rdmacm::sync::call_sync;

entry_points! {
    "RDMACM_1.0" minus_one rdma_listen(c: *mut rdma_cm_id, backlog: c_int) = listen;
    // SAFETY: both calls require a live id and `len` readable bytes; null is checked for both.
    "RDMACM_1.0" minus_one rdma_reject(c: *mut rdma_cm_id, data: *const c_void, len: u8)
        => id_ref(c)?.id.reject(&bytes(data, len)).map_err(errno);
    "RDMACM_1.3" minus_one rdma_reject_ece(c: *mut rdma_cm_id, data: *const c_void, len: u8)
        => id_ref(c)?.id.reject_with(RejReason::VendorOption, &bytes(data, len)).map_err(errno);
    "RDMACM_1.2" minus_one rdma_establish(c: *mut rdma_cm_id) = establish;
    "RDMACM_1.0" minus_one rdma_notify(c: *mut rdma_cm_id, event: c_uint) = notify;
}

waiting_entry_points! {
    "RDMACM_1.0" rdma_connect(c: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int
        => |call| call_sync(call, c, |id| connect(id, param));
    "RDMACM_1.0" rdma_accept(c: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int
        => |call| call_sync(call, c, |id| accept(id, param));
    "RDMACM_1.0" rdma_disconnect(c: *mut rdma_cm_id) -> c_int => |call| call_sync(call, c, disconnect);
}

/// Value that requests the maximum number of outstanding READs and atomics (`RDMA_MAX_RESP_RES`,
/// `RDMA_MAX_INIT_DEPTH`).
const MAX_RD_ATOMIC: u8 = 0xff;
/// Largest retry count of a queue pair.
const MAX_RETRIES: u8 = 7;

/// Copies the caller's bytes.
///
/// # Safety
/// `data` has `len` readable bytes, or is null.
unsafe fn bytes(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: `data` is not null, so the caller guarantees `len` readable bytes, which are copied at once.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

/// Converts the parameters that a program requests or grants; `offered` are the limits in the peer's
/// connection request.
///
/// # Safety
/// `from` points to a readable struct, whose private data is readable, or is null.
unsafe fn param(id: &Id, from: *const rdma_conn_param, offered: Option<Offered>) -> Result<ConnParam, c_int> {
    let c = id.as_c();
    // SAFETY: `as_c` points to the C struct in `id`, which nothing writes during the call.
    let (verbs, qp) = unsafe { ((*c).verbs, (*c).qp) };
    if verbs.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `verbs` is not null, so it is a context of `ProcessGlobals`, which stays open as long as the
    // process lives.
    let max = unsafe { Context::from_raw_ref(verbs) }.nic.query_device().limits.max_qp_rd_atom;
    let max = max.min(u32::from(MAX_RD_ATOMIC - 1)) as u8;
    // SAFETY: the caller guarantees that `from` is null or points to a struct that is readable during the
    // call.
    let from = unsafe { from.as_ref() };
    let count = |requested: Option<u8>, offered: Option<u8>| match requested {
        Some(count) if count != MAX_RD_ATOMIC => (count <= max).then_some(count).ok_or(libc::EINVAL),
        _ => Ok(offered.map_or(max, |offered| offered.min(max))),
    };
    // SAFETY: the private data has the length given next to it, or is null.
    let data = from.map(|p| unsafe { bytes(p.private_data, p.private_data_len) }).unwrap_or_default();
    let retries = |count: Option<u8>| count.unwrap_or(MAX_RETRIES).min(MAX_RETRIES);
    let external = from.filter(|_| qp.is_null());
    // SAFETY: a queue pair in the id is live until `rdma_destroy_qp`, which clears the field.
    let has_srq = unsafe { !qp.is_null() && !(*qp).srq.is_null() };
    Ok(ConnParam::default()
        .private_data(data)
        .responder_resources(count(
            from.map(|p| p.responder_resources),
            offered.map(|o| o.responder_resources),
        )?)
        .initiator_depth(count(from.map(|p| p.initiator_depth), offered.map(|o| o.initiator_depth))?)
        .flow_control(from.is_some_and(|p| p.flow_control != 0))
        .retry_count(retries(from.map(|p| p.retry_count)))
        .rnr_retry_count(retries(from.map(|p| p.rnr_retry_count)))
        .srq(external.map_or(has_srq, |p| p.srq != 0))
        .qp_num(external.map(|p| Qpn::new(p.qp_num)))
        .qkey(None))
}

unsafe fn listen(c: *mut rdma_cm_id, backlog: c_int) -> Result<(), c_int> {
    // SAFETY: `rdma_listen` requires a live id, which the program does not destroy during the call; null
    // is checked.
    let id = unsafe { id_ref(c) }?;
    if id.id.local_addr().is_none() {
        id.id.bind_addr(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).map_err(errno)?;
    }
    id.id.listen(usize::try_from(backlog).unwrap_or(0)).map_err(errno)?;
    id.refresh();
    Ok(())
}

unsafe fn connect(id: &Id, from: *mut rdma_conn_param) -> Result<bool, c_int> {
    id.adopt_qp()?;
    // SAFETY: `rdma_connect` requires a readable struct or null.
    let mut param = unsafe { param(id, from, None) }?;
    let mut data = id.state().connect_data.clone();
    data.append(&mut param.private_data);
    param.private_data = data;
    id.id.connect(&param).map_err(errno)?;
    Ok(true)
}

unsafe fn accept(id: &Id, from: *mut rdma_conn_param) -> Result<bool, c_int> {
    id.adopt_qp()?;
    let offered = id.state().offered;
    // SAFETY: `rdma_accept` requires a readable struct or null.
    let param = unsafe { param(id, from, offered) }?;
    id.id.accept(&param).map_err(errno)?;
    id.sync_qp_state();
    // No event follows for a datagram service, which only communicates its queue pair.
    Ok(id.id.qp_type() != Some(QpType::Ud))
}

unsafe fn establish(c: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: `rdma_establish` requires a live id, which the program does not destroy during the call;
    // null is checked.
    let id = unsafe { id_ref(c) }?;
    // With a queue pair of the id, no further step is needed.
    // SAFETY: `id_ref` has checked `c`, and only the library writes this field.
    if unsafe { !(*c).qp.is_null() } {
        return Err(libc::EINVAL);
    }
    id.id.establish().map_err(errno)
}

fn disconnect(id: &Id) -> Result<bool, c_int> {
    id.id.disconnect().map_err(errno)?;
    id.sync_qp_state();
    Ok(true)
}

/// `IBV_EVENT_COMM_EST`.
const ESTABLISHED: c_uint = 4;

unsafe fn notify(c: *mut rdma_cm_id, event: c_uint) -> Result<(), c_int> {
    // SAFETY: `rdma_notify` requires a live id, which the program does not destroy during the call; null
    // is checked.
    let id = unsafe { id_ref(c) }?;
    if event != ESTABLISHED {
        return Err(libc::EINVAL);
    }
    // SAFETY: a queue pair in the id is live until `rdma_destroy_qp`, which clears the field; its number
    // does not change.
    let qpn = unsafe { (*c).qp.as_ref() }.map_or(Qpn::new(0), |qp| Qpn::new(qp.qp_num));
    id.id.notify(AsyncEvent::CommunicationEstablished(qpn)).map_err(errno)
}
