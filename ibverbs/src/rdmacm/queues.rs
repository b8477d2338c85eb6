//! Queue pairs and shared receive queues of ids, and the completion queues for them if the program supplies
//! none.

use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

use urxe::verbs::QpState;

use crate::abi::{
    ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, rdma_cm_id,
};
use crate::channel::{CompChannel, ibv_create_comp_channel};
use crate::cq::destroy_cq;
use crate::create_cq;
use crate::create_qp::ibv_create_qp_ex;
use crate::errno::non_null;
use crate::object::{FfiObject, destroy_unused};
use crate::qp::{self, QueuePair, XRC_RECV, XRC_SEND, destroy_qp};
use crate::rdmacm::id::{errno, id_ref};
use crate::srq::{destroy_srq, ibv_create_srq_ex};

entry_points! {
    "RDMACM_1.0" minus_one rdma_create_qp(c: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr)
        = make_plain;
    "RDMACM_1.0" minus_one rdma_create_qp_ex(c: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) = make;
    "RDMACM_1.0" minus_one rdma_create_srq(c: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_srq_init_attr)
        = make_plain_srq;
    "RDMACM_1.0" minus_one rdma_create_srq_ex(c: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) = make_srq;
    "RDMACM_1.2" minus_one rdma_init_qp_attr(c: *mut rdma_cm_id, out: *mut ibv_qp_attr, mask: *mut c_int)
        = init_qp_attr;
}

export! {
    "RDMACM_1.0":
        rdma_destroy_qp = destroy,
        rdma_destroy_srq = destroy_id_srq;
}

/// Bits of `comp_mask` in `ibv_qp_init_attr_ex` and in `ibv_srq_init_attr_ex`.
const QP_PD: u32 = 1;
const QP_XRCD: u32 = 2;
const SRQ_TYPE: u32 = 1;
const SRQ_PD: u32 = 2;
const SRQ_XRCD: u32 = 4;
const SRQ_CQ: u32 = 8;
const SRQT_BASIC: c_uint = 0;
const SRQT_XRC: c_uint = 1;

/// Creates the completion queue of an id for sends or for receives, with a completion channel, unless it
/// exists. `cq` and `channel` point to the fields of the id for both.
///
/// # Safety
/// `c` is a live id that is bound to a device; `cq` and `channel` point to fields of it.
unsafe fn create_missing_cq(
    c: *mut rdma_cm_id,
    size: u32,
    cq: *mut *mut ibv_cq,
    channel: *mut *mut ibv_comp_channel,
) -> Result<(), c_int> {
    // SAFETY: the id is live, and its device, which stays open, is set. Only the library writes these fields.
    // The new channel is live, and is destroyed only if no queue was made that uses it.
    unsafe {
        if !(*cq).is_null() {
            return Ok(());
        }
        let size = c_int::try_from(size).map_err(|_| libc::EINVAL)?;
        let new = non_null(ibv_create_comp_channel((*c).verbs))?;
        *cq = create_cq::make((*c).verbs, size.max(1), c.cast(), new, 0, false, null_mut())
            .or_else(|e| destroy_unused::<CompChannel>(new).and(Err(e)))?;
        *channel = new;
    }
    Ok(())
}

/// Destroys the completion queues of an id.
///
/// # Safety
/// `c` is a live id.
unsafe fn destroy_cqs(c: *mut rdma_cm_id) {
    // SAFETY: only the library writes these fields, and clears them when a queue or channel is destroyed, so
    // those that are not null are live. One that is still in use refuses to be destroyed and is kept.
    unsafe {
        for (cq, channel) in [
            (&raw mut (*c).recv_cq, &raw mut (*c).recv_cq_channel),
            (&raw mut (*c).send_cq, &raw mut (*c).send_cq_channel),
        ] {
            if !(*cq).is_null() && destroy_cq(*cq).is_ok() {
                *cq = null_mut();
            }
            if !(*channel).is_null() && destroy_unused::<CompChannel>(*channel).is_ok() {
                *channel = null_mut();
            }
        }
    }
}

/// Returns the protection domain to use: `given`, which must be on the id's device, or the id's own domain if
/// `given` is null.
///
/// # Safety
/// `c` is a live id; `given` is a live domain, or null.
unsafe fn pd_for_id(c: *mut rdma_cm_id, given: *mut ibv_pd) -> Result<*mut ibv_pd, c_int> {
    // SAFETY: the caller passes a live id, and a live domain where `given` is not null.
    unsafe {
        match given.is_null() {
            true if (*c).pd.is_null() => Err(libc::EINVAL),
            true => Ok((*c).pd),
            false if (*given).context != (*c).verbs => Err(libc::EINVAL),
            false => Ok(given),
        }
    }
}

