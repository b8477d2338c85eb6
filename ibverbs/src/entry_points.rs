//! Entry points of the calls that return an error number, which they also store in `errno`, as system calls
//! do. A call on an object fails with `ENOENT` if the object does not exist or the program has overwritten
//! its context or its handle.

use std::ffi::{c_int, c_uint};

use urxe::verbs::faults::Call;

use crate::abi::*;
use crate::address::{self, AddressHandle};
use crate::call_faults;
use crate::channel::{self, CompChannel};
use crate::comp_cntr::{self, CompletionCounter};
use crate::cq::{self, CompletionQueue};
use crate::dm::{self, DeviceMemory};
use crate::dmah::{self, DmaHandle};
use crate::errno::store;
use crate::mr::{self, MemoryRegion, MemoryWindow};
use crate::object::FfiObject;
use crate::pd::{self, ProtectionDomain, XrcDomain};
use crate::qp::{self, QueuePair};
use crate::query;
use crate::srq::{self, SharedReceiveQueue};
use crate::td::{self, ThreadDomain};

export! {
    "IBVERBS_1.0": ibv_destroy_comp_channel = destroy_comp_channel;
    "IBVERBS_1.1":
        ibv_attach_mcast = attach_mcast,
        ibv_dealloc_pd = dealloc_pd,
        ibv_dereg_mr = dereg_mr,
        ibv_destroy_ah = destroy_ah,
        ibv_destroy_cq = destroy_cq,
        ibv_destroy_qp = destroy_qp,
        ibv_destroy_srq = destroy_srq,
        ibv_detach_mcast = detach_mcast,
        ibv_modify_qp = modify_qp,
        ibv_modify_srq = modify_srq,
        ibv_query_port = query_port,
        ibv_query_qp = query_qp,
        ibv_query_srq = query_srq,
        ibv_resize_cq = resize_cq,
        ibv_resolve_eth_l2_from_gid = resolve_eth_l2_from_gid;
    "IBVERBS_1.10": ibv_set_ece = set_ece;
    "IBVERBS_1.11": _ibv_query_gid_ex = query_gid_ex;
    "IBVERBS_1.15": ibv_dealloc_dmah = dealloc_dmah;
    "IBVERBS_1.16": ibv_query_port_speed = query_port_speed;
    "IBVERBS_1.18":
        _ibv_query_comp_cntr_caps = query_comp_cntr_caps,
        ibv_destroy_comp_cntr = destroy_comp_cntr,
        ibv_inc_comp_cntr = inc_comp_cntr,
        ibv_inc_err_comp_cntr = inc_err_comp_cntr,
        ibv_qp_attach_comp_cntr = qp_attach_comp_cntr,
        ibv_read_comp_cntr = read_comp_cntr,
        ibv_read_err_comp_cntr = read_err_comp_cntr,
        ibv_set_comp_cntr = set_comp_cntr,
        ibv_set_err_comp_cntr = set_err_comp_cntr;
}

macro_rules! entries {
    ($(
        $name:ident($first:ident: $pointer:ty $(, $argument:ident: $kind:ty)*) $(as $alias:ident)? $(on $object:ty)?
            = $call:path;
    )*) => {$(
        /// # Safety
        /// The requirements of the call in `verbs.h`, except that the object may be destroyed already.
        pub(crate) unsafe extern "C" fn $name($first: $pointer $(, $argument: $kind)*) -> c_int {
            let _uncancelled = crate::cancel::disable();
            const CALL: Call = call_faults::of_entry_point(stringify!($name), &[$(stringify!($alias))?]);
            if let Some(errno) = call_faults::on_call(CALL) {
                return store(errno);
            }
            $(if !<$object>::is_live($first) {
                return store(libc::ENOENT);
            })?
            // SAFETY: the caller meets the requirements of the C call, and the object is live where
            // `is_live` was called.
            store(unsafe { $call($first $(, $argument)*) })
        }
    )*};
}

