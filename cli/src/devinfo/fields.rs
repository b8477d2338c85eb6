//! NIC attributes, in the names and notation of `ibv_devinfo -v`.

use urxe::verbs::{AtomicCap, Context, DeviceAttr, DeviceCaps, Mtu, OnDemand, PortAttr};

/// Name and value of an attribute. The value of a set of flags includes the names of the flags.
pub type Field = (String, String);

/// Capabilities that fit into the 32-bit field `device_cap_flags` of libibverbs.
const STANDARD_CAPS: DeviceCaps = DeviceCaps::from_bits_retain(0xffff_ffff);

const GENERAL: [&str; 2] = ["ODP_SUPPORT", "ODP_SUPPORT_IMPLICIT"];
const PER_SERVICE: [&str; 6] =
    ["SUPPORT_SEND", "SUPPORT_RECV", "SUPPORT_WRITE", "SUPPORT_READ", "SUPPORT_ATOMIC", "SUPPORT_SRQ"];

/// Fields that `ibv_devinfo` prints for features that urxe's devices (or RoCE devices in general) lack.
const UNSUPPORTED: [(&str, &str); 9] = [
    ("tso_caps", ""),
    ("max_tso", "0"),
    ("rss_caps", ""),
    ("max_rwq_indirection_tables", "0"),
    ("max_rwq_indirection_table_size", "0"),
    ("rx_hash_function", "0x0"),
    ("rx_hash_fields_mask", "0x0"),
    ("max_wq_type_rq", "0"),
    ("packet_pacing_caps", ""),
];

fn field(name: &str, value: impl ToString) -> Field {
    (name.to_owned(), value.to_string())
}

/// Returns the attributes that libibverbs programs see of the NIC whose device name is `name`, followed by
/// those that only urxe reports.
pub fn all(name: &str, context: &Context) -> Vec<Field> {
    let (device, port) = (context.query_device().for_libibverbs(), context.query_port());
    let mut all = device_fields(name, &device);
    all.extend(port_fields(context, &port));
    all.extend(link_fields(context, &device));
    all
}

fn device_fields(name: &str, device: &DeviceAttr) -> Vec<Field> {
    let guid = |guid: u64| {
        let bytes = guid.to_be_bytes();
        bytes.chunks(2).map(|b| format!("{:02x}{:02x}", b[0], b[1])).collect::<Vec<_>>().join(":")
    };
    let mut fields = vec![
        field("hca_id", name),
        field("transport", "InfiniBand (0)"),
        field("fw_ver", device.version),
        field("node_guid", guid(device.node_guid)),
        field("sys_image_guid", guid(device.sys_image_guid)),
        field("vendor_id", format!("{:#06x}", device.vendor_id)),
        field("vendor_part_id", device.vendor_part_id),
        field("hw_ver", format!("{:#X}", device.hw_ver).replace('X', "x")),
        field("phys_port_cnt", device.phys_port_cnt),
    ];
    fields.extend(limit_fields(device));
    fields.extend(on_demand_fields(device.on_demand));
    let extended = device.caps - STANDARD_CAPS;
    fields.extend([
        field("completion timestamp_mask", format!("{:#018x}", device.completion_timestamp_mask)),
        field("hca_core_clock", format!("{}kHZ", device.hca_core_clock_khz)),
        field("device_cap_flags_ex", cap_flags(format!("0x{:X}", device.caps.bits()), extended)),
    ]);
    fields.extend(UNSUPPORTED.map(|(name, value)| field(name, value)));
    fields.extend([
        field("qp_rate_limit_min", format!("{}kbps", device.pacing.min_kbps)),
        field("qp_rate_limit_max", format!("{}kbps", device.pacing.max_kbps)),
        field("supported_qp", pacing_services(device.pacing.services)),
        field("tag matching", "not supported"),
        field("maximum available device memory", format!("{}Bytes", device.limits.max_dm_size)),
        field("num_comp_vectors", device.limits.num_comp_vectors),
    ]);
    fields
}

/// Returns the fields from `max_mr_size` to `local_ca_ack_delay`.
fn limit_fields(device: &DeviceAttr) -> Vec<Field> {
    let l = &device.limits;
    let standard = device.caps & STANDARD_CAPS;
    vec![
        field("max_mr_size", format!("{:#x}", l.max_mr_size)),
        field("page_size_cap", format!("{:#x}", device.page_size_cap)),
        field("max_qp", l.max_qp),
        field("max_qp_wr", l.max_qp_wr),
        field("device_cap_flags", cap_flags(format!("0x{:08x}", standard.bits()), standard)),
        field("max_sge", l.max_sge),
        field("max_sge_rd", device.max_sge_rd),
        field("max_cq", l.max_cq),
        field("max_cqe", l.max_cqe),
        field("max_mr", l.max_mr),
        field("max_pd", l.max_pd),
        field("max_qp_rd_atom", l.max_qp_rd_atom),
        field("max_ee_rd_atom", 0),
        field("max_res_rd_atom", device.max_res_rd_atom),
        field("max_qp_init_rd_atom", l.max_qp_rd_atom),
        field("max_ee_init_rd_atom", 0),
        field("atomic_cap", atomic_cap(device.atomic_cap)),
        field("max_ee", 0),
        field("max_rdd", 0),
        field("max_mw", device.max_mw),
        field("max_raw_ipv6_qp", 0),
        field("max_raw_ethy_qp", 0),
        field("max_mcast_grp", l.max_mcast_grp),
        field("max_mcast_qp_attach", l.max_mcast_qp_attach),
        field("max_total_mcast_qp_attach", l.max_total_mcast_qp_attach),
        field("max_ah", device.max_ah),
        field("max_fmr", 0),
        field("max_srq", l.max_srq),
        field("max_srq_wr", l.max_srq_wr),
        field("max_srq_sge", l.max_srq_sge),
        field("max_pkeys", l.max_pkeys),
        field("local_ca_ack_delay", device.local_ca_ack_delay),
    ]
}