/// Creates the queue pair of an id (`rdma_create_qp_ex`).
///
/// # Safety
/// `c` is a live id, or null; `init` is a struct of the caller's alone, or null; objects in it that
/// `comp_mask` covers are live.
unsafe fn make(c: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> Result<(), c_int> {
    // SAFETY: null is checked. The device of a bound id stays open. Only the library writes the
    // fields of the id used here; queues in them are live. A new queue pair is live until `destroy_qp`.
    unsafe {
        let init = init.as_mut().ok_or(libc::EINVAL)?;
        let id = id_ref(c)?;
        if (*c).verbs.is_null() || !(*c).qp.is_null() {
            return Err(libc::EINVAL);
        }
        let given = if init.comp_mask & QP_PD != 0 { init.pd } else { null_mut() };
        init.pd = pd_for_id(c, given)?;
        init.comp_mask |= QP_PD;
        let is_other =
            |id_cq: *mut ibv_cq, given: *mut ibv_cq| !id_cq.is_null() && !given.is_null() && id_cq != given;
        if is_other((*c).send_cq, init.send_cq) || is_other((*c).recv_cq, init.recv_cq) {
            return Err(libc::EINVAL);
        }
        if init.qp_type == XRC_RECV && init.comp_mask & QP_XRCD == 0 {
            init.xrcd = id.process.xrcd((*c).verbs);
            init.comp_mask |= QP_XRCD;
        }
        // An XRC target has no sends; its receives, like those of an initiator, need no queue here: a target
        // receives through shared receive queues, an initiator not at all.
        let [has_sends, has_receives] =
            [init.qp_type != XRC_RECV, !matches!(init.qp_type, XRC_SEND | XRC_RECV)];
        if has_receives && init.recv_cq.is_null() {
            let (cq, channel) = (&raw mut (*c).recv_cq, &raw mut (*c).recv_cq_channel);
            create_missing_cq(c, init.cap.max_recv_wr, cq, channel)?;
        }
        if has_sends && init.send_cq.is_null() {
            let (cq, channel) = (&raw mut (*c).send_cq, &raw mut (*c).send_cq_channel);
            create_missing_cq(c, init.cap.max_send_wr, cq, channel)?;
        }
        if init.send_cq.is_null() {
            init.send_cq = (*c).send_cq;
        }
        if init.recv_cq.is_null() {
            init.recv_cq = (*c).recv_cq;
        }
        if init.srq.is_null() {
            init.srq = (*c).srq;
        }
        let qp = non_null(ibv_create_qp_ex((*c).verbs, init)).inspect_err(|_| destroy_cqs(c))?;
        if let Err(e) = id.id.attach_qp(&QueuePair::from_raw_ref(qp).qp) {
            let _ = destroy_qp(qp);
            destroy_cqs(c);
            return Err(e.errno());
        }
        (*qp).state = QueuePair::from_raw_ref(qp).qp.state() as u32;
        (*c).qp = qp;
        (*c).pd = init.pd;
    }
    Ok(())
}

/// Creates the queue pair of an id from basic attributes (`rdma_create_qp`).
///
/// # Safety
/// `c` is a live id, or null; `pd` is a live domain, or null; `init` is a struct of the caller's alone, or
/// null; objects in it are live, or null.
pub(super) unsafe fn make_plain(
    c: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), c_int> {
    // SAFETY: the caller guarantees a struct or null.
    let init = unsafe { init.as_mut() }.ok_or(libc::EINVAL)?;
    // SAFETY: the struct consists of integers and raw pointers, for which zeros are valid.
    let zeros: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    let mut init_ex = zeros;
    let plain = (&raw mut init_ex).cast::<ibv_qp_init_attr>();
    // SAFETY: `init_ex` begins with the fields of `ibv_qp_init_attr` (asserted in `create_qp.rs`). `c` is a
    // live id or null as the caller guarantees, and `init_ex` names the same objects as `init`, which are
    // live or null.
    unsafe {
        *plain = *init;
        // Set after the copy: `comp_mask` overlaps the padding at the end of `ibv_qp_init_attr`.
        (init_ex.comp_mask, init_ex.pd) = (QP_PD, pd);
        make(c, &mut init_ex)?;
        *init = *(&raw const init_ex).cast::<ibv_qp_init_attr>();
    }
    Ok(())
}

pub(super) unsafe extern "C" fn destroy(c: *mut rdma_cm_id) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `rdma_destroy_qp` requires a live id; null is checked. Its queue pair is live, and destroyed
    // once, as the field is cleared first.
    unsafe {
        let Ok(id) = id_ref(c) else { return };
        let qp = std::mem::replace(&mut (*c).qp, null_mut());
        if !qp.is_null() {
            id.id.detach_qp();
            let _ = destroy_qp(qp);
        }
        if (*c).srq.is_null() {
            destroy_cqs(c);
        }
    }
}

