//! Attributes of a device and its port, GIDs and P_Keys.

use std::ffi::c_int;

use urxe::nic::PortSpeed;
use urxe::verbs::faults::Call;
use urxe::verbs::{DeviceAttr, Gid, Identity, PKey};

use crate::abi::{
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_odp_caps,
    ibv_packet_pacing_caps, ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex,
};
use crate::call_faults;
use crate::context::Context;
use crate::device::copy_text;

entry_points! {
    "IBVERBS_1.1" store ibv_query_device(context: *mut ibv_context, out: *mut ibv_device_attr) = query_device;
    store ibv_query_device_ex(context: *mut ibv_context, input: *const ibv_query_device_ex_input,
        out: *mut ibv_device_attr_ex, len: usize) = query_device_ex;
    store ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) = query_rt_values;
    "IBVERBS_1.1" store ibv_query_port(context: *mut ibv_context, port: u8, out: *mut ibv_port_attr)
        => query_port(context, port, out, COMPAT_PORT_ATTR_LEN);
    store query_port_of_context as ibv_query_port(context: *mut ibv_context, port: u8,
        out: *mut ibv_port_attr, len: usize) = query_port;
    "IBVERBS_1.16" store ibv_query_port_speed(context: *mut ibv_context, port: u32, out: *mut u64)
        = query_port_speed;
    "IBVERBS_1.1" minus_one ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int,
        out: *mut ibv_gid) = query_gid;
    "IBVERBS_1.11" store _ibv_query_gid_ex as ibv_query_gid_ex(context: *mut ibv_context, port: u32,
        index: u32, out: *mut ibv_gid_entry, flags: u32, len: usize) = query_gid_ex;
    "IBVERBS_1.1" minus_one ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, out: *mut u16)
        = query_pkey;
    "IBVERBS_1.5" minus_one ibv_get_pkey_index as none(context: *mut ibv_context, port: u8, key: u16)
        = get_pkey_index;
    minus_one query_gid_type as none(context: *mut ibv_context, port: u8, index: u32, out: *mut u32)
        = gid_type;
}

export! {
    "IBVERBS_1.11": _ibv_query_gid_table = query_gid_table;
}

const LINK_LAYER_ETHERNET: u8 = 2;
const QPF_GRH_REQUIRED: u8 = 1;
/// `IBV_GID_TYPE_ROCE_V2`; [`SYSFS_ROCE_V2`] is its counterpart in `enum ibv_gid_type_sysfs`.
const ROCE_V2: u32 = 2;
const SYSFS_ROCE_V2: u32 = 1;
/// Type that libibverbs reports for an empty table entry.
const SYSFS_IB_ROCE_V1: u32 = 0;
/// Number of bytes that the exported `ibv_query_port` writes: the size of `ibv_port_attr` before the fields
/// after `link_layer` were added.
const COMPAT_PORT_ATTR_LEN: usize = 48;

/// Converts a number to `c_int`; a number out of range becomes `c_int::MAX`.
fn int(n: impl TryInto<c_int>) -> c_int {
    n.try_into().unwrap_or(c_int::MAX)
}

/// Copies the first `len` bytes of `value`. If `len` exceeds the size of `T`, as in a program compiled with a
/// later header, the rest is filled with zeros.
///
/// # Safety
/// `to` points to `len` writable bytes.
pub(crate) unsafe fn copy_part<T>(value: &T, to: *mut T, len: usize) {
    let (to, known) = (to.cast::<u8>(), len.min(size_of::<T>()));
    // SAFETY: `known` is at most the size of `T` and at most `len`, so both ranges are inside `value` and the
    // caller's buffer, as are the `len - known` bytes behind. A reference and a buffer being written do not
    // overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to, known);
        to.add(known).write_bytes(0, len - known);
    }
}

