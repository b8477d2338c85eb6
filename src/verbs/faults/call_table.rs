//! The calls to which faults can be applied.

macro_rules! calls {
    ($($name:ident)*) => {
        /// A call of libibverbs or librdmacm, and its counterpart in the Rust API, by the name in C. Calls on rsockets
        /// (`rconnect`) have no counterpart.
        #[allow(non_camel_case_types, missing_docs, reason = "the names of C functions say what the calls are")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Call { $($name),* }

        impl Call {
            /// All calls.
            pub const ALL: &[Call] = &[$(Call::$name),*];

            /// Returns the name of the C function.
            pub const fn name(self) -> &'static str {
                match self { $(Call::$name => stringify!($name),)* }
            }
        }
    };
}

calls! {
    ibv_advise_mr ibv_alloc_buf ibv_alloc_dm ibv_alloc_dmah ibv_alloc_mw ibv_alloc_null_mr
    ibv_alloc_parent_domain ibv_alloc_pd ibv_alloc_td ibv_attach_mcast ibv_bind_mw ibv_close_device
    ibv_close_xrcd ibv_create_ah ibv_create_ah_from_wc ibv_create_comp_channel ibv_create_comp_cntr
    ibv_create_cq ibv_create_cq_ex ibv_create_qp ibv_create_qp_ex ibv_create_srq ibv_create_srq_ex
    ibv_dealloc_dmah ibv_dealloc_mw ibv_dealloc_pd ibv_dealloc_td ibv_dereg_mr ibv_destroy_ah
    ibv_destroy_comp_channel ibv_destroy_comp_cntr ibv_destroy_cq ibv_destroy_qp ibv_destroy_srq
    ibv_detach_mcast ibv_free_dm ibv_get_async_event ibv_get_cq_event ibv_get_device_list
    ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd ibv_inc_comp_cntr ibv_inc_err_comp_cntr
    ibv_init_ah_from_wc ibv_modify_qp ibv_modify_qp_rate_limit ibv_modify_srq ibv_open_device
    ibv_open_xrcd ibv_poll_cq ibv_post_recv ibv_post_send ibv_post_srq_recv ibv_qp_attach_comp_cntr
    ibv_query_comp_cntr_caps ibv_query_device ibv_query_device_ex ibv_query_gid ibv_query_gid_ex
    ibv_query_gid_table ibv_query_pkey ibv_query_port ibv_query_port_speed ibv_query_qp
    ibv_query_rt_values_ex ibv_query_srq ibv_read_comp_cntr ibv_read_err_comp_cntr ibv_reg_buf_mr
    ibv_reg_dm_mr ibv_reg_dmabuf_mr ibv_reg_mr ibv_reg_mr_ex ibv_reg_mr_iova ibv_req_notify_cq
    ibv_rereg_mr ibv_resize_cq ibv_resolve_eth_l2_from_gid ibv_set_comp_cntr ibv_set_ece
    ibv_set_err_comp_cntr ibv_start_poll ibv_wr_complete
    rdma_accept rdma_bind_addr rdma_connect rdma_create_ep rdma_create_event_channel rdma_create_id
    rdma_create_qp rdma_create_qp_ex rdma_create_srq rdma_create_srq_ex rdma_disconnect rdma_establish
    rdma_get_cm_event rdma_get_devices rdma_get_request rdma_getaddrinfo rdma_init_qp_attr
    rdma_join_multicast rdma_join_multicast_ex rdma_leave_multicast rdma_listen rdma_migrate_id
    rdma_notify rdma_reject rdma_reject_ece rdma_resolve_addr rdma_resolve_addrinfo rdma_resolve_route
    rdma_set_option
    raccept rbind rclose rconnect repoll_create repoll_ctl repoll_wait rfcntl rgetpeername rgetsockname
    rgetsockopt riomap riounmap riowrite rlisten rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend
    rsendmsg rsendto rsetsockopt rshutdown rsocket rwrite rwritev
}

/// A set of calls: whether it contains each call, by the number of the call.
pub(super) type CallSet = [bool; Call::ALL.len()];

/// Returns the set of the calls that `is_element` selects.
pub(super) fn call_set(is_element: impl Fn(Call) -> bool) -> CallSet {
    std::array::from_fn(|number| is_element(Call::ALL[number]))
}
