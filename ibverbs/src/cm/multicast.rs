//! Multicast groups of ids.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use urxe::verbs::cm::Membership;

use crate::abi::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use crate::cm::id::{Id, answered, done, errno, own};
use crate::cm::sockaddr::read;

export! {
    "RDMACM_1.0":
        rdma_join_multicast = join_multicast,
        rdma_leave_multicast = leave_multicast;
    "RDMACM_1.1": rdma_join_multicast_ex = join_multicast_ex;
}

/// Of `comp_mask`, both of which must be given.
const ADDRESS: u32 = 1;
const FLAGS: u32 = 2;

unsafe fn join(
    id: &Id,
    group: *const sockaddr,
    membership: Membership,
    context: *mut c_void,
) -> Result<bool, c_int> {
    // SAFETY: the caller's.
    let group = unsafe { read(group) }.ok_or(libc::EINVAL)?;
    let ip = group.ip().to_canonical();
    id.join(ip, context, || id.id.join_multicast(group, membership).map_err(errno))?;
    Ok(true)
}

unsafe extern "C-unwind" fn join_multicast(
    c: *mut rdma_cm_id,
    group: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: an id that was given out, or null; and the caller's address.
    unsafe { answered(c, |id| join(id, group, Membership::Full, context)) }
}

unsafe extern "C-unwind" fn join_multicast_ex(
    c: *mut rdma_cm_id,
    with: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    let start = |id: &Id| {
        // SAFETY: the caller's struct, or null.
        let with = unsafe { with.as_ref() }.ok_or(libc::EINVAL)?;
        if with.comp_mask != ADDRESS | FLAGS {
            return Err(libc::EINVAL);
        }
        let membership = match with.join_flags {
            0 => Membership::Full,
            1 => Membership::SendOnly,
            _ => return Err(libc::EINVAL),
        };
        // SAFETY: the caller's address.
        unsafe { join(id, with.addr, membership, context) }
    };
    // SAFETY: an id that was given out, or null.
    unsafe { answered(c, start) }
}

unsafe extern "C" fn leave_multicast(c: *mut rdma_cm_id, group: *mut sockaddr) -> c_int {
    let _uncancelled = crate::cancel::disable();
    let leave = || {
        // SAFETY: an id that was given out, or null; and the caller's address.
        let (id, group) = unsafe { (own(c)?, read(group).ok_or(libc::EINVAL)?) };
        id.id.leave_multicast(group).map_err(errno)?;
        id.forget_join(group.ip().to_canonical());
        Ok(())
    };
    done(leave())
}