/// Returns the device attributes both as the Rust struct and as the C struct.
fn device_attr(context: &Context) -> (DeviceAttr, ibv_device_attr) {
    let attr = context.nic.query_device().for_libibverbs();
    let l = attr.limits;
    // SAFETY: the struct consists of integers, for which zeros are valid.
    let mut c: ibv_device_attr = unsafe { std::mem::zeroed() };
    copy_text(&mut c.fw_ver, attr.version);
    let guid = context.device.adapter.guid().to_be();
    let settings = &context.device.settings;
    let identity = Identity::of(&settings.names, &settings.personality);
    let c = ibv_device_attr {
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: l.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: identity.vendor_id,
        vendor_part_id: identity.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: int(l.max_qp),
        max_qp_wr: int(l.max_qp_wr),
        device_cap_flags: attr.caps.bits() as u32,
        max_sge: int(l.max_sge),
        max_sge_rd: int(attr.max_sge_rd),
        max_cq: int(l.max_cq),
        max_cqe: int(l.max_cqe),
        max_mr: int(l.max_mr),
        max_pd: int(l.max_pd),
        max_qp_rd_atom: int(l.max_qp_rd_atom),
        max_res_rd_atom: int(attr.max_res_rd_atom),
        max_qp_init_rd_atom: int(l.max_qp_rd_atom),
        atomic_cap: attr.atomic_cap as u32,
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

unsafe fn query_device(context: *mut ibv_context, out: *mut ibv_device_attr) -> Result<(), c_int> {
    // SAFETY: `ibv_query_device` requires an open context, which the program does not close during the call.
    let (_, c) = device_attr(unsafe { Context::from_raw_ref(context) });
    // SAFETY: `ibv_query_device` requires `out` to point to a writable struct.
    unsafe { *out = c };
    Ok(())
}

unsafe fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    out: *mut ibv_device_attr_ex,
    len: usize,
) -> Result<(), c_int> {
    // SAFETY: `ibv_query_device_ex` requires a non-null `input` to point to a readable struct.
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 || len < size_of::<ibv_device_attr>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `ibv_query_device_ex` requires an open context, which the program does not close during the
    // call.
    let (attr, orig_attr) = device_attr(unsafe { Context::from_raw_ref(context) });
    // SAFETY: the struct consists of integers, for which zeros are valid.
    let zeros: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    let c = ibv_device_attr_ex {
        orig_attr,
        odp_caps: ibv_odp_caps {
            general_caps: attr.on_demand.general,
            per_transport_caps: [attr.on_demand.rc, attr.on_demand.uc, attr.on_demand.ud],
        },
        xrc_odp_caps: attr.on_demand.xrc,
        packet_pacing_caps: ibv_packet_pacing_caps {
            qp_rate_limit_min: attr.pacing.min_kbps,
            qp_rate_limit_max: attr.pacing.max_kbps,
            supported_qpts: attr.pacing.services,
        },
        max_dm_size: attr.limits.max_dm_size,
        completion_timestamp_mask: attr.completion_timestamp_mask,
        hca_core_clock: attr.hca_core_clock_khz,
        device_cap_flags_ex: attr.caps.bits(),
        phys_port_cnt_ex: u32::from(attr.phys_port_cnt),
        ..zeros
    };
    // SAFETY: `len` is the size of the caller's struct as its header defines it.
    unsafe { copy_part(&c, out, len) };
    Ok(())
}

unsafe fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> Result<(), c_int> {
    const RAW_CLOCK: u32 = 1;
    // SAFETY: `ibv_query_rt_values_ex` requires `values` to point to a struct that is the caller's alone
    // during the call.
    let values = unsafe { &mut *values };
    if values.comp_mask & RAW_CLOCK != 0 {
        // SAFETY: `ibv_query_rt_values_ex` requires an open context, which the program does not close during
        // the call.
        let ticks = unsafe { Context::from_raw_ref(context) }.nic.clock();
        values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: ticks as i64 };
    }
    values.comp_mask &= RAW_CLOCK;
    Ok(())
}

/// Returns the port attributes as a C struct.
fn port_attr(context: &Context) -> ibv_port_attr {
    let port = context.nic.query_port();
    // SAFETY: the struct consists of integers, for which zeros are valid.
    let zeros: ibv_port_attr = unsafe { std::mem::zeroed() };
    ibv_port_attr {
        state: port.state() as u32,
        max_mtu: port.max_mtu.code().into(),
        active_mtu: port.active_mtu.code().into(),
        gid_tbl_len: int(port.gid_table_len),
        port_cap_flags: port.cap_flags,
        max_msg_sz: port.max_msg_size as u32,
        bad_pkey_cntr: port.bad_pkey_cntr as u32,
        qkey_viol_cntr: port.qkey_viol_cntr as u32,
        pkey_tbl_len: port.pkey_table_len as u16,
        max_vl_num: 1,
        active_width: port.active_width,
        active_speed: port.active_speed,
        phys_state: port.phys_state(),
        lid: context.substitute_lid().unwrap_or(0),
        link_layer: LINK_LAYER_ETHERNET,
        flags: QPF_GRH_REQUIRED,
        ..zeros
    }
}

unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
    len: usize,
) -> Result<(), c_int> {
    if port != 1 {
        return Err(libc::EINVAL);
    }
    // SAFETY: `ibv_query_port` requires an open context, and a struct of at least `len` bytes: the size that
    // the program's header defines, or `COMPAT_PORT_ATTR_LEN`, the size in the oldest header.
    unsafe { copy_part(&port_attr(Context::from_raw_ref(context)), out, len) };
    Ok(())
}

unsafe fn query_port_speed(context: *mut ibv_context, port: u32, out: *mut u64) -> Result<(), c_int> {
    // SAFETY: `ibv_query_port_speed` requires an open context, which the program does not close during the
    // call.
    let attr = unsafe { Context::from_raw_ref(context) }.nic.query_port();
    let is_active = |speed: &&PortSpeed| {
        port == 1 && (speed.width(), speed.lane()) == (attr.active_width, attr.active_speed)
    };
    let speed = PortSpeed::ALL.iter().find(is_active).ok_or(libc::EINVAL)?;
    // In units of 100 Mb/s.
    // SAFETY: `ibv_query_port_speed` requires `out` to point to a writable integer.
    unsafe { *out = u64::from(speed.gbps()) * 10 };
    Ok(())
}

