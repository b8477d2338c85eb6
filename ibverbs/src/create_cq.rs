//! Creation of completion queues (`ibv_create_cq`, `ibv_create_cq_ex`).

use std::ffi::{c_int, c_void};

use urxe::verbs::CqOptions;

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_pd};
use crate::channel::CompChannel;
use crate::context::Context;
use crate::cq::CompletionQueue;
use crate::object::FfiObject;
use crate::pd::ProtectionDomain;
use crate::{cq_ex, errno};

export! {
    "IBVERBS_1.1": ibv_create_cq = create_cq;
}

const MASK_FLAGS: u32 = 1;
const MASK_PD: u32 = 2;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`: accepted and ignored, because the queue is always locked.
const SINGLE_THREADED: u32 = 1;
const IGNORE_OVERRUN: u32 = 2;
/// Supported `wc_flags`: all fields of a basic completion, and the timestamp as a counter value and as
/// wall-clock time.
const SUPPORTED_WC_FLAGS: u64 = 0x7f | 1 << 7 | 1 << 11;

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let _uncancelled = crate::cancel::disable();
    inject_fault!(ibv_create_cq, null);
    // SAFETY: `ibv_create_cq` requires an open context, and a channel that is live or null.
    unsafe { make(context, cqe, cq_context, channel, comp_vector, false, std::ptr::null_mut()) }
}

/// Creates a completion queue. On failure, sets `errno` and returns null.
///
/// # Safety
/// `context` is open; `channel` and `parent` are live or null.
pub(crate) unsafe fn make(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
    ignore_overrun: bool,
    parent: *mut ibv_pd,
) -> *mut ibv_cq {
    let (Ok(capacity), Ok(comp_vector)) = (usize::try_from(cqe), u32::try_from(comp_vector)) else {
        return errno::null(libc::EINVAL);
    };
    // SAFETY: null was excluded, so the caller passes a live channel, which the program does not destroy
    // during the call.
    let comp_channel = (!channel.is_null()).then(|| unsafe { CompChannel::from_raw_ref(channel) });
    let options = CqOptions::new(capacity).comp_vector(comp_vector).ignore_overrun(ignore_overrun);
    let options = match comp_channel {
        Some(comp_channel) => options.channel(&comp_channel.channel),
        None => options,
    };
    // SAFETY: the caller passes an open context, which the program does not close during the call.
    let owner = unsafe { Context::from_raw_ref(context) };
    let cq = match owner.nic.create_cq(&options) {
        Ok(cq) => cq,
        Err(e) => return errno::null(e.errno()),
    };
    if let Some(comp_channel) = comp_channel {
        comp_channel.users.add();
    }
    if !parent.is_null() {
        // SAFETY: null was excluded, so the caller passes a live domain, which the program does not
        // deallocate during the call.
        unsafe { ProtectionDomain::from_raw_ref(parent) }.users.add();
    }
    // SAFETY: the struct consists of integers, raw pointers, optional function pointers, a mutex and a
    // condition variable, for all of which zeros are valid.
    let mut c: ibv_cq_ex = unsafe { std::mem::zeroed() };
    (c.context, c.channel, c.cq_context) = (context, channel, cq_context);
    (c.handle, c.cqe) = (cq.id().0, cq.capacity() as c_int);
    (c.mutex, c.cond) = (libc::PTHREAD_MUTEX_INITIALIZER, libc::PTHREAD_COND_INITIALIZER);
    cq_ex::set_functions(&mut c);
    let id = cq.id();
    let c = CompletionQueue::new_raw(c, cq, parent);
    owner.event_objects.cqs.add(id, c);
    c
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let _uncancelled = crate::cancel::disable();
    inject_fault!(ibv_create_cq_ex, null);
    // SAFETY: `ibv_create_cq_ex` requires `init` to point to a readable struct.
    let init = unsafe { &*init };
    let flags = if init.comp_mask & MASK_FLAGS != 0 { init.flags } else { 0 };
    let has_known_flags = flags & !(SINGLE_THREADED | IGNORE_OVERRUN) == 0;
    if init.comp_mask & !(MASK_FLAGS | MASK_PD) != 0
        || init.wc_flags & !SUPPORTED_WC_FLAGS != 0
        || !has_known_flags
    {
        return errno::null(libc::EOPNOTSUPP);
    }
    let (Ok(cqe), Ok(vector)) = (c_int::try_from(init.cqe), c_int::try_from(init.comp_vector)) else {
        return errno::null(libc::EINVAL);
    };
    let overruns = flags & IGNORE_OVERRUN != 0;
    let parent = if init.comp_mask & MASK_PD != 0 { init.parent_domain } else { std::ptr::null_mut() };
    // SAFETY: `ibv_create_cq_ex` requires an open context; the channel and the parent domain are live or
    // null. A parent domain that `comp_mask` does not cover is not used.
    unsafe { make(context, cqe, init.cq_context, init.channel, vector, overruns, parent) }.cast()
}
