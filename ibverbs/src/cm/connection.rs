//! Connections: listening, asking, answering, ending.

use std::ffi::{c_int, c_uint, c_void};
use std::net::{Ipv4Addr, SocketAddr};

use urxe::verbs::cm::{ConnParam, RejReason};
use urxe::verbs::{AsyncEvent, QpType, Qpn};

use crate::abi::{rdma_cm_id, rdma_conn_param};
use crate::cm::id::{Id, Offered, answered, done, errno, own};
use crate::context::Context;

export! {
    "RDMACM_1.0":
        rdma_listen = listen,
        rdma_connect = connect,
        rdma_accept = accept,
        rdma_reject = reject,
        rdma_notify = notify,
        rdma_disconnect = disconnect;
    "RDMACM_1.2": rdma_establish = establish;
    "RDMACM_1.3": rdma_reject_ece = reject_ece;
}

/// For as many READs and atomics as there can be (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
const ALL: u8 = 0xff;
/// Retries that a queue pair can make.
const MOST_RETRIES: u8 = 7;

/// The caller's bytes.
///
/// # Safety
/// `data` has `len` bytes, or is null.
unsafe fn bytes(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

/// What a program asks for, or grants; `offered` is what the peer of a request has.
///
/// # Safety
/// The caller's struct, or null.
unsafe fn param(id: &Id, from: *const rdma_conn_param, offered: Option<Offered>) -> Result<ConnParam, c_int> {
    let c = id.as_c();
    // SAFETY: an id that was given out; the device of one that is bound stays open.
    let (verbs, qp) = unsafe { ((*c).verbs, (*c).qp) };
    if verbs.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: it is open.
    let most = unsafe { Context::of(verbs) }.nic.query_device().limits.max_qp_rd_atom;
    let most = most.min(u32::from(ALL - 1)) as u8;
    // SAFETY: the caller's struct, or null.
    let from = unsafe { from.as_ref() };
    let count = |asked: Option<u8>, offered: Option<u8>| match asked {
        Some(count) if count != ALL => (count <= most).then_some(count).ok_or(libc::EINVAL),
        _ => Ok(offered.map_or(most, |offered| offered.min(most))),
    };
    // SAFETY: the caller's bytes.
    let data = from.map(|p| unsafe { bytes(p.private_data, p.private_data_len) }).unwrap_or_default();
    let retries = |count: Option<u8>| count.unwrap_or(MOST_RETRIES).min(MOST_RETRIES);
    let external = from.filter(|_| qp.is_null());
    // SAFETY: the program's queue pair.
    let has_srq = unsafe { !qp.is_null() && !(*qp).srq.is_null() };
    Ok(ConnParam {
        private_data: data,
        responder_resources: count(
            from.map(|p| p.responder_resources),
            offered.map(|o| o.responder_resources),
        )?,
        initiator_depth: count(from.map(|p| p.initiator_depth), offered.map(|o| o.initiator_depth))?,
        flow_control: from.is_some_and(|p| p.flow_control != 0),
        retry_count: retries(from.map(|p| p.retry_count)),
        rnr_retry_count: retries(from.map(|p| p.rnr_retry_count)),
        srq: external.map_or(has_srq, |p| p.srq != 0),
        qp_num: external.map(|p| Qpn::new(p.qp_num)),
        qkey: None,
    })
}

unsafe extern "C" fn listen(c: *mut rdma_cm_id, backlog: c_int) -> c_int {
    let _uncancelled = crate::cancel::disable();
    let listen = || {
        // SAFETY: an id that was given out, or null.
        let id = unsafe { own(c) }?;
        if id.id.local_addr().is_none() {
            id.id.bind_addr(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).map_err(errno)?;
        }
        id.id.listen(usize::try_from(backlog).unwrap_or(0)).map_err(errno)?;
        id.refresh();
        Ok(())
    };
    done(listen())
}

unsafe extern "C-unwind" fn connect(c: *mut rdma_cm_id, with: *mut rdma_conn_param) -> c_int {
    let connect = |id: &Id| {
        // SAFETY: the caller's struct.
        let mut param = unsafe { param(id, with, None) }?;
        let mut data = id.connect_data();
        data.append(&mut param.private_data);
        param.private_data = data;
        id.id.connect(&param).map_err(errno)?;
        Ok(true)
    };
    // SAFETY: an id that was given out, or null.
    unsafe { answered(c, connect) }
}

unsafe extern "C-unwind" fn accept(c: *mut rdma_cm_id, with: *mut rdma_conn_param) -> c_int {
    let accept = |id: &Id| {
        // SAFETY: the caller's struct.
        let param = unsafe { param(id, with, id.offered()) }?;
        id.id.accept(&param).map_err(errno)?;
        id.note_state();
        // Nothing more comes of a service that has told its queue pair.
        Ok(id.id.qp_type() != Some(QpType::Ud))
    };
    // SAFETY: an id that was given out, or null.
    unsafe { answered(c, accept) }
}

unsafe extern "C" fn reject(c: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: an id that was given out, or null; and the caller's bytes.
    done(unsafe { own(c).and_then(|id| id.id.reject(&bytes(data, len)).map_err(errno)) })
}

unsafe extern "C" fn reject_ece(c: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: as of `reject`.
    done(unsafe {
        own(c).and_then(|id| id.id.reject_with(RejReason::VendorOption, &bytes(data, len)).map_err(errno))
    })
}

unsafe extern "C" fn establish(c: *mut rdma_cm_id) -> c_int {
    let _uncancelled = crate::cancel::disable();
    let establish = || {
        // SAFETY: an id that was given out, or null.
        let id = unsafe { own(c) }?;
        // SAFETY: the library's part of the struct. With a queue pair there is nothing left to do.
        if unsafe { !(*c).qp.is_null() } {
            return Err(libc::EINVAL);
        }
        id.id.establish().map_err(errno)
    };
    done(establish())
}

unsafe extern "C-unwind" fn disconnect(c: *mut rdma_cm_id) -> c_int {
    let disconnect = |id: &Id| {
        id.id.disconnect().map_err(errno)?;
        id.note_state();
        Ok(true)
    };
    // SAFETY: an id that was given out, or null.
    unsafe { answered(c, disconnect) }
}

/// `IBV_EVENT_COMM_EST`.
const ESTABLISHED: c_uint = 4;

unsafe extern "C" fn notify(c: *mut rdma_cm_id, event: c_uint) -> c_int {
    let _uncancelled = crate::cancel::disable();
    let notify = || {
        // SAFETY: an id that was given out, or null.
        let id = unsafe { own(c) }?;
        if event != ESTABLISHED {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program's queue pair, if it is one of the id's.
        let qpn = unsafe { (*c).qp.as_ref() }.map_or(Qpn::new(0), |qp| Qpn::new(qp.qp_num));
        id.id.notify(AsyncEvent::CommunicationEstablished(qpn)).map_err(errno)
    };
    done(notify())
}
