//! Creation of queue pairs (`ibv_create_qp`, `ibv_create_qp_ex`).

use std::ffi::c_int;

use urxe::verbs::{QpOptions, QpState, QpType, RecvCaps, SendCaps};

use crate::abi::{
    ibv_context, ibv_pd, ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_sge, ibv_xrcd,
};
use crate::context::Context;
use crate::cq::CompletionQueue;
use crate::object::{FfiCell, FfiObject, Session, Use};
use crate::pd::{ProtectionDomain, XrcDomain};
use crate::qp::{self, QueuePair};
use crate::qp_ex;
use crate::srq::SharedReceiveQueue;

entry_points! {
    "IBVERBS_1.1" null ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp
        => make(pd, std::ptr::null_mut(), &mut *init, None);
    null ibv_create_qp_ex(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp
        = create_qp_ex;
}

const _: () = assert!(ibv_qp_init_attr_ex::LAYOUT.begins_with(&ibv_qp_init_attr::LAYOUT));

/// Creates a queue pair: an XRC target in `xrcd`, any other type in `pd` with completion queues. `send_ops`
/// is the set of operations that the program may post through the `ibv_wr_*` functions, or `None` if it uses
/// `ibv_post_send` alone.
///
/// # Safety
/// The pointers are the program's arguments; live objects among them stay so during the call.
unsafe fn make(
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    init: &mut ibv_qp_init_attr,
    send_ops: Option<u64>,
) -> Result<*mut ibv_qp, c_int> {
    let qp_type = qp::qp_type(init.qp_type).ok_or(libc::EOPNOTSUPP)?;
    // SAFETY: the struct consists of integers, raw pointers, optional function pointers, a mutex and a
    // condition variable, for all of which zeros are valid.
    let mut c: ibv_qp_ex = unsafe { std::mem::zeroed() };
    if send_ops.is_some_and(|wanted| !qp_ex::set_functions(&mut c, qp_type, wanted)) {
        return Err(libc::EOPNOTSUPP);
    }
    let cap = &mut init.cap;
    let has_no_receive_queue = !init.srq.is_null() || matches!(qp_type, QpType::XrcSend | QpType::XrcRecv);
    if has_no_receive_queue {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    // A hardware queue stores inline data in the space of the scatter/gather elements, and some programs rely
    // on at least that much.
    const SGE_LEN: u32 = size_of::<ibv_sge>() as u32;
    const MIN_INLINE: u32 = 16 * SGE_LEN;
    cap.max_inline_data = cap.max_inline_data.max(cap.max_send_sge.saturating_mul(SGE_LEN).min(MIN_INLINE));
    let options = QpOptions::default()
        .qp_type(qp_type)
        .send(SendCaps {
            max_wr: cap.max_send_wr,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
        })
        .recv(RecvCaps { max_wr: cap.max_recv_wr, max_sge: cap.max_recv_sge })
        .signal_all(init.sq_sig_all != 0);
    // SAFETY: the program must not destroy the objects during the call. Their liveness is checked, other than
    // of a null `srq`.
    let (made, context, held_pd, held_xrcd, held_srq) = unsafe {
        let srq = if init.srq.is_null() { None } else { Some(SharedReceiveQueue::live(init.srq)?) };
        let held_srq = Use::given(init.srq);
        if qp_type == QpType::XrcRecv {
            let domain = XrcDomain::live(xrcd)?;
            (domain.xrcd.create_target_qp(), (*xrcd).context, None, Use::given(xrcd), held_srq)
        } else {
            // An XRC initiator receives nothing and needs no completion queue for receives.
            let recv_cq = match init.recv_cq.is_null() && qp_type == QpType::XrcSend {
                true => init.send_cq,
                false => init.recv_cq,
            };
            let domain = ProtectionDomain::live(pd)?;
            let send_cq = &CompletionQueue::live(init.send_cq)?.cq;
            let recv_cq = &CompletionQueue::live(recv_cq)?.cq;
            let options = match srq {
                Some(srq) => options.srq(&srq.srq),
                None => options,
            };
            let made = domain.pd.create_qp(send_cq, recv_cq, &options);
            (made, (*pd).context, Use::given(pd), None, held_srq)
        }
    };
    let qp = made.map_err(|e| e.errno())?;
    let qpn = qp.qpn();
    c.qp_base = ibv_qp {
        context,
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: qpn.get(),
        qp_num: qpn.get(),
        state: QpState::Reset as u32,
        qp_type: init.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let (c, session) = (FfiCell::new(c), Session::default());
    let c = QueuePair { c, session, qp, init: *init, _held: (held_pd, held_xrcd, held_srq) }.into_raw();
    // SAFETY: `context` is that of a domain that was found live, and the program closes a context only after
    // it has destroyed the objects in it.
    unsafe { Context::from_raw_ref(context) }.event_objects.qps.add(qpn, c);
    Ok(c)
}

unsafe fn create_qp_ex(
    _context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, c_int> {
    const PD: u32 = 1;
    const XRCD: u32 = 2;
    const CREATE_FLAGS: u32 = 4;
    const SEND_OPS: u32 = 64;
    const BLOCK_SELF_MCAST_LB: u32 = 1 << 1;
    // SAFETY: `ibv_create_qp_ex` requires `init` to point to a struct that is the caller's alone during the
    // call.
    let init = unsafe { &mut *init };
    let (mask, flags) = (init.comp_mask, init.create_flags);
    let flags = if mask & CREATE_FLAGS != 0 { flags } else { 0 };
    if mask & !(PD | XRCD | CREATE_FLAGS | SEND_OPS) != 0 || flags & !BLOCK_SELF_MCAST_LB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let xrcd = if mask & XRCD != 0 { init.xrcd } else { std::ptr::null_mut() };
    let pd = if mask & PD != 0 { init.pd } else { std::ptr::null_mut() };
    let send_ops = (mask & SEND_OPS != 0).then_some(init.send_ops_flags);
    // SAFETY: the struct begins with the fields of `ibv_qp_init_attr` (asserted above), and no others are
    // used meanwhile. `make` checks the objects; those that `comp_mask` does not cover are passed as null.
    let made = unsafe { make(pd, xrcd, &mut *std::ptr::from_mut(init).cast(), send_ops) }?;
    if flags != 0 {
        // SAFETY: `made` was returned by `make` and is not known to the program yet.
        unsafe { QueuePair::from_raw_ref(made) }.qp.block_multicast_loopback();
    }
    Ok(made)
}
