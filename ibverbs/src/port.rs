//! What a device and its port say of themselves.

use std::ffi::c_int;

use urxe::verbs::{AtomicCap, DeviceAttr, DeviceCaps, Gid, PKey};

use crate::abi::{
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_odp_caps, ibv_port_attr,
    ibv_query_device_ex_input, ibv_values_ex,
};
use crate::address;
use crate::context::Context;
use crate::device::copy_text;
use crate::errno::{minus_one, set};
use crate::region::knows_what_is_mapped;

export! {
    "IBVERBS_1.1":
        ibv_query_device = query_device,
        ibv_query_port = query_port,
        ibv_query_gid = query_gid,
        ibv_query_pkey = query_pkey;
    "IBVERBS_1.5": ibv_get_pkey_index = get_pkey_index;
    "IBVERBS_1.11":
        _ibv_query_gid_ex = query_gid_ex,
        _ibv_query_gid_table = query_gid_table;
    "IBVERBS_PRIVATE_34": ibv_query_gid_type = query_gid_type;
}

const LINK_LAYER_ETHERNET: u8 = 2;
const PORT_CM_SUP: u32 = 1 << 16;
const PORT_IP_BASED_GIDS: u32 = 1 << 26;
const QPF_GRH_REQUIRED: u8 = 1;
/// Four lanes of 25 Gb/s: software has no figure of its own, and programs size their windows by it.
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;
/// `IBV_GID_TYPE_ROCE_V2`, and the same in `enum ibv_gid_type_sysfs`.
const ROCE_V2: u32 = 2;
const SYSFS_ROCE_V2: u32 = 1;
/// What libibverbs says of an empty place.
const SYSFS_IB_ROCE_V1: u32 = 0;
/// What the exported `ibv_query_port` writes: the struct as it was before `link_layer` had followers.
const OLD_PORT_ATTR: usize = 48;

const ODP_SUPPORT: u64 = 1;
const ODP_SUPPORT_IMPLICIT: u64 = 2;
const ODP_SEND: u32 = 1 << 0;
const ODP_RECV: u32 = 1 << 1;
const ODP_WRITE: u32 = 1 << 2;
const ODP_READ: u32 = 1 << 3;
const ODP_ATOMIC: u32 = 1 << 4;
const ODP_SRQ_RECV: u32 = 1 << 5;
/// What RC, UC, UD and XRC do with regions on demand: all that they do.
const SERVICES_ON_DEMAND: [u32; 4] = {
    let datagram = ODP_SEND | ODP_RECV | ODP_SRQ_RECV;
    let reliable = datagram | ODP_WRITE | ODP_READ | ODP_ATOMIC;
    [reliable, datagram | ODP_WRITE, datagram, reliable & !ODP_RECV]
};

fn int(n: impl TryInto<c_int>) -> c_int {
    n.try_into().unwrap_or(c_int::MAX)
}

/// Copies the first `len` bytes of `value`; of a longer struct, which a later header has, the rest is zeros.
///
/// # Safety
/// `to` has room for `len` bytes.
unsafe fn copy_part<T>(value: &T, to: *mut T, len: usize) {
    let (to, known) = (to.cast::<u8>(), len.min(size_of::<T>()));
    // SAFETY: both have so many bytes, and the first has `len`.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to, known);
        to.add(known).write_bytes(0, len - known);
    }
}

