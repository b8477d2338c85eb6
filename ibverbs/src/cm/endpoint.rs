//! Ids that come with all that they need (`rdma_create_ep`).

use std::ffi::{c_int, c_uint};

use urxe::verbs::cm::CmEventKind;

use crate::abi::{ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_event, rdma_cm_id};
use crate::cancel::{Call, Step, blocking};
use crate::cm::address::{self, resolve_addr, resolve_route};
use crate::cm::addrinfo::PASSIVE;
use crate::cm::event::{ack_cm_event, next_cm_event};
use crate::cm::id::{RequestQueues, create, destroy_id, last, own};
use crate::cm::options::set_route;
use crate::cm::queues;
use crate::errno::minus_one;

export! {
    "RDMACM_1.0":
        rdma_create_ep = create_ep,
        rdma_destroy_ep = destroy_ep,
        rdma_get_request = get_request;
}

/// How long finding the way to a peer may take, in milliseconds.
const RESOLVING: c_int = 2000;

/// A new id; of one that listens, bound and with all that it needs.
unsafe fn begin(
    out: *mut *mut rdma_cm_id,
    to: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<*mut rdma_cm_id, c_int> {
    // SAFETY: the caller's structs, or null.
    let (to, init) = unsafe { (to.as_ref().ok_or(libc::EINVAL)?, init.as_ref()) };
    if out.is_null() {
        return Err(libc::EINVAL);
    }
    let (space, qp_type) = (to.ai_port_space as c_uint, to.ai_qp_type as c_uint);
    // SAFETY: a new id, which nobody else has.
    unsafe {
        let c = create(std::ptr::null_mut(), std::ptr::null_mut(), space, Some(qp_type))?;
        if to.ai_flags & PASSIVE != 0 {
            if let Err(e) = address::bind(c, to.ai_src_addr) {
                destroy_ep(c);
                return Err(e);
            }
            if let Some(init) = init {
                own(c)?.set_request_queues(RequestQueues { pd, init: ibv_qp_init_attr { qp_type, ..*init } });
            }
        }
        Ok(c)
    }
}

/// The queue pair and the private data of an id that knows the way to its peer.
unsafe fn furnish(
    c: *mut rdma_cm_id,
    to: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<(), c_int> {
    // SAFETY: a new id, and what the caller gave.
    unsafe {
        if let Some(init) = init {
            init.qp_type = to.ai_qp_type as c_uint;
            queues::make_plain(c, pd, init)?;
        }
        if !to.ai_connect.is_null() && to.ai_connect_len != 0 {
            let data = std::slice::from_raw_parts(to.ai_connect.cast::<u8>(), to.ai_connect_len);
            own(c)?.set_connect_data(data);
        }
    }
    Ok(())
}

/// A thread that is cancelled in this call leaves the id behind.
unsafe extern "C-unwind" fn create_ep(
    out: *mut *mut rdma_cm_id,
    to: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's structs, or null; a new id, which nobody else has.
    unsafe {
        let c = match blocking(|_| Step::Done(begin(out, to, pd, init))) {
            Ok(c) => c,
            Err(e) => return minus_one(e),
        };
        if (*to).ai_flags & PASSIVE == 0 {
            let found = resolve_addr(c, (*to).ai_src_addr, (*to).ai_dst_addr, RESOLVING) == 0
                && match (*to).ai_route_len {
                    0 => resolve_route(c, RESOLVING) == 0,
                    // The program gives the path.
                    len => set_route(c, (*to).ai_route, len) == 0,
                };
            let furnished = match found {
                true => blocking(|_| Step::Done(furnish(c, &*to, pd, init.as_mut()))),
                false => Err(last()),
            };
            if let Err(e) = furnished {
                destroy_ep(c);
                return minus_one(e);
            }
        }
        *out = c;
    }
    0
}

unsafe extern "C" fn destroy_ep(c: *mut rdma_cm_id) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: an id that was given out, or null, and what was made for it.
    unsafe {
        queues::destroy(c);
        queues::destroy_shared(c);
        destroy_id(c);
    }
}

unsafe extern "C-unwind" fn get_request(listener: *mut rdma_cm_id, out: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: as the caller vouches.
    blocking(|call| match unsafe { next_request(listener, out, call) } {
        Ok(true) => Step::Done(0),
        Ok(false) => Step::Wait,
        Err(e) => Step::Done(minus_one(e)),
    })
}

/// An attempt at [`get_request`]; false if the call is to wait.
unsafe fn next_request(
    listener: *mut rdma_cm_id,
    out: *mut *mut rdma_cm_id,
    call: &mut Call,
) -> Result<bool, c_int> {
    // SAFETY: an id that was given out, or null.
    let of = unsafe { own(listener) }?;
    if !of.is_synchronous() || out.is_null() {
        return Err(libc::EINVAL);
    }
    of.drop_event();
    let mut event: *mut rdma_cm_event = std::ptr::null_mut();
    // SAFETY: the listener's own channel, and an event of it.
    unsafe {
        match next_cm_event((*listener).channel, &mut event, call) {
            Step::Wait => return Ok(false),
            Step::Done(0) => {}
            Step::Done(_) => return Err(last()),
        }
        let (kind, status, id) = ((*event).event, (*event).status, (*event).id);
        if status != 0 || kind != CmEventKind::ConnectRequest as c_uint {
            ack_cm_event(event);
            return Err(if status < 0 { -status } else { libc::EINVAL });
        }
        if let Some(mut with) = of.request_queues()
            && let Err(e) = queues::make_plain(id, with.pd, &mut with.init)
        {
            ack_cm_event(event);
            destroy_id(id);
            return Err(e);
        }
        // It goes with the next call on the id, and until then the listener waits for that.
        (*id).event = event;
        *out = id;
    }
    Ok(true)
}
