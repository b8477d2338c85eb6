//! Creation of completion queues (`ibv_create_cq`, `ibv_create_cq_ex`).

use std::ffi::{c_int, c_void};

use urxe::verbs::CqOptions;

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_pd};
use crate::channel::CompChannel;
use crate::context::Context;
use crate::cq::CompletionQueue;
use crate::cq_ex;
use crate::object::{FfiCell, FfiObject, Session, Use};

entry_points! {
    "IBVERBS_1.1" null ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void,
        channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq
        => make(context, cqe, cq_context, channel, comp_vector, false, std::ptr::null_mut());
    null ibv_create_cq_ex(context: *mut ibv_context, init: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex
        = create_cq_ex;
}

const MASK_FLAGS: u32 = 1;
const MASK_PD: u32 = 2;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`: accepted and ignored, because the queue is always locked.
const SINGLE_THREADED: u32 = 1;
const IGNORE_OVERRUN: u32 = 2;
/// Supported `wc_flags`: all fields of a basic completion, and the timestamp as a counter value and as
/// wall-clock time.
const SUPPORTED_WC_FLAGS: u64 = 0x7f | 1 << 7 | 1 << 11;

/// Creates a completion queue.
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
) -> Result<*mut ibv_cq, c_int> {
    let (Ok(capacity), Ok(comp_vector)) = (usize::try_from(cqe), u32::try_from(comp_vector)) else {
        return Err(libc::EINVAL);
    };
    // SAFETY: the caller passes an open context, and other pointers that are live or null. The program does
    // not destroy these objects during the call.
    let (owner, comp_channel, parent) =
        unsafe { (Context::from_raw_ref(context), Use::<CompChannel>::given(channel), Use::given(parent)) };
    let options = CqOptions::new(capacity).comp_vector(comp_vector).ignore_overrun(ignore_overrun);
    let options = match &comp_channel {
        Some(comp_channel) => options.channel(&comp_channel.channel),
        None => options,
    };
    let cq = owner.nic.create_cq(&options).map_err(|e| e.errno())?;
    // SAFETY: the struct consists of integers, raw pointers, optional function pointers, a mutex and a
    // condition variable, for all of which zeros are valid.
    let mut c: ibv_cq_ex = unsafe { std::mem::zeroed() };
    (c.context, c.channel, c.cq_context) = (context, channel, cq_context);
    (c.handle, c.cqe) = (cq.id().0, cq.capacity() as c_int);
    (c.mutex, c.cond) = (libc::PTHREAD_MUTEX_INITIALIZER, libc::PTHREAD_COND_INITIALIZER);
    cq_ex::set_functions(&mut c);
    let id = cq.id();
    let (c, batch) = (FfiCell::new(c), Session::default());
    let c = CompletionQueue { c, batch, cq, _parent: parent, _channel: comp_channel }.into_raw();
    owner.event_objects.cqs.add(id, c);
    Ok(c)
}

unsafe fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> Result<*mut ibv_cq_ex, c_int> {
    // SAFETY: `ibv_create_cq_ex` requires `init` to point to a readable struct.
    let init = unsafe { &*init };
    let flags = if init.comp_mask & MASK_FLAGS != 0 { init.flags } else { 0 };
    let has_known_flags = flags & !(SINGLE_THREADED | IGNORE_OVERRUN) == 0;
    if init.comp_mask & !(MASK_FLAGS | MASK_PD) != 0
        || init.wc_flags & !SUPPORTED_WC_FLAGS != 0
        || !has_known_flags
    {
        return Err(libc::EOPNOTSUPP);
    }
    let (Ok(cqe), Ok(vector)) = (c_int::try_from(init.cqe), c_int::try_from(init.comp_vector)) else {
        return Err(libc::EINVAL);
    };
    let overruns = flags & IGNORE_OVERRUN != 0;
    let parent = if init.comp_mask & MASK_PD != 0 { init.parent_domain } else { std::ptr::null_mut() };
    // SAFETY: `ibv_create_cq_ex` requires an open context; the channel and the parent domain are live or
    // null. A parent domain that `comp_mask` does not cover is not used.
    Ok(unsafe { make(context, cqe, init.cq_context, init.channel, vector, overruns, parent) }?.cast())
}
