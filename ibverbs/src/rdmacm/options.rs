//! Options of ids, and enhanced connection establishment (ECE).

use std::ffi::{c_int, c_void};

use urxe::verbs::cm::{CmId, Ece, IdError, PathRecord};
use urxe::verbs::{Gid, Mtu, PKey};

use crate::abi::{ibv_ece, ibv_path_data, rdma_cm_id};
use crate::rdmacm::id::{Id, errno, id_ref};
use crate::rdmacm::sync::call_sync;

waiting_entry_points! {
    "RDMACM_1.0" rdma_set_option(c: *mut rdma_cm_id, level: c_int, name: c_int, from: *mut c_void, len: usize)
        -> c_int => |call| call_sync(call, c, |id| set(id, level, name, from, len));
}

entry_points! {
    "RDMACM_1.3" minus_one rdma_set_local_ece as none(c: *mut rdma_cm_id, ece: *mut ibv_ece) = set_local_ece;
    "RDMACM_1.3" minus_one rdma_get_remote_ece as none(c: *mut rdma_cm_id, ece: *mut ibv_ece)
        = get_remote_ece;
}

const LEVEL_ID: c_int = 0;
const LEVEL_IB: c_int = 1;
const TOS: c_int = 0;
const REUSE_ADDR: c_int = 1;
const AF_ONLY: c_int = 2;
const ACK_TIMEOUT: c_int = 3;
const IB_PATH: c_int = 1;
/// Flags of the record of a primary, bidirectional path that also carries connection management messages
/// (`IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL`).
const PRIMARY_PATH_FLAGS: u32 = 1 | 1 << 1 | (1 << 3 | 1 << 5);
const SIX_BITS: u8 = 0x3f;

/// Reads the value of an option. Fails with `EINVAL` if its size is not that of `T`.
///
/// # Safety
/// `from` is null or has `len` readable bytes, and any bytes are a valid `T`.
unsafe fn value<T: Copy>(from: *const c_void, len: usize) -> Result<T, c_int> {
    if from.is_null() || len != size_of::<T>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `from` has `len` readable bytes, which is the size of `T`; they are copied from any alignment.
    Ok(unsafe { from.cast::<T>().read_unaligned() })
}

/// Reads the path records in the value of an option. There must be at least one; the value need not be
/// aligned.
///
/// # Safety
/// `from` is null or has `len` readable bytes.
unsafe fn records(from: *const c_void, len: usize) -> Result<Vec<ibv_path_data>, c_int> {
    const SIZE: usize = size_of::<ibv_path_data>();
    if from.is_null() || len == 0 || !len.is_multiple_of(SIZE) {
        return Err(libc::EINVAL);
    }
    // SAFETY: `from` has `len` readable bytes, a multiple of the record's size, so every record read is
    // inside. Records consist of integers, for which any bytes are valid.
    Ok((0..len / SIZE).map(|n| unsafe { from.cast::<ibv_path_data>().add(n).read_unaligned() }).collect())
}

/// Sets the path of an id to the first record with [`PRIMARY_PATH_FLAGS`]. Like the kernel, it ignores all
/// other records, and the selectors, rate and service level of this one, which have no effect on Ethernet.
fn set_path(id: &CmId, all: &[ibv_path_data]) -> Result<(), c_int> {
    let found = all.iter().find(|data| data.flags == PRIMARY_PATH_FLAGS).ok_or(libc::EINVAL)?;
    let record = &found.path;
    let word = u32::from_be(record.flowlabel_hoplimit);
    let [sgid, dgid] = [record.sgid.raw, record.dgid.raw].map(Gid);
    let path = PathRecord {
        sgid,
        dgid,
        // Derived from the source GID.
        sgid_index: 0,
        pkey: PKey(u16::from_be(record.pkey)),
        // The upper two bits are the selector.
        mtu: Mtu::from_code(record.mtu & SIX_BITS).ok_or(libc::EINVAL)?,
        packet_life_time: record.packetlifetime & SIX_BITS,
        traffic_class: record.tclass,
        hop_limit: word as u8,
        flow_label: word >> 8 & 0xf_ffff,
    };
    id.set_path(&path).map_err(|e| match e {
        // The record is invalid.
        IdError::NoDevice(_) => libc::EINVAL,
        other => errno(other),
    })
}

/// Sets an option. Returns true if an event will report the completion.
///
/// # Safety
/// `from` is null or has `len` readable bytes.
unsafe fn set(id: &Id, level: c_int, name: c_int, from: *mut c_void, len: usize) -> Result<bool, c_int> {
    // SAFETY: the caller guarantees `len` readable bytes or null; all types read here are integers or
    // structs of integers.
    unsafe {
        match (level, name) {
            (LEVEL_ID, TOS) => id.id.set_tos(value(from, len)?).map_err(errno),
            (LEVEL_ID, REUSE_ADDR) => id.id.set_reuse_addr(value::<c_int>(from, len)? != 0).map_err(errno),
            (LEVEL_ID, AF_ONLY) => id.id.set_af_only(value::<c_int>(from, len)? != 0).map_err(errno),
            (LEVEL_ID, ACK_TIMEOUT) => id.id.set_ack_timeout(value(from, len)?).map_err(errno),
            (LEVEL_IB, IB_PATH) => return set_path(&id.id, &records(from, len)?).map(|()| true),
            _ => Err(libc::ENOSYS),
        }
        .map(|()| false)
    }
}

/// Sets the path of an id with `rdma_set_option`. `from` points to the option's value.
///
/// # Safety
/// The requirements of `rdma_set_option`: `c` is a live id or null, and `from` has `len` readable bytes or is
/// null.
pub(super) unsafe fn set_route(c: *mut rdma_cm_id, from: *mut c_void, len: usize) -> c_int {
    // SAFETY: the call requires of `c` and of the bytes what this function requires.
    unsafe { rdma_set_option(c, LEVEL_IB, IB_PATH, from, len) }
}

unsafe fn set_local_ece(c: *mut rdma_cm_id, ece: *mut ibv_ece) -> Result<(), c_int> {
    // SAFETY: `rdma_set_local_ece` requires a live id and a readable struct; null is checked.
    let (id, ece) = unsafe { (id_ref(c)?, ece.as_ref().ok_or(libc::EINVAL)?) };
    if ece.comp_mask != 0 {
        return Err(libc::EINVAL);
    }
    id.id.set_ece(Ece { vendor_id: ece.vendor_id, options: ece.options }).map_err(errno)
}

unsafe fn get_remote_ece(c: *mut rdma_cm_id, ece: *mut ibv_ece) -> Result<(), c_int> {
    // SAFETY: `rdma_get_remote_ece` requires a live id and a struct that is the caller's alone during the
    // call; null is checked.
    let (id, ece) = unsafe { (id_ref(c)?, ece.as_mut().ok_or(libc::EINVAL)?) };
    let Ece { vendor_id, options } = id.id.remote_ece();
    *ece = ibv_ece { vendor_id, options, comp_mask: 0 };
    Ok(())
}