fn device_attr(context: &Context) -> (DeviceAttr, ibv_device_attr) {
    let attr = context.nic.query_device();
    let l = attr.limits;
    // SAFETY: all of it may be zeros.
    let mut c: ibv_device_attr = unsafe { std::mem::zeroed() };
    copy_text(&mut c.fw_ver, attr.version);
    let guid = context.device.adapter.guid().to_be();
    let c = ibv_device_attr {
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: l.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: int(l.max_qp),
        max_qp_wr: int(l.max_qp_wr),
        device_cap_flags: attr.caps.0 as u32,
        max_sge: int(l.max_sge),
        max_sge_rd: int(attr.max_sge_rd),
        max_cq: int(l.max_cq),
        max_cqe: int(l.max_cqe),
        max_mr: int(l.max_mr),
        max_pd: int(l.max_pd),
        max_qp_rd_atom: int(l.max_qp_rd_atom),
        max_res_rd_atom: int(attr.max_res_rd_atom),
        max_qp_init_rd_atom: int(l.max_qp_rd_atom),
        // They are atomic against the processor's too. But no hardware says so, and UCX uses them only where this is said.
        atomic_cap: (attr.atomic_cap as u32).min(AtomicCap::Hca as u32),
        max_mw: int(attr.max_mw),
        max_mcast_grp: int(l.max_mcast_grp),
        max_mcast_qp_attach: int(l.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(l.max_total_mcast_qp_attach),
        max_ah: int(attr.max_ah),
        max_srq: int(l.max_srq),
        max_srq_wr: int(l.max_srq_wr),
        max_srq_sge: int(l.max_srq_sge),
        max_pkeys: l.max_pkeys,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
        ..c
    };
    (attr, c)
}

unsafe extern "C" fn query_device(context: *mut ibv_context, out: *mut ibv_device_attr) -> c_int {
    // SAFETY: an open context.
    let (_, c) = device_attr(unsafe { Context::of(context) });
    // SAFETY: the caller's struct.
    unsafe { *out = c };
    0
}

pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    out: *mut ibv_device_attr_ex,
    len: usize,
) -> c_int {
    // SAFETY: the caller's struct, if there is one.
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 || len < size_of::<ibv_device_attr>() {
        return libc::EINVAL;
    }
    // SAFETY: an open context.
    let (attr, orig_attr) = device_attr(unsafe { Context::of(context) });
    // SAFETY: all of it may be zeros.
    let zeros: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    let paged = if knows_what_is_mapped() { SERVICES_ON_DEMAND } else { [0; 4] };
    let c = ibv_device_attr_ex {
        orig_attr,
        odp_caps: ibv_odp_caps {
            general_caps: if paged[0] == 0 { 0 } else { ODP_SUPPORT | ODP_SUPPORT_IMPLICIT },
            per_transport_caps: [paged[0], paged[1], paged[2]],
        },
        xrc_odp_caps: paged[3],
        max_dm_size: attr.limits.max_dm_size,
        completion_timestamp_mask: attr.completion_timestamp_mask,
        hca_core_clock: attr.hca_core_clock_khz,
        // What these calls do not offer is not promised: FLUSH, which this release of the interface has no work request for.
        device_cap_flags_ex: attr.caps.0 & !(DeviceCaps::FLUSH_GLOBAL.0 | DeviceCaps::FLUSH_PERSISTENT.0),
        phys_port_cnt_ex: u32::from(attr.phys_port_cnt),
        ..zeros
    };
    // SAFETY: the caller says how much room there is.
    unsafe { copy_part(&c, out, len) };
    0
}

pub unsafe extern "C" fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    const RAW_CLOCK: u32 = 1;
    // SAFETY: the caller's struct.
    let values = unsafe { &mut *values };
    if values.comp_mask & RAW_CLOCK != 0 {
        // SAFETY: an open context.
        let ticks = unsafe { Context::of(context) }.nic.clock();
        values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: ticks as i64 };
    }
    values.comp_mask &= RAW_CLOCK;
    0
}

fn port_attr(context: &Context) -> ibv_port_attr {
    let port = context.nic.query_port();
    // SAFETY: all of it may be zeros.
    let zeros: ibv_port_attr = unsafe { std::mem::zeroed() };
    ibv_port_attr {
        state: port.state() as u32,
        max_mtu: port.max_mtu.code().into(),
        active_mtu: port.active_mtu.code().into(),
        gid_tbl_len: int(port.gid_table_len),
        port_cap_flags: PORT_CM_SUP | PORT_IP_BASED_GIDS,
        max_msg_sz: port.max_msg_size as u32,
        bad_pkey_cntr: port.bad_pkey_cntr as u32,
        qkey_viol_cntr: port.qkey_viol_cntr as u32,
        pkey_tbl_len: port.pkey_table_len as u16,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: if port.active { PHYS_LINK_UP } else { PHYS_DISABLED },
        lid: context.nic.query_gid(0).map_or(0, address::lid),
        link_layer: LINK_LAYER_ETHERNET,
        flags: QPF_GRH_REQUIRED,
        ..zeros
    }
}