/// Returns the on-demand paging fields.
fn on_demand_fields(OnDemand { general, rc, uc, ud, xrc, .. }: OnDemand) -> Vec<Field> {
    let names = |bits: u64, names: &'static [&str]| {
        names.iter().enumerate().filter(move |(i, _)| bits >> i & 1 != 0).map(|(_, name)| *name)
    };
    let mut fields = vec![field("general_odp_caps", with_flags("", names(general, &GENERAL)))];
    for (service, bits) in [("rc", rc), ("uc", uc), ("ud", ud), ("xrc", xrc)] {
        let prefix = if bits == 0 { "NO SUPPORT" } else { "" };
        let value = with_flags(prefix, names(bits.into(), &PER_SERVICE));
        fields.push(field(&format!("{service}_odp_caps"), value));
    }
    fields
}

fn port_fields(context: &Context, port: &PortAttr) -> Vec<Field> {
    let mtu = |mtu: Mtu| format!("{} ({})", mtu.bytes(), u32::from(mtu.code()));
    let (state, phys_state) = match port.active {
        true => ("PORT_ACTIVE", "LINK_UP"),
        false => ("PORT_DOWN", "DISABLED"),
    };
    let lanes = if port.active_width == 1 { 1 } else { 4 };
    let lane = match port.active_speed {
        4 => "10.0",
        32 => "25.0",
        64 => "50.0",
        _ => "100.0",
    };
    let mut fields = vec![
        field("port", 1),
        field("state", format!("{state} ({})", port.state() as u32)),
        field("max_mtu", mtu(port.max_mtu)),
        field("active_mtu", mtu(port.active_mtu)),
        field("sm_lid", 0),
        field("port_lid", 0),
        field("port_lmc", "0x00"),
        field("link_layer", "Ethernet"),
        field("max_msg_sz", format!("{:#x}", port.max_msg_size)),
        field("port_cap_flags", format!("0x{:08x}", port.cap_flags)),
        field("port_cap_flags2", "0x0000"),
        field("max_vl_num", "1 (1)"),
        field("bad_pkey_cntr", format!("{:#x}", port.bad_pkey_cntr)),
        field("qkey_viol_cntr", format!("{:#x}", port.qkey_viol_cntr)),
        field("sm_sl", 0),
        field("pkey_tbl_len", port.pkey_table_len),
        field("gid_tbl_len", port.gid_table_len),
        field("subnet_timeout", 0),
        field("init_type_reply", 0),
        field("active_width", format!("{lanes}X ({})", port.active_width)),
        field("active_speed", format!("{lane} Gbps ({})", port.active_speed)),
        field("phys_state", format!("{phys_state} ({})", port.phys_state())),
    ];
    let vlan = context.link_info().vlan.map_or(String::new(), |id| format!(", VLAN {id}"));
    let gids = context.gids().into_iter().enumerate();
    fields.extend(gids.map(|(i, gid)| field(&format!("GID[{i:>3}]"), format!("{gid}, RoCE v2{vlan}"))));
    fields
}

fn link_fields(context: &Context, device: &DeviceAttr) -> Vec<Field> {
    let info = context.link_info();
    let burst = match info.burst.packets {
        1 => "1 packet per call".to_owned(),
        n => format!("{n} packets or {} bytes per call", info.burst.bytes),
    };
    let mut fields = vec![
        field("link", &info.name),
        field("personality", device.personality),
        field("ip_mtu", info.mtu),
        field("bursts", burst),
        field("window", format!("{} bytes in flight", info.window)),
        field("max_inline_data", device.limits.max_inline),
    ];
    fields.extend(info.src_port.map(|port| field("udp_source_port", format!("{port} (fixed)"))));
    fields
}

fn atomic_cap(cap: AtomicCap) -> String {
    let name = match cap {
        AtomicCap::None => "NONE",
        AtomicCap::Hca => "HCA",
        AtomicCap::Global => "GLOB",
    };
    format!("ATOMIC_{name} ({})", cap as u32)
}

/// Formats the services that support packet pacing as `ibv_devinfo` does: it has a name only for UD.
fn pacing_services(services: u32) -> String {
    const UD: u32 = 1 << 4;
    let name = if services & UD != 0 { "SUPPORT_UD " } else { "" };
    format!("{name}Unknown flags: 0x{:X}", services & !UD)
}

/// Appends the names of the capabilities in `caps` to their numeric value.
fn cap_flags(value: String, caps: DeviceCaps) -> String {
    // Those that ibv_devinfo does not know; it prints their value.
    let unknown = DeviceCaps::FLUSH_GLOBAL | DeviceCaps::FLUSH_PERSISTENT | DeviceCaps::ATOMIC_WRITE;
    let named = with_flags(&value, (caps - unknown).iter_names().map(|(name, _)| name));
    match (caps & unknown).bits() {
        0 => named,
        bits => format!("{named} Unknown flags: 0x{bits:X}"),
    }
}

fn with_flags<'a>(value: &'a str, flags: impl Iterator<Item = &'a str>) -> String {
    let value = Some(value).filter(|value| !value.is_empty());
    value.into_iter().chain(flags).collect::<Vec<_>>().join(" ")
}
