//! Ids that come with all that they need (`rdma_create_ep`).

use std::ffi::{c_int, c_uint};
use std::time::Duration;

use urxe::verbs::cm::CmEventKind;

use crate::abi::{ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_event, rdma_cm_id};
use crate::cm::addrinfo::PASSIVE;
use crate::cm::event::{ack_cm_event, get_cm_event};
use crate::cm::id::{RequestQueues, create, destroy_id, done, own};
use crate::cm::{address, options, queues};

export! {
    "RDMACM_1.0":
        rdma_create_ep = create_ep,
        rdma_destroy_ep = destroy_ep,
        rdma_get_request = get_request;
}

/// How long finding the way to a peer may take.
const RESOLVING: Duration = Duration::from_secs(2);

/// Binds or resolves a new id, and makes its queue pair.
unsafe fn furnish(
    c: *mut rdma_cm_id,
    to: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<(), c_int> {
    let qp_type = to.ai_qp_type as c_uint;
    // SAFETY: a new id, and what the caller gave.
    unsafe {
        if to.ai_flags & PASSIVE != 0 {
            address::bind(c, to.ai_src_addr)?;
            if let Some(init) = init {
                own(c)?.set_request_queues(RequestQueues { pd, init: ibv_qp_init_attr { qp_type, ..*init } });
            }
            return Ok(());
        }
        address::resolve(c, to.ai_src_addr, to.ai_dst_addr, RESOLVING)?;
        match to.ai_route_len {
            0 => address::route(c, RESOLVING)?,
            // What it is given is the path.
            len => options::set_route(c, to.ai_route, len)?,
        }
        if let Some(init) = init {
            init.qp_type = qp_type;
            queues::make_plain(c, pd, init)?;
        }
        if !to.ai_connect.is_null() && to.ai_connect_len != 0 {
            let data = std::slice::from_raw_parts(to.ai_connect.cast::<u8>(), to.ai_connect_len);
            own(c)?.set_connect_data(data);
        }
    }
    Ok(())
}

unsafe extern "C" fn create_ep(
    out: *mut *mut rdma_cm_id,
    to: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let create = || {
        // SAFETY: the caller's structs, or null.
        let (to, init) = unsafe { (to.as_ref().ok_or(libc::EINVAL)?, init.as_mut()) };
        if out.is_null() {
            return Err(libc::EINVAL);
        }
        let (space, qp_type) = (to.ai_port_space as c_uint, to.ai_qp_type as c_uint);
        // SAFETY: a new id, which nobody else has.
        unsafe {
            let c = create(std::ptr::null_mut(), std::ptr::null_mut(), space, Some(qp_type))?;
            if let Err(e) = furnish(c, to, pd, init) {
                destroy_ep(c);
                return Err(e);
            }
            *out = c;
        }
        Ok(())
    };
    done(create())
}

unsafe extern "C" fn destroy_ep(c: *mut rdma_cm_id) {
    // SAFETY: an id that was given out, or null, and what was made for it.
    unsafe {
        queues::destroy(c);
        queues::destroy_shared(c);
        destroy_id(c);
    }
}

unsafe extern "C" fn get_request(listener: *mut rdma_cm_id, out: *mut *mut rdma_cm_id) -> c_int {
    let get = || {
        // SAFETY: an id that was given out, or null.
        let of = unsafe { own(listener) }?;
        if !of.is_synchronous() || out.is_null() {
            return Err(libc::EINVAL);
        }
        of.drop_event();
        let mut event: *mut rdma_cm_event = std::ptr::null_mut();
        // SAFETY: the listener's own channel, and an event of it.
        unsafe {
            if get_cm_event((*listener).channel, &mut event) != 0 {
                return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
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
        Ok(())
    };
    done(get())
}
