//! The private interface that vendor libraries (libmlx5, libefa) expect of libibverbs. Programs are linked
//! against these libraries, so they have to load; as none of their devices exists here, only their
//! registration function is ever called.

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

unsafe extern "C" fn nothing() {}

unsafe extern "C" fn no_system() -> c_int {
    libc::ENOSYS
}

unsafe extern "C" fn no_object() -> *mut c_void {
    crate::errno::null(libc::ENOSYS)
}

export! {
    "IBVERBS_1.0":
        ibv_copy_path_rec_from_kern = nothing,
        ibv_copy_qp_attr_from_kern = nothing;
    "IBVERBS_1.1": ibv_copy_ah_attr_from_kern = nothing;
    "IBVERBS_PRIVATE_34":
        __verbs_log = nothing,
        _verbs_init_and_alloc_context = no_object,
        execute_ioctl = no_system,
        ibv_cmd_advise_mr = no_system,
        ibv_cmd_alloc_dm = no_system,
        ibv_cmd_alloc_mw = no_system,
        ibv_cmd_alloc_pd = no_system,
        ibv_cmd_attach_mcast = no_system,
        ibv_cmd_close_xrcd = no_system,
        ibv_cmd_create_ah = no_system,
        ibv_cmd_create_counters = no_system,
        ibv_cmd_create_cq_ex = no_system,
        ibv_cmd_create_flow = no_system,
        ibv_cmd_create_flow_action_esp = no_system,
        ibv_cmd_create_qp_ex = no_system,
        ibv_cmd_create_qp_ex2 = no_system,
        ibv_cmd_create_rwq_ind_table = no_system,
        ibv_cmd_create_srq = no_system,
        ibv_cmd_create_srq_ex = no_system,
        ibv_cmd_create_wq = no_system,
        ibv_cmd_dealloc_mw = no_system,
        ibv_cmd_dealloc_pd = no_system,
        ibv_cmd_dereg_mr = no_system,
        ibv_cmd_destroy_ah = no_system,
        ibv_cmd_destroy_counters = no_system,
        ibv_cmd_destroy_cq = no_system,
        ibv_cmd_destroy_flow = no_system,
        ibv_cmd_destroy_flow_action = no_system,
        ibv_cmd_destroy_qp = no_system,
        ibv_cmd_destroy_rwq_ind_table = no_system,
        ibv_cmd_destroy_srq = no_system,
        ibv_cmd_destroy_wq = no_system,
        ibv_cmd_detach_mcast = no_system,
        ibv_cmd_free_dm = no_system,
        ibv_cmd_get_context = no_system,
        ibv_cmd_modify_cq = no_system,
        ibv_cmd_modify_flow_action_esp = no_system,
        ibv_cmd_modify_qp = no_system,
        ibv_cmd_modify_qp_ex = no_system,
        ibv_cmd_modify_srq = no_system,
        ibv_cmd_modify_wq = no_system,
        ibv_cmd_open_qp = no_system,
        ibv_cmd_open_xrcd = no_system,
        ibv_cmd_query_context = no_system,
        ibv_cmd_query_device_any = no_system,
        ibv_cmd_query_mr = no_system,
        ibv_cmd_query_port = no_system,
        ibv_cmd_query_qp = no_system,
        ibv_cmd_query_srq = no_system,
        ibv_cmd_read_counters = no_system,
        ibv_cmd_reg_dm_mr = no_system,
        ibv_cmd_reg_dmabuf_mr = no_system,
        ibv_cmd_reg_mr = no_system,
        ibv_cmd_rereg_mr = no_system,
        ibv_cmd_resize_cq = no_system,
        verbs_init_cq = nothing,
        verbs_open_device = no_object,
        verbs_register_driver_34 = nothing,
        verbs_set_ops = nothing,
        verbs_uninit_context = nothing;
}
