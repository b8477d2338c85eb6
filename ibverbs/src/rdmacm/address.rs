//! Binding of ids, address and route resolution, and port queries.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::time::Duration;

use libc::sockaddr;

use crate::abi::rdma_cm_id;
use crate::rdmacm::id::{Id, errno, id_ref};
use crate::rdmacm::sockaddr::read;
use crate::rdmacm::sync::call_sync;

entry_points! {
    "RDMACM_1.0" minus_one rdma_bind_addr(c: *mut rdma_cm_id, to: *mut sockaddr) = bind;
}

waiting_entry_points! {
    "RDMACM_1.0" rdma_resolve_addr(c: *mut rdma_cm_id, src: *mut sockaddr, dst: *mut sockaddr, timeout: c_int)
        -> c_int => |call| call_sync(call, c, |id| resolve_addr(id, src, dst, timeout));
    "RDMACM_1.0" rdma_resolve_route(c: *mut rdma_cm_id, timeout: c_int) -> c_int
        => |call| call_sync(call, c, |id| resolve_route(id, timeout));
}

export! {
    "RDMACM_1.0":
        rdma_get_src_port = get_src_port,
        rdma_get_dst_port = get_dst_port;
}

/// Converts a timeout in milliseconds; a negative timeout becomes 0.
fn milliseconds(timeout: c_int) -> Duration {
    Duration::from_millis(timeout.max(0) as u64)
}

/// Binds an id to an address (`rdma_bind_addr`).
///
/// # Safety
/// `c` is a live id, or null; `to` is a complete socket address, or null.
pub(super) unsafe fn bind(c: *mut rdma_cm_id, to: *const sockaddr) -> Result<(), c_int> {
    // SAFETY: `id_ref` requires a live id or null, and `read` a complete address or null; the caller
    // guarantees both.
    let (id, to) = unsafe { (id_ref(c)?, read(to)) };
    id.id.bind_addr(to.ok_or(libc::EINVAL)?).map_err(errno)?;
    id.refresh();
    Ok(())
}

/// Resolves the destination address and binds the id to a device (`rdma_resolve_addr`).
unsafe fn resolve_addr(
    id: &Id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout: c_int,
) -> Result<bool, c_int> {
    // SAFETY: the caller passes complete socket addresses or null, valid during the whole call.
    let (to, from) = unsafe { (read(dst).ok_or(libc::EINVAL)?, read(src)) };
    if !src.is_null() && from.is_none() {
        return Err(libc::EINVAL);
    }
    id.id.resolve_addr(from, to, milliseconds(timeout)).map_err(errno)?;
    Ok(true)
}

/// Resolves the path to the destination (`rdma_resolve_route`).
fn resolve_route(id: &Id, timeout: c_int) -> Result<bool, c_int> {
    id.id.resolve_route(milliseconds(timeout)).map_err(errno).map(|()| true)
}

/// Returns the port of an address, in network byte order.
fn port(address: Option<SocketAddr>) -> u16 {
    address.map_or(0, |address| address.port().to_be())
}

unsafe extern "C" fn get_src_port(c: *mut rdma_cm_id) -> u16 {
    // SAFETY: `rdma_get_src_port` requires a live id, whose address field is zeroed or was written by
    // `refresh`.
    unsafe { port(read((&raw const (*c).route.addr.src_storage).cast())) }
}

unsafe extern "C" fn get_dst_port(c: *mut rdma_cm_id) -> u16 {
    // SAFETY: `rdma_get_dst_port` requires a live id, whose address field is zeroed or was written by
    // `refresh`.
    unsafe { port(read((&raw const (*c).route.addr.dst_storage).cast())) }
}
