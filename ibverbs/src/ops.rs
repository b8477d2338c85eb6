//! Function table of a context, through which the inline functions of `verbs.h` call the library.

use crate::abi::{ibv_context, ibv_context_ops, verbs_context};
use crate::{cq, create_cq, create_qp, dm, mr, parent, pd, post, qp, query, srq, td};

/// Returns a function table in which the functions that this library does not implement are null.
pub(crate) fn table() -> verbs_context {
    // SAFETY: the struct consists of integers, raw pointers, optional function pointers and a mutex, for all
    // of which zeros are valid.
    let empty: verbs_context = unsafe { std::mem::zeroed() };
    let ops = ibv_context_ops {
        alloc_mw: Some(mr::ibv_alloc_mw),
        bind_mw: Some(post::bind_mw),
        dealloc_mw: Some(mr::ibv_dealloc_mw),
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::ibv_req_notify_cq),
        post_srq_recv: Some(post::post_srq_recv),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        ..empty.context.ops
    };
    verbs_context {
        query_port: Some(query::query_port_of_context),
        query_device_ex: Some(query::ibv_query_device_ex),
        query_rt_values: Some(query::ibv_query_rt_values_ex),
        advise_mr: Some(mr::ibv_advise_mr),
        alloc_null_mr: Some(mr::ibv_alloc_null_mr),
        reg_dm_mr: Some(mr::ibv_reg_dm_mr),
        alloc_dm: Some(dm::ibv_alloc_dm),
        free_dm: Some(dm::ibv_free_dm),
        modify_qp_rate_limit: Some(qp::ibv_modify_qp_rate_limit),
        alloc_parent_domain: Some(parent::ibv_alloc_parent_domain),
        dealloc_td: Some(td::ibv_dealloc_td),
        alloc_td: Some(td::ibv_alloc_td),
        open_xrcd: Some(pd::ibv_open_xrcd),
        close_xrcd: Some(pd::ibv_close_xrcd),
        create_srq_ex: Some(srq::ibv_create_srq_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_cq_ex: Some(create_cq::ibv_create_cq_ex),
        create_qp_ex: Some(create_qp::ibv_create_qp_ex),
        sz: size_of::<verbs_context>(),
        context: ibv_context { ops, ..empty.context },
        ..empty
    }
}
