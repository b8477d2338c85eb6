//! `rdma_resolve_addrinfo`: resolution of names on another thread, which reports the result by an event.

use std::ffi::{c_char, c_int};

use urxe::sys::thread::spawn_background;

use crate::abi::{rdma_addrinfo, rdma_cm_id};
use crate::rdmacm::addrinfo::{DNS, Query, SA};
use crate::rdmacm::id::{Id, id_ref};
use crate::rdmacm::sync::call_sync;

waiting_entry_points! {
    "RDMACM_1.4" rdma_resolve_addrinfo(c: *mut rdma_cm_id, node: *const c_char, service: *const c_char,
        hints: *const rdma_addrinfo) -> c_int
        => |call| call_sync(call, c, |id| resolve_addrinfo(id, node, service, hints));
}

entry_points! {
    "RDMACM_1.4" minus_one rdma_query_addrinfo as none(c: *mut rdma_cm_id, out: *mut *mut rdma_addrinfo)
        = query_addrinfo;
}

/// Starts the resolution of a name (`rdma_resolve_addrinfo`). On a synchronous id, waits for the result.
unsafe fn resolve_addrinfo(
    id: &Id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<bool, c_int> {
    // SAFETY: `rdma_resolve_addrinfo` requires strings and readable hints, or null.
    let query = unsafe { Query::new(node, service, hints) }?;
    match (query.flags & SA != 0, query.flags & DNS != 0) {
        (true, true) => return Err(libc::EINVAL),
        // RoCE has no subnet administrator.
        (true, false) => return Err(libc::EOPNOTSUPP),
        (false, _) => {}
    }
    let (id, slot) = (id.id.clone(), id.state().resolved.clone());
    let resolve = move || {
        let status = match query.resolve() {
            Ok(found) => {
                *slot.lock() = Some(found);
                0
            }
            Err(code) => code,
        };
        // Fails if the program has destroyed the id meanwhile.
        let _ = id.report_addrinfo(status);
    };
    spawn_background("urxe-resolver".into(), resolve)
        .map_err(|e| e.raw_os_error().unwrap_or(libc::EAGAIN))?;
    Ok(true)
}

/// Returns a copy of the addresses that the last successful resolution found, or fails with `ENODATA`.
unsafe fn query_addrinfo(c: *mut rdma_cm_id, out: *mut *mut rdma_addrinfo) -> Result<(), c_int> {
    // SAFETY: `rdma_query_addrinfo` requires a live id; null is checked.
    let found = *unsafe { id_ref(c) }?.state().resolved.lock();
    if out.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `out` is not null, and points to a writable pointer.
    unsafe { *out = found.ok_or(libc::ENODATA)?.to_c() };
    Ok(())
}
