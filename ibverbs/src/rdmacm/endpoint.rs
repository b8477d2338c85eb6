//! Endpoints: ids created together with their resources (`rdma_create_ep`).

use std::ffi::{c_int, c_uint};

use urxe::verbs::cm::CmEventKind;

use crate::abi::{ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_event, rdma_cm_id};
use crate::cancel::{Call, blocking};
use crate::errno::{self, minus_one};
use crate::rdmacm::address::{self, rdma_resolve_addr, rdma_resolve_route};
use crate::rdmacm::addrinfo::PASSIVE;
use crate::rdmacm::create::{create, destroy_id};
use crate::rdmacm::event::{ack_cm_event, get_cm_event};
use crate::rdmacm::id::{RequestQueues, id_ref};
use crate::rdmacm::options::set_route;
use crate::rdmacm::queues;

waiting_entry_points! {
    "RDMACM_1.0" rdma_get_request(listener: *mut rdma_cm_id, out: *mut *mut rdma_cm_id) -> c_int
        = get_request;
}

export! {
    "RDMACM_1.0":
        rdma_create_ep = create_ep,
        rdma_destroy_ep = destroy_ep;
}

/// Timeout of address resolution, and of route resolution, in milliseconds.
const RESOLVE_TIMEOUT_MS: c_int = 2000;

/// Creates an id. Also binds a passive id, and stores the queue pair attributes for its connections.
///
/// # Safety
/// `to` and `init` are readable structs, or null; the addresses in `to` are complete.
unsafe fn create_unresolved(
    out: *mut *mut rdma_cm_id,
    to: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<*mut rdma_cm_id, c_int> {
    // SAFETY: the caller guarantees that both are null or point to structs that are readable during the
    // call.
    let (to, init) = unsafe { (to.as_ref().ok_or(libc::EINVAL)?, init.as_ref()) };
    if out.is_null() {
        return Err(libc::EINVAL);
    }
    let (space, qp_type) = (to.ai_port_space as c_uint, to.ai_qp_type as c_uint);
    // SAFETY: `create` returns a live id, which no other thread knows; the source address in `to` is complete
    // or null.
    unsafe {
        let c = create(std::ptr::null_mut(), std::ptr::null_mut(), space, Some(qp_type))?;
        if to.ai_flags & PASSIVE != 0 {
            if let Err(e) = address::bind(c, to.ai_src_addr) {
                destroy_ep(c);
                return Err(e);
            }
            if let Some(init) = init {
                let init = ibv_qp_init_attr { qp_type, ..*init };
                id_ref(c)?.state().requests = Some(RequestQueues { pd, init });
            }
        }
        Ok(c)
    }
}

/// Creates the queue pair of an id whose route is resolved, and stores the connect data.
///
/// # Safety
/// `c` is a live id; `pd` is a live domain, or null; objects in `init` are live, or null; the connect data in
/// `to` is readable.
unsafe fn create_resources(
    c: *mut rdma_cm_id,
    to: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<(), c_int> {
    // SAFETY: the caller meets the requirements of `make_plain`. The connect data is not null, has the length
    // given next to it, and is copied.
    unsafe {
        if let Some(init) = init {
            init.qp_type = to.ai_qp_type as c_uint;
            queues::make_plain(c, pd, init)?;
        }
        if !to.ai_connect.is_null() && to.ai_connect_len != 0 {
            let data = std::slice::from_raw_parts(to.ai_connect.cast::<u8>(), to.ai_connect_len);
            id_ref(c)?.state().connect_data = data.to_vec();
        }
    }
    Ok(())
}

/// Creates an id together with its resources (`rdma_create_ep`). If the thread is cancelled in this call, the
/// id leaks.
unsafe extern "C-unwind" fn create_ep(
    out: *mut *mut rdma_cm_id,
    to: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    inject_fault!(rdma_create_ep, minus_one);
    // SAFETY: `rdma_create_ep` requires readable or null structs; `create_unresolved` fails if `out` or `to`
    // is null, so both are valid afterwards. Only this thread has a pointer to the new id. This frame holds
    // pointers only, with nothing to drop while a call waits.
    unsafe {
        let c = match blocking(|_| create_unresolved(out, to, pd, init)) {
            Ok(c) => c,
            Err(e) => return minus_one(e),
        };
        if (*to).ai_flags & PASSIVE == 0 {
            let resolved = rdma_resolve_addr(c, (*to).ai_src_addr, (*to).ai_dst_addr, RESOLVE_TIMEOUT_MS)
                == 0
                && match (*to).ai_route_len {
                    0 => rdma_resolve_route(c, RESOLVE_TIMEOUT_MS) == 0,
                    // The program supplies the path.
                    len => set_route(c, (*to).ai_route, len) == 0,
                };
            let created = match resolved {
                true => blocking(|_| create_resources(c, &*to, pd, init.as_mut())),
                false => Err(errno::get()),
            };
            if let Err(e) = created {
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
    // SAFETY: `rdma_destroy_ep` requires a live id; null is checked. The three calls destroy its queue pair
    // and queues before the id itself.
    unsafe {
        queues::destroy(c);
        queues::destroy_id_srq(c);
        let _ = destroy_id(c);
    }
}

unsafe fn get_request(
    call: &mut Call,
    listener: *mut rdma_cm_id,
    out: *mut *mut rdma_cm_id,
) -> Result<(), c_int> {
    // SAFETY: `rdma_get_request` requires a live id, which the program does not destroy during the call; null
    // is checked.
    let listener_id = unsafe { id_ref(listener) }?;
    if !listener_id.is_synchronous() || out.is_null() {
        return Err(libc::EINVAL);
    }
    listener_id.ack_kept_event();
    let mut event: *mut rdma_cm_event = std::ptr::null_mut();
    // SAFETY: the channel is the synchronous listener's own and lives as long as it. A returned event is live
    // until it is acknowledged, and so is the new id of a connection request until it is destroyed; `out` is
    // not null.
    unsafe {
        get_cm_event(call, (*listener).channel, &mut event)?;
        let (kind, status, id) = ((*event).event, (*event).status, (*event).id);
        if status != 0 || kind != CmEventKind::ConnectRequest as c_uint {
            ack_cm_event(event)?;
            return Err(if status < 0 { -status } else { libc::EINVAL });
        }
        let requests = listener_id.state().requests;
        if let Some(mut with) = requests
            && let Err(e) = queues::make_plain(id, with.pd, &mut with.init)
        {
            ack_cm_event(event)?;
            let _ = destroy_id(id);
            return Err(e);
        }
        // The event is acknowledged by the next call on the new id; until then, destroying the listener waits
        // for that.
        (*id).event = event;
        *out = id;
    }
    Ok(())
}
