//! The private interface of libibverbs for vendor libraries (libmlx5, libefa). Some programs are linked
//! against these libraries, so they have to load; since none of their devices exists here, they only ever
//! call the registration function.

use std::ffi::{c_int, c_void};

// A variable that providers read.
std::arch::global_asm!(
    ".pushsection .data",
    ".globl urxe_export_verbs_allow_disassociate_destroy",
    ".type urxe_export_verbs_allow_disassociate_destroy,@object",
    ".size urxe_export_verbs_allow_disassociate_destroy,1",
    "urxe_export_verbs_allow_disassociate_destroy: .byte 0",
    ".symver urxe_export_verbs_allow_disassociate_destroy,verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34",
    ".popsection",
);

unsafe extern "C" fn no_op() {}

unsafe extern "C" fn enosys() -> c_int {
    libc::ENOSYS
}

unsafe extern "C" fn null_enosys() -> *mut c_void {
    crate::errno::null(libc::ENOSYS)
}

export! {
    "IBVERBS_1.0":
        ibv_copy_path_rec_from_kern = no_op,
        ibv_copy_qp_attr_from_kern = no_op;
    "IBVERBS_1.1": ibv_copy_ah_attr_from_kern = no_op;
    "IBVERBS_PRIVATE_34":
        __verbs_log = no_op,
        _verbs_init_and_alloc_context = null_enosys,
        execute_ioctl = enosys,
        ibv_cmd_advise_mr = enosys,
        ibv_cmd_alloc_dm = enosys,
        ibv_cmd_alloc_mw = enosys,
        ibv_cmd_alloc_pd = enosys,
        ibv_cmd_attach_mcast = enosys,
        ibv_cmd_close_xrcd = enosys,
        ibv_cmd_create_ah = enosys,
        ibv_cmd_create_counters = enosys,
        ibv_cmd_create_cq_ex = enosys,
        ibv_cmd_create_flow = enosys,
        ibv_cmd_create_flow_action_esp = enosys,
        ibv_cmd_create_qp_ex = enosys,
        ibv_cmd_create_qp_ex2 = enosys,
        ibv_cmd_create_rwq_ind_table = enosys,
        ibv_cmd_create_srq = enosys,
        ibv_cmd_create_srq_ex = enosys,
        ibv_cmd_create_wq = enosys,
        ibv_cmd_dealloc_mw = enosys,
        ibv_cmd_dealloc_pd = enosys,
        ibv_cmd_dereg_mr = enosys,
        ibv_cmd_destroy_ah = enosys,
        ibv_cmd_destroy_counters = enosys,
        ibv_cmd_destroy_cq = enosys,
        ibv_cmd_destroy_flow = enosys,
        ibv_cmd_destroy_flow_action = enosys,
        ibv_cmd_destroy_qp = enosys,
        ibv_cmd_destroy_rwq_ind_table = enosys,
        ibv_cmd_destroy_srq = enosys,
        ibv_cmd_destroy_wq = enosys,
        ibv_cmd_detach_mcast = enosys,
        ibv_cmd_free_dm = enosys,
        ibv_cmd_get_context = enosys,
        ibv_cmd_modify_cq = enosys,
        ibv_cmd_modify_flow_action_esp = enosys,
        ibv_cmd_modify_qp = enosys,
        ibv_cmd_modify_qp_ex = enosys,
        ibv_cmd_modify_srq = enosys,
        ibv_cmd_modify_wq = enosys,
        ibv_cmd_open_qp = enosys,
        ibv_cmd_open_xrcd = enosys,
        ibv_cmd_query_context = enosys,
        ibv_cmd_query_device_any = enosys,
        ibv_cmd_query_mr = enosys,
        ibv_cmd_query_port = enosys,
        ibv_cmd_query_qp = enosys,
        ibv_cmd_query_srq = enosys,
        ibv_cmd_read_counters = enosys,
        ibv_cmd_reg_dm_mr = enosys,
        ibv_cmd_reg_dmabuf_mr = enosys,
        ibv_cmd_reg_mr = enosys,
        ibv_cmd_rereg_mr = enosys,
        ibv_cmd_resize_cq = enosys,
        verbs_init_cq = no_op,
        verbs_open_device = null_enosys,
        verbs_register_driver_34 = no_op,
        verbs_set_ops = no_op,
        verbs_uninit_context = no_op;
}
