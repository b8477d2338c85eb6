//! Connection calls: listen, connect, accept, reject and disconnect.

use std::ffi::{c_int, c_uint, c_void};
use std::net::{Ipv4Addr, SocketAddr};

use urxe::verbs::cm::{ConnParam, RejReason};
use urxe::verbs::{AsyncEvent, QpType, Qpn};

use crate::abi::{rdma_cm_id, rdma_conn_param};
use crate::rdmacm::id::{Id, errno, id_ref};
use crate::rdmacm::sync::call_sync;

entry_points! {
    "RDMACM_1.0" minus_one rdma_listen(c: *mut rdma_cm_id, backlog: c_int) = listen;
    // SAFETY: both C functions require a live id and `len` readable bytes; null is checked for both.
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

/// Converts the parameters that a program requests or grants. Returns the defaults if `from` is null: as many
/// READs and atomics as possible, but when accepting no more than the peer requests.
///
/// # Safety
/// `from` points to a readable struct, whose private data is readable, or is null.
unsafe fn param(from: *const rdma_conn_param) -> ConnParam {
    // SAFETY: the caller guarantees that `from` is null or points to a struct that is readable during the
    // call.
    let Some(from) = (unsafe { from.as_ref() }) else { return ConnParam::default() };
    // SAFETY: the private data has the length given next to it, or is null.
    let data = unsafe { bytes(from.private_data, from.private_data_len) };
    ConnParam::default()
        .private_data(data)
        .responder_resources(from.responder_resources)
        .initiator_depth(from.initiator_depth)
        .flow_control(from.flow_control != 0)
        .retry_count(from.retry_count)
        .rnr_retry_count(from.rnr_retry_count)
        // These two are ignored if the id has a queue pair.
        .srq(from.srq != 0)
        .qp_num(Qpn::new(from.qp_num))
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
    let mut param = unsafe { param(from) };
    let mut data = id.state().connect_data.clone();
    data.append(&mut param.private_data);
    param.private_data = data;
    id.id.connect(&param).map_err(errno)?;
    Ok(true)
}

unsafe fn accept(id: &Id, from: *mut rdma_conn_param) -> Result<bool, c_int> {
    id.adopt_qp()?;
    // SAFETY: `rdma_accept` requires a readable struct or null.
    id.id.accept(&unsafe { param(from) }).map_err(errno)?;
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
