//! Multicast groups of ids.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use urxe::verbs::cm::Membership;

use crate::abi::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use crate::rdmacm::id::{Id, errno, id_ref};
use crate::rdmacm::sockaddr::read;
use crate::rdmacm::sync::call_sync;

entry_points! {
    "RDMACM_1.0" minus_one rdma_leave_multicast(c: *mut rdma_cm_id, group: *mut sockaddr) = leave_multicast;
}

waiting_entry_points! {
    "RDMACM_1.0" rdma_join_multicast(c: *mut rdma_cm_id, group: *mut sockaddr, context: *mut c_void) -> c_int
        => |call| call_sync(call, c, |id| join(id, group, Membership::Full, context));
    "RDMACM_1.1" rdma_join_multicast_ex(c: *mut rdma_cm_id, with: *mut rdma_cm_join_mc_attr_ex,
        context: *mut c_void) -> c_int => |call| call_sync(call, c, |id| join_ex(id, with, context));
}

/// Bits of `comp_mask`, both required.
const ADDRESS: u32 = 1;
const FLAGS: u32 = 2;

/// Joins a multicast group. Always returns true: an event reports the completion.
///
/// # Safety
/// `group` is a complete socket address, or null.
unsafe fn join(
    id: &Id,
    group: *const sockaddr,
    membership: Membership,
    context: *mut c_void,
) -> Result<bool, c_int> {
    // SAFETY: the caller passes a complete socket address or null.
    let group = unsafe { read(group) }.ok_or(libc::EINVAL)?;
    // The lock delays the event's delivery until the context is stored.
    let mut state = id.state();
    id.id.join_multicast(group, membership).map_err(errno)?;
    state.joins.insert(group.ip().to_canonical(), context);
    Ok(true)
}

unsafe fn join_ex(id: &Id, with: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void) -> Result<bool, c_int> {
    // SAFETY: `rdma_join_multicast_ex` requires a non-null `with` to be readable during the call.
    let with = unsafe { with.as_ref() }.ok_or(libc::EINVAL)?;
    if with.comp_mask != ADDRESS | FLAGS {
        return Err(libc::EINVAL);
    }
    let membership = match with.join_flags {
        0 => Membership::Full,
        1 => Membership::SendOnly,
        _ => return Err(libc::EINVAL),
    };
    // SAFETY: the address in the struct is complete, or null, and valid during the call.
    unsafe { join(id, with.addr, membership, context) }
}

unsafe fn leave_multicast(c: *mut rdma_cm_id, group: *mut sockaddr) -> Result<(), c_int> {
    // SAFETY: `rdma_leave_multicast` requires a live id and a complete address; null is checked.
    let (id, group) = unsafe { (id_ref(c)?, read(group).ok_or(libc::EINVAL)?) };
    id.id.leave_multicast(group).map_err(errno)?;
    id.state().joins.remove(&group.ip().to_canonical());
    Ok(())
}