pub unsafe extern "C" fn query_port_of_any_size(
    context: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: an open context; the caller says how much room there is.
    unsafe { copy_part(&port_attr(Context::of(context)), out, len) };
    0
}

unsafe extern "C" fn query_port(context: *mut ibv_context, port: u8, out: *mut ibv_port_attr) -> c_int {
    // SAFETY: an open context, and a struct of old.
    unsafe { query_port_of_any_size(context, port, out, OLD_PORT_ATTR) }
}

/// A place in the table, which may be empty. `None` behind its end.
fn gid(context: &Context, index: usize) -> Option<Option<Gid>> {
    let empty = || (index < context.nic.query_port().gid_table_len).then_some(None);
    match context.nic.query_gid(index) {
        Some(gid) => Some(Some(gid).filter(|gid| *gid != Gid::default())),
        None => empty(),
    }
}

unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut ibv_gid,
) -> c_int {
    // SAFETY: an open context.
    let found = usize::try_from(index).ok().and_then(|i| gid(unsafe { Context::of(context) }, i));
    match found.filter(|_| port == 1) {
        // SAFETY: the caller's union.
        Some(gid) => unsafe { *out = ibv_gid { raw: gid.unwrap_or_default().0 } },
        None => return minus_one(libc::EINVAL),
    }
    0
}

fn gid_entry(context: &Context, index: usize) -> Option<ibv_gid_entry> {
    let gid = ibv_gid { raw: gid(context, index)??.0 };
    let ndev_ifindex = context.device.ifindex;
    Some(ibv_gid_entry { gid, gid_index: index as u32, port_num: 1, gid_type: ROCE_V2, ndev_ifindex })
}

unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    len: usize,
) -> c_int {
    if flags != 0 {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: an open context.
    let Some(entry) = gid_entry(unsafe { Context::of(context) }, index as usize).filter(|_| port == 1) else {
        // What the kernel says of a place in the table where nothing is.
        return if port == 1 { libc::ENODATA } else { libc::EINVAL };
    };
    // SAFETY: the caller says how much room there is.
    unsafe { copy_part(&entry, out, len) };
    0
}

unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    entry_len: usize,
) -> isize {
    if flags != 0 {
        return -(libc::EOPNOTSUPP as isize);
    }
    // SAFETY: an open context.
    let context = unsafe { Context::of(context) };
    let entries: Vec<_> = (0..context.nic.gids().len()).filter_map(|i| gid_entry(context, i)).collect();
    if entries.len() > max {
        return -(libc::EINVAL as isize);
    }
    let mut count = 0;
    for entry in entries {
        // SAFETY: there is room for `max` entries of this length.
        unsafe { copy_part(&entry, out.byte_add(count as usize * entry_len), entry_len) };
        count += 1;
    }
    count
}

unsafe extern "C" fn query_gid_type(context: *mut ibv_context, port: u8, index: u32, out: *mut u32) -> c_int {
    // SAFETY: an open context.
    let found = gid(unsafe { Context::of(context) }, index as usize);
    let Some(gid) = found.filter(|_| port == 1) else { return minus_one(libc::EINVAL) };
    // SAFETY: the caller's integer.
    unsafe { *out = gid.map_or(SYSFS_IB_ROCE_V1, |_| SYSFS_ROCE_V2) };
    0
}

unsafe extern "C" fn query_pkey(context: *mut ibv_context, port: u8, index: c_int, out: *mut u16) -> c_int {
    // SAFETY: an open context.
    let key = usize::try_from(index).ok().and_then(|i| unsafe { Context::of(context) }.nic.query_pkey(i));
    let Some(PKey(key)) = key.filter(|_| port == 1) else { return minus_one(libc::EINVAL) };
    // SAFETY: the caller's integer.
    unsafe { *out = key.to_be() };
    0
}

unsafe extern "C" fn get_pkey_index(context: *mut ibv_context, port: u8, key: u16) -> c_int {
    // SAFETY: an open context.
    let context = unsafe { Context::of(context) };
    let keys = (0..).map_while(|i| context.nic.query_pkey(i));
    let found = keys.into_iter().position(|other| other.0.to_be() == key).filter(|_| port == 1);
    found.map_or_else(
        || {
            set(libc::EINVAL);
            -1
        },
        int,
    )
}
