//! Shared receive queues (`ibv_srq`).

use std::ffi::{c_int, c_uint, c_void};

use urxe::verbs::{RecvCaps, Srq, SrqOptions};

use crate::abi::{
    ibv_context, ibv_cq, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd,
};
use crate::context::{Context, is_inherited};
use crate::cq::CompletionQueue;
use crate::errno::null;
use crate::event_objects::address_of;
use crate::object::{FfiCell, FfiObject, Users, ffi_object};
use crate::pd::{ProtectionDomain, XrcDomain};

export! {
    "IBVERBS_1.1":
        ibv_create_srq = create_srq;
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
    /// XRC domain; null for a basic shared receive queue.
    xrcd: FfiCell<*mut ibv_xrcd>,
    pub users: Users,
}

ffi_object! { SharedReceiveQueue { c: ibv_srq } [context, handle] }

/// Creates a shared receive queue, of the XRC type if `xrc` gives an XRC domain and a completion queue.
/// Returns null with `errno` set on failure.
///
/// # Safety
/// The pointers are the program's arguments; live objects among them stay so during the call.
unsafe fn make(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
) -> *mut ibv_srq {
    let is_live = |(xrcd, cq)| XrcDomain::is_live(xrcd) && CompletionQueue::is_live(cq);
    if !ProtectionDomain::is_live(pd) || !xrc.is_none_or(is_live) {
        return null(libc::EINVAL);
    }
    // SAFETY: `is_live` found a live `ProtectionDomain` at `pd`, which the program must not deallocate
    // during the call.
    let domain = unsafe { ProtectionDomain::from_raw_ref(pd) };
    let caps = RecvCaps { max_wr: attr.max_wr, max_sge: attr.max_sge };
    let made = match xrc {
        None => domain.pd.create_srq(caps),
        // SAFETY: `is_live` found live objects of both types, which the program must not destroy during the
        // call.
        Some((xrcd, cq)) => unsafe {
            domain.pd.create_srq(
                SrqOptions::new(caps)
                    .xrc(&XrcDomain::from_raw_ref(xrcd).xrcd, &CompletionQueue::from_raw_ref(cq).cq),
            )
        },
    };
    let srq = match made {
        Ok(srq) => srq,
        Err(e) => return null(e.errno()),
    };
    let granted = srq.query().caps;
    (attr.max_wr, attr.max_sge) = (granted.max_wr, granted.max_sge);
    domain.users.add();
    let xrcd = xrc.map_or(std::ptr::null_mut(), |(xrcd, _)| xrcd);
    if !xrcd.is_null() {
        // SAFETY: `is_live` found a live XRC domain at `xrcd`, which the program must not close during the
        // call.
        unsafe { XrcDomain::from_raw_ref(xrcd) }.users.add();
    }
    let id = srq.id();
    let context = domain.context();
    let c = ibv_srq {
        context,
        srq_context,
        pd,
        handle: id.0,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let c = SharedReceiveQueue { c: FfiCell::new(c), srq, xrcd: FfiCell::new(xrcd), users: Users::default() }
        .into_raw();
    // SAFETY: a domain's context was set from an open context when the domain was made, and the program
    // closes the context only after the domain is destroyed.
    unsafe { Context::from_raw_ref(context) }.event_objects.srqs.add(id, c);
    c
}

unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    let _uncancelled = crate::cancel::disable();
    inject_fault!(ibv_create_srq, null);
    // SAFETY: `ibv_create_srq` requires `init` to point to a struct that is the caller's alone during the
    // call, and `make` checks `pd`.
    unsafe { make(pd, (*init).srq_context, &mut (*init).attr, None) }
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let _uncancelled = crate::cancel::disable();
    inject_fault!(ibv_create_srq_ex, null);
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
        SRQT_BASIC | SRQT_XRC => return null(libc::EINVAL),
        _ => return null(libc::EOPNOTSUPP),
    };
    if init.comp_mask & PD == 0 {
        return null(libc::EINVAL);
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

pub(crate) unsafe extern "C" fn modify_srq(c: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    let _uncancelled = crate::cancel::disable();
    if mask & !(MAX_WR | LIMIT) != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the `entry_points` wrapper found a live queue at `c`; the C call requires `attr` to be
    // readable.
    let (srq, attr) = unsafe { (&SharedReceiveQueue::from_raw_ref(c).srq, &*attr) };
    let max_wr = if mask & MAX_WR != 0 { attr.max_wr } else { srq.query().caps.max_wr };
    if mask & LIMIT != 0 && attr.srq_limit > max_wr {
        return libc::EINVAL;
    }
    if mask & MAX_WR != 0
        && let Err(e) = srq.resize(attr.max_wr)
    {
        return e.errno();
    }
    if mask & LIMIT != 0 {
        srq.arm_limit(attr.srq_limit);
    }
    0
}

pub(crate) unsafe extern "C" fn query_srq(c: *mut ibv_srq, out: *mut ibv_srq_attr) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: the `entry_points` wrapper found a live queue at `c`.
    let attr = unsafe { SharedReceiveQueue::from_raw_ref(c) }.srq.query();
    // SAFETY: `ibv_query_srq` requires `out` to point to a writable struct.
    unsafe {
        *out = ibv_srq_attr { max_wr: attr.caps.max_wr, max_sge: attr.caps.max_sge, srq_limit: attr.limit };
    }
    0
}

pub(crate) unsafe extern "C" fn destroy_srq(c: *mut ibv_srq) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `c` is live (checked by the `entry_points` wrapper, or made by librdmacm here), and its context
    // is open, or a copy of the parent's after fork.
    if unsafe { is_inherited((*c).context) } {
        return 0;
    }
    // SAFETY: `c` is live and the program stops using it with this call. Its context, protection domain and
    // XRC domain are live too: this queue was counted among their users and prevented their destruction.
    unsafe {
        let queue = SharedReceiveQueue::from_raw_ref(c);
        if queue.users.any() {
            return libc::EBUSY;
        }
        let (context, pd, xrcd) = (Context::from_raw_ref((*c).context), (*c).pd, *queue.xrcd.get());
        context.event_objects.srqs.remove(queue.srq.id());
        context.unacked.wait(address_of(c));
        drop(SharedReceiveQueue::from_raw(c));
        ProtectionDomain::release(pd);
        if !xrcd.is_null() {
            XrcDomain::from_raw_ref(xrcd).users.remove();
        }
    }
    0
}