/// Returns the GID table entry at `index`: `Some(None)` for an empty entry, `None` for an index past the end.
fn gid(context: &Context, index: usize) -> Option<Option<Gid>> {
    let found = context.nic.query_gid(index).filter(|gid| *gid != Gid::default());
    (found.is_some() || index < context.nic.query_port().gid_table_len).then_some(found)
}

unsafe fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut ibv_gid,
) -> Result<(), c_int> {
    // SAFETY: `ibv_query_gid` requires an open context, which the program does not close during the call.
    let found = usize::try_from(index).ok().and_then(|i| gid(unsafe { Context::from_raw_ref(context) }, i));
    let gid = found.filter(|_| port == 1).ok_or(libc::EINVAL)?;
    // SAFETY: `ibv_query_gid` requires `out` to point to a writable union.
    unsafe { *out = ibv_gid { raw: gid.unwrap_or_default().0 } };
    Ok(())
}

/// Returns the GID table entry at `index` as a C struct, or `None` if it is empty or past the end.
fn gid_entry(context: &Context, index: usize) -> Option<ibv_gid_entry> {
    let gid = ibv_gid { raw: gid(context, index)??.0 };
    let ndev_ifindex = context.device.ifindex;
    Some(ibv_gid_entry { gid, gid_index: index as u32, port_num: 1, gid_type: ROCE_V2, ndev_ifindex })
}

unsafe fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    len: usize,
) -> Result<(), c_int> {
    if flags != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if port != 1 {
        return Err(libc::EINVAL);
    }
    // SAFETY: `ibv_query_gid_ex` requires an open context, which the program does not close during the call.
    let entry = gid_entry(unsafe { Context::from_raw_ref(context) }, index as usize);
    // SAFETY: `len` is the size of the caller's struct as its header defines it. The error is that of the
    // kernel for an empty table entry.
    unsafe { copy_part(&entry.ok_or(libc::ENODATA)?, out, len) };
    Ok(())
}

unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    entry_len: usize,
) -> isize {
    let _uncancelled = crate::cancel::disable();
    if let Some(errno) = call_faults::on_call(Call::ibv_query_gid_table) {
        return -(errno as isize);
    }
    if flags != 0 {
        return -(libc::EOPNOTSUPP as isize);
    }
    // SAFETY: `ibv_query_gid_table` requires an open context, which the program does not close during the
    // call.
    let context = unsafe { Context::from_raw_ref(context) };
    let entries: Vec<_> = (0..context.nic.gids().len()).filter_map(|i| gid_entry(context, i)).collect();
    if entries.len() > max {
        return -(libc::EINVAL as isize);
    }
    let mut count = 0;
    for entry in entries {
        // SAFETY: the caller provides `max` entries of `entry_len` bytes each, and `count` is below `max`.
        unsafe { copy_part(&entry, out.byte_add(count as usize * entry_len), entry_len) };
        count += 1;
    }
    count
}

/// Returns the type of a GID. The symbol is a private one, but `ibv_devinfo` and librdmacm use it.
unsafe fn gid_type(context: *mut ibv_context, port: u8, index: u32, out: *mut u32) -> Result<(), c_int> {
    // SAFETY: `ibv_query_gid_type` requires an open context, which the program does not close during the
    // call.
    let found = gid(unsafe { Context::from_raw_ref(context) }, index as usize);
    let gid = found.filter(|_| port == 1).ok_or(libc::EINVAL)?;
    // SAFETY: `ibv_query_gid_type` requires `out` to point to a writable integer.
    unsafe { *out = gid.map_or(SYSFS_IB_ROCE_V1, |_| SYSFS_ROCE_V2) };
    Ok(())
}

unsafe fn query_pkey(context: *mut ibv_context, port: u8, index: c_int, out: *mut u16) -> Result<(), c_int> {
    // SAFETY: `ibv_query_pkey` requires an open context, which the program does not close during the call.
    let key =
        usize::try_from(index).ok().and_then(|i| unsafe { Context::from_raw_ref(context) }.nic.query_pkey(i));
    let PKey(key) = key.filter(|_| port == 1).ok_or(libc::EINVAL)?;
    // SAFETY: `ibv_query_pkey` requires `out` to point to a writable integer.
    unsafe { *out = key.to_be() };
    Ok(())
}

unsafe fn get_pkey_index(context: *mut ibv_context, port: u8, key: u16) -> Result<c_int, c_int> {
    // SAFETY: `ibv_get_pkey_index` requires an open context, which the program does not close during the
    // call.
    let context = unsafe { Context::from_raw_ref(context) };
    let keys = (0..).map_while(|i| context.nic.query_pkey(i));
    let found = keys.into_iter().position(|other| other.0.to_be() == key).filter(|_| port == 1);
    found.map(int).ok_or(libc::EINVAL)
}
