//! A package that uses libibverbs, as a project that knows nothing of urxe would.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

#[link(name = "ibverbs")]
unsafe extern "C" {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut c_void;
    fn ibv_free_device_list(list: *mut *mut c_void);
    fn ibv_get_device_name(device: *mut c_void) -> *const c_char;
    fn ibv_open_device(device: *mut c_void) -> *mut c_void;
    fn ibv_close_device(context: *mut c_void) -> c_int;
    fn ibv_query_gid(context: *mut c_void, port: u8, index: c_int, gid: *mut [u64; 2]) -> c_int;
    fn ibv_alloc_pd(context: *mut c_void) -> *mut c_void;
    fn ibv_dealloc_pd(pd: *mut c_void) -> c_int;
    fn ibv_reg_mr(pd: *mut c_void, address: *mut c_void, length: usize, access: c_int) -> *mut c_void;
    fn ibv_dereg_mr(mr: *mut c_void) -> c_int;
    fn ibv_create_cq(context: *mut c_void, cqe: c_int, user: *mut c_void, channel: *mut c_void, vector: c_int) -> *mut c_void;
    fn ibv_destroy_cq(cq: *mut c_void) -> c_int;
}

/// Opens the first device, registers memory, creates a completion queue, and releases them all.
pub fn use_device() {
    const LOCAL_WRITE: c_int = 1;
    let mut memory = vec![0u8; 1 << 16];
    // SAFETY: the prototypes above match infiniband/verbs.h, each object is checked before it is used and
    // released after those that depend on it, and `memory` outlives its registration.
    unsafe {
        let list = ibv_get_device_list(ptr::null_mut());
        assert!(!list.is_null() && !(*list).is_null(), "no RDMA device");
        println!("device {}", CStr::from_ptr(ibv_get_device_name(*list)).to_str().unwrap());
        let context = ibv_open_device(*list);
        ibv_free_device_list(list);
        assert!(!context.is_null());
        let mut gid = [0; 2];
        assert_eq!(ibv_query_gid(context, 1, 0, &mut gid), 0);
        assert_ne!(gid, [0; 2]);
        let pd = ibv_alloc_pd(context);
        assert!(!pd.is_null());
        let mr = ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), LOCAL_WRITE);
        assert!(!mr.is_null());
        let cq = ibv_create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0);
        assert!(!cq.is_null());
        assert_eq!([ibv_destroy_cq(cq), ibv_dereg_mr(mr), ibv_dealloc_pd(pd), ibv_close_device(context)], [0; 4]);
    }
}