entries! {
    advise_mr(pd: *mut ibv_pd, advice: c_uint, flags: u32, list: *mut ibv_sge,
        count: u32) on ProtectionDomain =
        mr::advise_mr;
    attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) on QueuePair = qp::attach_mcast;
    close_xrcd(xrcd: *mut ibv_xrcd) on XrcDomain = pd::close_xrcd;
    dealloc_dmah(dmah: *mut ibv_dmah) on DmaHandle = dmah::dealloc_dmah;
    dealloc_mw(mw: *mut ibv_mw) on MemoryWindow = mr::dealloc_mw;
    dealloc_pd(pd: *mut ibv_pd) on ProtectionDomain = pd::dealloc_pd;
    dealloc_td(td: *mut ibv_td) on ThreadDomain = td::dealloc_td;
    dereg_mr(mr: *mut ibv_mr) on MemoryRegion = mr::dereg_mr;
    destroy_ah(ah: *mut ibv_ah) on AddressHandle = address::destroy_ah;
    destroy_comp_cntr(counter: *mut ibv_comp_cntr) on CompletionCounter = comp_cntr::destroy_comp_cntr;
    destroy_comp_channel(channel: *mut ibv_comp_channel) on CompChannel = channel::destroy_comp_channel;
    destroy_cq(cq: *mut ibv_cq) on CompletionQueue = cq::destroy_cq;
    destroy_qp(qp: *mut ibv_qp) on QueuePair = qp::destroy_qp;
    destroy_srq(srq: *mut ibv_srq) on SharedReceiveQueue = srq::destroy_srq;
    detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) on QueuePair = qp::detach_mcast;
    free_dm(dm: *mut ibv_dm) on DeviceMemory = dm::free_dm;
    inc_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) on CompletionCounter = comp_cntr::inc_comp_cntr;
    inc_err_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) on CompletionCounter =
        comp_cntr::inc_err_comp_cntr;
    modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) on QueuePair = qp::modify_qp;
    modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) on QueuePair =
        qp::modify_qp_rate_limit;
    modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) on SharedReceiveQueue =
        srq::modify_srq;
    qp_attach_comp_cntr(qp: *mut ibv_qp, counter: *mut ibv_comp_cntr,
        attr: *mut ibv_qp_attach_comp_cntr_attr) on QueuePair =
        comp_cntr::attach_comp_cntr;
    query_qp(qp: *mut ibv_qp, out: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) on QueuePair =
        qp::query_qp;
    query_srq(srq: *mut ibv_srq, out: *mut ibv_srq_attr) on SharedReceiveQueue = srq::query_srq;
    read_comp_cntr(counter: *mut ibv_comp_cntr, out: *mut u64) on CompletionCounter =
        comp_cntr::read_comp_cntr;
    read_err_comp_cntr(counter: *mut ibv_comp_cntr, out: *mut u64) on CompletionCounter =
        comp_cntr::read_err_comp_cntr;
    resize_cq(cq: *mut ibv_cq, cqe: c_int) on CompletionQueue = cq::resize_cq;
    set_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) on CompletionCounter = comp_cntr::set_comp_cntr;
    set_err_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) on CompletionCounter =
        comp_cntr::set_err_comp_cntr;
    set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) on QueuePair = qp::set_ece;

    query_comp_cntr_caps(context: *mut ibv_context, out: *mut ibv_comp_cntr_caps, len: usize) =
        comp_cntr::query_caps;
    query_device_ex(context: *mut ibv_context, input: *const ibv_query_device_ex_input,
        out: *mut ibv_device_attr_ex, len: usize) =
        query::query_device_ex;
    query_gid_ex(context: *mut ibv_context, port: u32, index: u32, out: *mut ibv_gid_entry, flags: u32,
        len: usize) =
        query::query_gid_ex;
    query_port(context: *mut ibv_context, port: u8, out: *mut ibv_port_attr) = query::query_port;
    query_port_with_len(context: *mut ibv_context, port: u8, out: *mut ibv_port_attr, len: usize) as query_port =
        query::query_port_with_len;
    query_port_speed(context: *mut ibv_context, port: u32, out: *mut u64) = query::query_port_speed;
    resolve_eth_l2_from_gid(context: *mut ibv_context, attr: *mut ibv_ah_attr, mac: *mut u8, vid: *mut u16) =
        address::resolve_eth_l2_from_gid;
}
