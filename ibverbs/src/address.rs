//! Address handles (`ibv_ah`), and conversion of address vectors (`ibv_ah_attr`).

use std::ffi::c_int;

use urxe::transport::AddressVector;
use urxe::verbs::{Ah, Gid, grh};

use crate::abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_wc};
use crate::context::Context;
use crate::cq::WC_GRH;
use crate::errno::non_null;
use crate::object::{FfiCell, FfiObject, Use, ffi_object};
use crate::pd::ProtectionDomain;

entry_points! {
    "IBVERBS_1.1" null ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah = create_ah;
    "IBVERBS_1.1" null ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, header: *mut ibv_grh, port: u8)
        -> *mut ibv_ah = create_ah_from_wc;
    "IBVERBS_1.1" minus_one ibv_init_ah_from_wc(context: *mut ibv_context, port: u8, wc: *mut ibv_wc,
        header: *mut ibv_grh, out: *mut ibv_ah_attr) = init_ah_from_wc;
    "IBVERBS_1.1" store ibv_destroy_ah(ah: *mut ibv_ah) on AddressHandle(ah) unless is_inherited = destroy_ah;
    // The link resolves MAC addresses itself.
    "IBVERBS_1.1" store ibv_resolve_eth_l2_from_gid(_context: *mut ibv_context, _attr: *mut ibv_ah_attr,
        _mac: *mut u8, _vid: *mut u16) => Err::<(), c_int>(libc::EOPNOTSUPP);
}

/// An address handle with its C struct.
#[repr(C)]
pub(crate) struct AddressHandle {
    c: FfiCell<ibv_ah>,
    pub ah: Ah,
    _pd: Use<ProtectionDomain>,
}

ffi_object! { AddressHandle { c: ibv_ah } [context, handle] }

/// Returns the address vector of the neighbour with the given LID ([`urxe::verbs::lid_of`]), with
/// `--lid-routing`. An address without a GRH is otherwise invalid (the kernel's `rdma_check_ah_attr`).
fn neighbor_path(context: &Context, lid: u16) -> Option<AddressVector> {
    if !context.device.settings.lid_routing {
        context.device.warn_of_lid(lid);
        return None;
    }
    let sgid_index = context.nic.main_gid().filter(|_| lid != 0)?;
    let Gid(mut bytes) = context.nic.query_gid(sgid_index.into())?;
    bytes[14..].copy_from_slice(&lid.to_be_bytes());
    Some(AddressVector::to(Gid(bytes)).sgid_index(sgid_index).hop_limit(64).traffic_class(0).flow_label(0))
}

/// Converts an address vector from its C struct. Returns `None` if its port does not exist, or if it has no
/// GRH ([`neighbor_path`]).
pub(crate) fn path(context: &Context, attr: &ibv_ah_attr) -> Option<AddressVector> {
    if attr.port_num != 1 {
        return None;
    }
    if attr.is_global == 0 {
        return neighbor_path(context, attr.dlid);
    }
    let route = &attr.grh;
    Some(
        AddressVector::to(Gid(route.dgid.raw))
            .sgid_index(route.sgid_index)
            .hop_limit(route.hop_limit)
            .traffic_class(route.traffic_class)
            .flow_label(route.flow_label & 0xf_ffff),
    )
}

/// Converts an address vector to its C struct.
pub(crate) fn attr(path: &AddressVector) -> ibv_ah_attr {
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

unsafe fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> Result<*mut ibv_ah, c_int> {
    // SAFETY: the program must not deallocate the domain during the call, and its context is open.
    // `ibv_create_ah` requires `attr` to point to a readable struct.
    let (domain, context, path) = unsafe {
        let domain = ProtectionDomain::live(pd)?;
        let context = (*pd).context;
        (domain, context, path(Context::from_raw_ref(context), &*attr).ok_or(libc::EINVAL)?)
    };
    let ah = domain.pd.create_ah(&path).map_err(|e| e.errno())?;
    let c = FfiCell::new(ibv_ah { context, pd, handle: 0 });
    // SAFETY: the domain is live as above.
    Ok(AddressHandle { c, ah, _pd: unsafe { Use::new(pd) } }.into_raw())
}

/// Returns the address vector for replies to a received datagram, or `None` without a GRH.
///
/// # Safety
/// `wc` points to a readable completion. If that has the flag `WC_GRH`, `header` points to the first 40 bytes
/// of its receive buffer.
unsafe fn reverse_path(
    context: &Context,
    wc: *const ibv_wc,
    header: *const ibv_grh,
) -> Option<AddressVector> {
    // SAFETY: the caller guarantees that `wc` points to a readable completion.
    if unsafe { (*wc).wc_flags } & WC_GRH == 0 {
        return None;
    }
    // SAFETY: the completion has the flag, so the caller passes 40 readable bytes; they are copied from any
    // alignment.
    let bytes: [u8; grh::LEN] = unsafe { header.cast::<[u8; grh::LEN]>().read_unaligned() };
    context.nic.reverse_path(&bytes)
}

unsafe fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    header: *mut ibv_grh,
    out: *mut ibv_ah_attr,
) -> Result<(), c_int> {
    // SAFETY: `ibv_init_ah_from_wc` requires an open context, a readable completion, the GRH that belongs to
    // it, and a writable struct.
    unsafe {
        let path = reverse_path(Context::from_raw_ref(context), wc, header).filter(|_| port == 1);
        *out = attr(&path.ok_or(libc::EINVAL)?);
    }
    Ok(())
}

unsafe fn create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    header: *mut ibv_grh,
    port: u8,
) -> Result<*mut ibv_ah, c_int> {
    // SAFETY: the program must not deallocate the domain during the call, and its context is open.
    // `ibv_create_ah_from_wc` requires a readable completion and the GRH that belongs to it.
    unsafe {
        ProtectionDomain::live(pd)?;
        let path = reverse_path(Context::from_raw_ref((*pd).context), wc, header).filter(|_| port == 1);
        non_null(ibv_create_ah(pd, &mut attr(&path.ok_or(libc::EINVAL)?)))
    }
}

unsafe fn destroy_ah(c: *mut ibv_ah) -> Result<(), c_int> {
    // SAFETY: `c` is live (checked by the entry point), and the program gives up its pointer.
    drop(unsafe { AddressHandle::from_raw(c) });
    Ok(())
}
