//! The private interface of libibverbs for vendor libraries (libmlx5, libefa), whose names and version nodes
//! are in `build/private.rs`. Some programs are linked against these libraries, so they have to load; since
//! none of their devices exists here, they only ever call the registration function.
//!
//! Some public calls exist only for other parts of rdma-core: those that convert the kernel's structs for
//! librdmacm, and the registration of drivers. They have no effect either.

use std::ffi::{c_int, c_void};

use crate::query::query_gid_type;
use crate::strings::wr_opcode_str;

std::arch::global_asm!(
    include_str!(concat!(env!("OUT_DIR"), "/private.s")),
    no_op = sym no_op,
    zero = sym zero,
    enosys = sym enosys,
    minus_enosys = sym minus_enosys,
    null_enosys = sym null_enosys,
    query_gid_type = sym query_gid_type,
    wr_opcode_str = sym wr_opcode_str,
);

unsafe extern "C" fn no_op() {}

unsafe extern "C" fn zero() -> c_int {
    0
}

unsafe extern "C" fn enosys() -> c_int {
    libc::ENOSYS
}

unsafe extern "C" fn minus_enosys() -> c_int {
    crate::errno::minus_one(libc::ENOSYS)
}

unsafe extern "C" fn null_enosys() -> *mut c_void {
    crate::errno::null(libc::ENOSYS)
}

export! {
    "IBVERBS_1.0":
        ibv_copy_path_rec_from_kern = no_op,
        ibv_copy_path_rec_to_kern = no_op,
        ibv_copy_qp_attr_from_kern = no_op;
    "IBVERBS_1.1":
        ibv_copy_ah_attr_from_kern = no_op,
        ibv_register_driver = no_op;
}
