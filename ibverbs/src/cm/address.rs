//! Binding, and finding the way to a peer.

use std::ffi::c_int;
use std::time::Duration;

use libc::sockaddr;

use crate::abi::rdma_cm_id;
use crate::cm::id::{done, errno, own};
use crate::cm::sockaddr::read;

export! {
    "RDMACM_1.0":
        rdma_bind_addr = bind_addr,
        rdma_resolve_addr = resolve_addr,
        rdma_resolve_route = resolve_route;
}

/// A program's timeout in milliseconds.
fn milliseconds(timeout: c_int) -> Duration {
    Duration::from_millis(timeout.max(0) as u64)
}

/// # Safety
/// An id that was given out, and an address; or null.
pub unsafe fn bind(c: *mut rdma_cm_id, to: *const sockaddr) -> Result<(), c_int> {
    // SAFETY: the caller's.
    let (id, to) = unsafe { (own(c)?, read(to)) };
    id.id.bind_addr(to.ok_or(libc::EINVAL)?).map_err(errno)?;
    id.refresh();
    Ok(())
}

/// # Safety
/// An id that was given out, and addresses; or null.
pub unsafe fn resolve(
    c: *mut rdma_cm_id,
    src: *const sockaddr,
    dst: *const sockaddr,
    timeout: Duration,
) -> Result<(), c_int> {
    // SAFETY: the caller's.
    let (id, to, from) = unsafe { (own(c)?, read(dst).ok_or(libc::EINVAL)?, read(src)) };
    if !src.is_null() && from.is_none() {
        return Err(libc::EINVAL);
    }
    id.id.resolve_addr(from, to, timeout).map_err(errno)?;
    id.complete()
}

/// # Safety
/// An id that was given out, or null.
pub unsafe fn route(c: *mut rdma_cm_id, timeout: Duration) -> Result<(), c_int> {
    // SAFETY: the caller's.
    let id = unsafe { own(c) }?;
    id.id.resolve_route(timeout).map_err(errno)?;
    id.complete()
}

unsafe extern "C" fn bind_addr(c: *mut rdma_cm_id, to: *mut sockaddr) -> c_int {
    // SAFETY: the caller's.
    done(unsafe { bind(c, to) })
}

unsafe extern "C" fn resolve_addr(
    c: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller's.
    done(unsafe { resolve(c, src, dst, milliseconds(timeout)) })
}

unsafe extern "C" fn resolve_route(c: *mut rdma_cm_id, timeout: c_int) -> c_int {
    // SAFETY: the caller's.
    done(unsafe { route(c, milliseconds(timeout)) })
}
