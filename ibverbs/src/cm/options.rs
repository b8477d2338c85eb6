//! Options of ids, and what peers say of enhanced connection establishment.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use urxe::verbs::cm::Ece;

use crate::abi::{ibv_ece, ibv_path_data, rdma_cm_id};
use crate::cm::id::{done, errno, own};

export! {
    "RDMACM_1.0": rdma_set_option = set_option;
    "RDMACM_1.3":
        rdma_set_local_ece = set_local_ece,
        rdma_get_remote_ece = get_remote_ece;
}

const LEVEL_ID: c_int = 0;
const LEVEL_IB: c_int = 1;
const TOS: c_int = 0;
const REUSE_ADDR: c_int = 1;
const AF_ONLY: c_int = 2;
const ACK_TIMEOUT: c_int = 3;
const IB_PATH: c_int = 1;

/// An option's value, which must be of this size.
unsafe fn value<T: Copy>(from: *const c_void, len: usize) -> Result<T, c_int> {
    if from.is_null() || len != size_of::<T>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller vouches for `len` bytes, which are plain integers.
    Ok(unsafe { from.cast::<T>().read_unaligned() })
}

unsafe fn set(
    c: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    from: *const c_void,
    len: usize,
) -> Result<(), c_int> {
    // SAFETY: the caller's.
    unsafe {
        let id = own(c)?;
        match (level, name) {
            (LEVEL_ID, TOS) => id.id.set_tos(value(from, len)?).map_err(errno),
            (LEVEL_ID, REUSE_ADDR) => id.id.set_reuse_addr(value::<c_int>(from, len)? != 0).map_err(errno),
            (LEVEL_ID, AF_ONLY) => id.id.set_af_only(value::<c_int>(from, len)? != 0).map_err(errno),
            (LEVEL_ID, ACK_TIMEOUT) => id.id.set_ack_timeout(value(from, len)?).map_err(errno),
            (LEVEL_IB, IB_PATH) => {
                if from.is_null() || len == 0 || !len.is_multiple_of(size_of::<ibv_path_data>()) {
                    return Err(libc::EINVAL);
                }
                // Over Ethernet the addresses are the path: what there is to be told is known when they are resolved.
                id.id.resolve_route(Duration::ZERO).map_err(errno)?;
                id.complete()
            }
            _ => Err(libc::ENOSYS),
        }
    }
}

unsafe extern "C" fn set_option(
    c: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    from: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: an id that was given out, or null; and the caller's value.
    done(unsafe { set(c, level, name, from, len) })
}

unsafe extern "C" fn set_local_ece(c: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    let set = || {
        // SAFETY: an id that was given out, or null; and the caller's struct.
        let (id, ece) = unsafe { (own(c)?, ece.as_ref().ok_or(libc::EINVAL)?) };
        if ece.comp_mask != 0 {
            return Err(libc::EINVAL);
        }
        id.id.set_ece(Ece { vendor_id: ece.vendor_id, options: ece.options }).map_err(errno)
    };
    done(set())
}

unsafe extern "C" fn get_remote_ece(c: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    let get = || {
        // SAFETY: an id that was given out, or null; and the caller's struct.
        let (id, ece) = unsafe { (own(c)?, ece.as_mut().ok_or(libc::EINVAL)?) };
        let Ece { vendor_id, options } = id.id.remote_ece();
        *ece = ibv_ece { vendor_id, options, comp_mask: 0 };
        Ok(())
    };
    done(get())
}
