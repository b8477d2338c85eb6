//! Shared receive queues (`ibv_srq`).

use std::ffi::{c_int, c_uint, c_void};

use urxe::verbs::{RecvCaps, Srq, SrqOptions};

use crate::abi::{
    ibv_context, ibv_cq, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd,
};
use crate::context::Context;
use crate::cq::CompletionQueue;
use crate::object::{FfiCell, FfiObject, Use, Used, Users, ffi_object};
use crate::pd::{ProtectionDomain, XrcDomain};

entry_points! {
    "IBVERBS_1.1" null ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq
        => make(pd, (*init).srq_context, &mut (*init).attr, None);
    null ibv_create_srq_ex(context: *mut ibv_context, init: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq
        = create_srq_ex;
    "IBVERBS_1.1" store ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int)
        on SharedReceiveQueue(srq) = modify_srq;
    "IBVERBS_1.1" store ibv_query_srq(srq: *mut ibv_srq, out: *mut ibv_srq_attr) on SharedReceiveQueue(srq)
        = query_srq;
    "IBVERBS_1.1" store ibv_destroy_srq(srq: *mut ibv_srq) on SharedReceiveQueue(srq) unless is_inherited
        = destroy_srq;
}

const MAX_WR: c_int = 1;
const LIMIT: c_int = 2;
const SRQT_BASIC: c_uint = 0;
const SRQT_XRC: c_uint = 1;

/// A shared receive queue with its C struct.
#[repr(C)]
pub(crate) struct SharedReceiveQueue {
    c: FfiCell<ibv_srq>,
    pub srq: Srq,
    _pd: Use<ProtectionDomain>,
    /// XRC domain; `None` for a basic shared receive queue.
    _xrcd: Option<Use<XrcDomain>>,
    users: Users,
}

ffi_object! { SharedReceiveQueue { c: ibv_srq, users } [context, handle] }

/// Creates a shared receive queue, of the XRC type if `xrc` gives an XRC domain and a completion queue.
///
/// # Safety
/// The pointers are the program's arguments; live objects among them stay so during the call.
unsafe fn make(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
) -> Result<*mut ibv_srq, c_int> {
    // SAFETY: the program must not destroy the objects during the call.
    let (domain, context) = unsafe { (ProtectionDomain::live(pd)?, (*pd).context) };
    let mut options = SrqOptions::new(RecvCaps { max_wr: attr.max_wr, max_sge: attr.max_sge });
    if let Some((xrcd, cq)) = xrc {
        // SAFETY: as above.
        options = unsafe { options.xrc(&XrcDomain::live(xrcd)?.xrcd, &CompletionQueue::live(cq)?.cq) };
    }
    let srq = domain.pd.create_srq(options).map_err(|e| e.errno())?;
    let granted = srq.query().caps;
    (attr.max_wr, attr.max_sge) = (granted.max_wr, granted.max_sge);
    let id = srq.id();
    let c = ibv_srq {
        context,
        srq_context,
        pd,
        handle: id.0,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    // SAFETY: the domains were found live above.
    let (_pd, _xrcd) = unsafe { (Use::new(pd), xrc.map(|(xrcd, _)| Use::new(xrcd))) };
    let c = SharedReceiveQueue { c: FfiCell::new(c), srq, _pd, _xrcd, users: Users::default() }.into_raw();
    // SAFETY: a domain's context was set from an open context when the domain was made, and the program
    // closes the context only after the domain is destroyed.
    unsafe { Context::from_raw_ref(context) }.event_objects.srqs.add(id, c);
    Ok(c)
}

unsafe fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq, c_int> {
    const TYPE: u32 = 1;
    const PD: u32 = 2;
    const XRCD: u32 = 4;
    const CQ: u32 = 8;
    // SAFETY: `ibv_create_srq_ex` requires `init` to point to a struct that is the caller's alone during the
    // call.
    let init = unsafe { &mut *init };
    let kind = if init.comp_mask & TYPE != 0 { init.srq_type } else { SRQT_BASIC };
    let xrc = match kind {
        SRQT_BASIC if init.comp_mask & !(TYPE | PD) == 0 => None,
        SRQT_XRC if init.comp_mask == TYPE | PD | XRCD | CQ => Some((init.xrcd, init.cq)),
        SRQT_BASIC | SRQT_XRC => return Err(libc::EINVAL),
        _ => return Err(libc::EOPNOTSUPP),
    };
    if init.comp_mask & PD == 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: `make` checks that the objects are live. Fields of `init` that its `comp_mask` does not cover
    // are not passed.
    unsafe { make(init.pd, init.srq_context, &mut init.attr, xrc) }
}

pub(crate) unsafe extern "C" fn get_srq_num(c: *mut ibv_srq, out: *mut u32) -> c_int {
    // SAFETY: `ibv_get_srq_num` requires a live queue and a writable integer.
    unsafe { *out = SharedReceiveQueue::from_raw_ref(c).srq.id().0 };
    0
}

unsafe fn modify_srq(c: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> Result<(), c_int> {
    if mask & !(MAX_WR | LIMIT) != 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the entry point found a live queue at `c`; the C call requires `attr` to be
    // readable.
    let (srq, attr) = unsafe { (&SharedReceiveQueue::from_raw_ref(c).srq, &*attr) };
    let max_wr = if mask & MAX_WR != 0 { attr.max_wr } else { srq.query().caps.max_wr };
    if mask & LIMIT != 0 && attr.srq_limit > max_wr {
        return Err(libc::EINVAL);
    }
    if mask & MAX_WR != 0 {
        srq.resize(attr.max_wr).map_err(|e| e.errno())?;
    }
    if mask & LIMIT != 0 {
        srq.arm_limit(attr.srq_limit);
    }
    Ok(())
}

unsafe fn query_srq(c: *mut ibv_srq, out: *mut ibv_srq_attr) -> Result<(), c_int> {
    // SAFETY: the entry point found a live queue at `c`.
    let attr = unsafe { SharedReceiveQueue::from_raw_ref(c) }.srq.query();
    // SAFETY: `ibv_query_srq` requires `out` to point to a writable struct.
    unsafe {
        *out = ibv_srq_attr { max_wr: attr.caps.max_wr, max_sge: attr.caps.max_sge, srq_limit: attr.limit };
    }
    Ok(())
}

/// Destroys a queue (`ibv_destroy_srq`).
///
/// # Safety
/// `c` is live, and its context is open. The program gives up its pointer.
pub(crate) unsafe fn destroy_srq(c: *mut ibv_srq) -> Result<(), c_int> {
    // SAFETY: `c` and its context are live as the caller guarantees.
    unsafe {
        let queue = SharedReceiveQueue::from_raw_ref(c);
        if queue.users().any() {
            return Err(libc::EBUSY);
        }
        let context = Context::from_raw_ref((*c).context);
        context.event_objects.srqs.remove(queue.srq.id());
        context.unacked.wait(c.addr());
        drop(SharedReceiveQueue::from_raw(c));
    }
    Ok(())
}
