//! Address handles, and paths as C writes them.

use std::ffi::c_int;

use urxe::transport::AddressVector;
use urxe::verbs::{Ah, Gid, grh};

use crate::abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_wc};
use crate::context::{Context, is_inherited};
use crate::domain::ProtectionDomain;
use crate::errno::{minus_one, null};
use crate::object::{Object, Shown};
use crate::queue::WC_GRH;

export! {
    "IBVERBS_1.1":
        ibv_create_ah = create_ah,
        ibv_create_ah_from_wc = create_ah_from_wc,
        ibv_init_ah_from_wc = init_ah_from_wc;
}

#[repr(C)]
pub struct Handle {
    c: Shown<ibv_ah>,
    pub ah: Ah,
}

// SAFETY: it is laid out so.
unsafe impl Object for Handle {
    type C = ibv_ah;

    fn handle(c: &ibv_ah) -> Option<u32> {
        Some(c.handle)
    }
}

/// The neighbour that a LID stands for ([`urxe::verbs::lid_of`]).
fn neighbour(context: &Context, lid: u16) -> Option<AddressVector> {
    let sgid_index = context.nic.main_gid().filter(|_| lid != 0)?;
    let Gid(mut bytes) = context.nic.query_gid(sgid_index.into())?;
    bytes[14..].copy_from_slice(&lid.to_be_bytes());
    Some(AddressVector { dgid: Gid(bytes), sgid_index, hop_limit: 64, traffic_class: 0, flow_label: 0 })
}

/// The path of an address.
pub fn path(context: &Context, attr: &ibv_ah_attr) -> Option<AddressVector> {
    if attr.is_global == 0 {
        return neighbour(context, attr.dlid);
    }
    let route = &attr.grh;
    Some(AddressVector {
        dgid: Gid(route.dgid.raw),
        sgid_index: route.sgid_index,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        flow_label: route.flow_label & 0xf_ffff,
    })
}

/// The address of a path.
pub fn attr(path: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: path.dgid.0 },
            flow_label: path.flow_label,
            sgid_index: path.sgid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: 1,
    }
}

unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    let _uncancelled = crate::cancel::disable();
    if !ProtectionDomain::is_known(pd) {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's struct.
    let attr = unsafe { &*attr };
    // SAFETY: a domain that was given out, of an open context.
    let context = unsafe { Context::of((*pd).context) };
    let Some(path) = path(context, attr).filter(|_| attr.port_num == 1) else { return null(libc::EINVAL) };
    // SAFETY: a domain that was given out.
    let domain = unsafe { ProtectionDomain::of(pd) };
    match domain.pd.create_ah(&path) {
        Ok(ah) => {
            domain.users.add();
            Handle { c: Shown::new(ibv_ah { context: domain.context(), pd, handle: 0 }), ah }.give()
        }
        Err(e) => null(e.errno()),
    }
}

/// The path back to where a datagram came from.
///
/// # Safety
/// All are the caller's own; `header` has the first 40 bytes of the receive.
unsafe fn path_back(context: &Context, wc: *const ibv_wc, header: *const ibv_grh) -> Option<AddressVector> {
    // SAFETY: the caller's struct.
    if unsafe { (*wc).wc_flags } & WC_GRH == 0 {
        return None;
    }
    // SAFETY: the caller vouches for 40 bytes.
    let bytes: [u8; grh::LEN] = unsafe { header.cast::<[u8; grh::LEN]>().read_unaligned() };
    context.nic.path_back(&bytes)
}

unsafe extern "C" fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    header: *mut ibv_grh,
    out: *mut ibv_ah_attr,
) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: an open context, and as the caller vouches.
    match unsafe { path_back(Context::of(context), wc, header) }.filter(|_| port == 1) {
        Some(path) => {
            // SAFETY: the caller's struct.
            unsafe { *out = attr(&path) };
            0
        }
        None => minus_one(libc::EINVAL),
    }
}

unsafe extern "C" fn create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    header: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: a domain that was given out, of an open context; and as the caller vouches.
    match unsafe { path_back(Context::of((*pd).context), wc, header) }.filter(|_| port == 1) {
        // SAFETY: a domain that was given out.
        Some(path) => unsafe { create_ah(pd, &mut attr(&path)) },
        None => null(libc::EINVAL),
    }
}

pub unsafe extern "C" fn destroy_ah(c: *mut ibv_ah) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: as below.
    if unsafe { is_inherited((*c).context) } {
        return 0;
    }
    // SAFETY: a handle that was given out, and its domain, which could not go while it was there.
    unsafe {
        let pd = (*c).pd;
        drop(Handle::take(c));
        ProtectionDomain::leave(pd);
    }
    0
}

/// MACs are the business of whoever owns the link.
pub unsafe extern "C" fn resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut u8,
    _vid: *mut u16,
) -> c_int {
    libc::EOPNOTSUPP
}
