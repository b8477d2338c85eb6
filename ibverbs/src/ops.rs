//! Function table of a context, through which the inline functions of `verbs.h` call the library.

use crate::abi::{ibv_context, ibv_context_ops, verbs_context};
use crate::{cq, create_cq, create_qp, dm, entry_points, mr, parent, pd, post, query, srq, td};

/// Returns a function table in which the functions that this library does not implement are null.
pub(crate) fn table() -> verbs_context {
    // SAFETY: the struct consists of integers, raw pointers, optional function pointers and a mutex, for all
    // of which zeros are valid.
    let empty: verbs_context = unsafe { std::mem::zeroed() };
    let ops = ibv_context_ops {
        alloc_mw: Some(mr::alloc_mw),
        bind_mw: Some(post::bind_mw),
        dealloc_mw: Some(entry_points::dealloc_mw),
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        post_srq_recv: Some(post::post_srq_recv),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        ..empty.context.ops
    };
    verbs_context {
        query_port: Some(entry_points::query_port_with_len),
        query_device_ex: Some(entry_points::query_device_ex),
        query_rt_values: Some(query::query_rt_values),
        advise_mr: Some(entry_points::advise_mr),
        alloc_null_mr: Some(mr::alloc_null_mr),
        reg_dm_mr: Some(mr::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(entry_points::free_dm),
        modify_qp_rate_limit: Some(entry_points::modify_qp_rate_limit),
        alloc_parent_domain: Some(parent::alloc_parent_domain),
        dealloc_td: Some(entry_points::dealloc_td),
        alloc_td: Some(td::alloc_td),
        open_xrcd: Some(pd::open_xrcd),
        close_xrcd: Some(entry_points::close_xrcd),
        create_srq_ex: Some(srq::create_srq_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_cq_ex: Some(create_cq::create_cq_ex),
        create_qp_ex: Some(create_qp::create_qp_ex),
        sz: size_of::<verbs_context>(),
        context: ibv_context { ops, ..empty.context },
        ..empty
    }
}