/// Creates the shared receive queue of an id (`rdma_create_srq_ex`).
///
/// # Safety
/// `c` is a live id, or null; `init` is a struct of the caller's alone, or null; objects in it that
/// `comp_mask` covers are live.
unsafe fn make_srq(c: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> Result<(), c_int> {
    // SAFETY: null is checked. The device of a bound id stays open. Only the library writes the
    // fields of the id used here; queues in them are live.
    unsafe {
        let init = init.as_mut().ok_or(libc::EINVAL)?;
        let id = id_ref(c)?;
        if (*c).verbs.is_null() || !(*c).srq.is_null() {
            return Err(libc::EINVAL);
        }
        let given = if init.comp_mask & SRQ_PD != 0 { init.pd } else { null_mut() };
        init.pd = pd_for_id(c, given)?;
        init.comp_mask |= SRQ_PD;
        let is_xrc = init.comp_mask & SRQ_TYPE != 0 && init.srq_type == SRQT_XRC;
        if is_xrc && (init.comp_mask & SRQ_CQ == 0 || init.cq.is_null()) {
            let (cq, channel) = (&raw mut (*c).recv_cq, &raw mut (*c).recv_cq_channel);
            create_missing_cq(c, init.attr.max_wr, cq, channel)?;
            init.cq = (*c).recv_cq;
            init.comp_mask |= SRQ_CQ;
        }
        if is_xrc && init.comp_mask & SRQ_XRCD == 0 {
            init.xrcd = id.process.xrcd((*c).verbs);
            init.comp_mask |= SRQ_XRCD;
        }
        (*c).srq = non_null(ibv_create_srq_ex((*c).verbs, init)).inspect_err(|_| destroy_cqs(c))?;
        (*c).pd = init.pd;
    }
    Ok(())
}

unsafe fn make_plain_srq(
    c: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> Result<(), c_int> {
    // SAFETY: the struct consists of integers and raw pointers, for which zeros are valid.
    let zeros: ibv_srq_init_attr_ex = unsafe { std::mem::zeroed() };
    // SAFETY: `rdma_create_srq` requires a struct that is the caller's alone during the call; null is
    // checked.
    let init = unsafe { init.as_mut() }.ok_or(libc::EINVAL)?;
    // An XRC target receives into an XRC shared receive queue.
    // SAFETY: `rdma_create_srq` requires a live id; `id_ref` checks for null before the field is read,
    // which does not change.
    let is_xrc = unsafe {
        id_ref(c)?;
        (*c).qp_type == XRC_RECV
    };
    let srq_type = if is_xrc { SRQT_XRC } else { SRQT_BASIC };
    let (srq_context, attr, comp_mask) = (init.srq_context, init.attr, SRQ_PD | SRQ_TYPE);
    let mut init_ex = ibv_srq_init_attr_ex { srq_context, attr, comp_mask, pd, srq_type, ..zeros };
    // SAFETY: `c` is a live id, and `pd` a live domain or null, as `rdma_create_srq` requires.
    unsafe { make_srq(c, &mut init_ex) }?;
    init.attr = init_ex.attr;
    Ok(())
}

pub(super) unsafe extern "C" fn destroy_id_srq(c: *mut rdma_cm_id) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `rdma_destroy_srq` requires a live id; null is checked. Its queue is live, and destroyed once,
    // as the field is cleared first.
    unsafe {
        if id_ref(c).is_err() {
            return;
        }
        let srq = std::mem::replace(&mut (*c).srq, null_mut());
        if !srq.is_null() {
            let _ = destroy_srq(srq);
        }
        if (*c).qp.is_null() {
            destroy_cqs(c);
        }
    }
}

unsafe fn init_qp_attr(c: *mut rdma_cm_id, out: *mut ibv_qp_attr, mask: *mut c_int) -> Result<(), c_int> {
    // SAFETY: `rdma_init_qp_attr` requires a live id and a struct that the caller has partly filled; null
    // is checked.
    let (id, wanted) = unsafe { (id_ref(c)?, out.as_ref().ok_or(libc::EINVAL)?.qp_state) };
    let state: QpState = qp::state(wanted).ok_or(libc::EINVAL)?;
    let attr = id.id.init_qp_attr(state).map_err(errno)?;
    // SAFETY: `out` was checked for null; both point to the caller's writable structs.
    unsafe { (*out, *mask) = qp::attr_to_c(&attr) };
    Ok(())
}
