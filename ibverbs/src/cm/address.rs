//! Binding, and finding the way to a peer.

use std::ffi::c_int;
use std::time::Duration;

use libc::sockaddr;

use crate::abi::rdma_cm_id;
use crate::cm::id::{Id, answered, done, errno, own};
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

unsafe extern "C" fn bind_addr(c: *mut rdma_cm_id, to: *mut sockaddr) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: the caller's.
    done(unsafe { bind(c, to) })
}

/// # Safety
/// An id that was given out, and addresses; or null.
pub unsafe extern "C-unwind" fn resolve_addr(
    c: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout: c_int,
) -> c_int {
    let begin = |id: &Id| {
        // SAFETY: the caller's.
        let (to, from) = unsafe { (read(dst).ok_or(libc::EINVAL)?, read(src)) };
        if !src.is_null() && from.is_none() {
            return Err(libc::EINVAL);
        }
        id.id.resolve_addr(from, to, milliseconds(timeout)).map_err(errno)?;
        Ok(true)
    };
    // SAFETY: the caller's.
    unsafe { answered(c, begin) }
}

/// # Safety
/// An id that was given out, or null.
pub unsafe extern "C-unwind" fn resolve_route(c: *mut rdma_cm_id, timeout: c_int) -> c_int {
    let begin = |id: &Id| id.id.resolve_route(milliseconds(timeout)).map_err(errno).map(|()| true);
    // SAFETY: the caller's.
    unsafe { answered(c, begin) }
}
