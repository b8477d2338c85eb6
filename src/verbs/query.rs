//! What a device and its port say of themselves.

use std::net::IpAddr;
use std::ops::BitOr;

use super::Context;
use crate::link::main_address;
use crate::memory::knows_what_is_mapped;
use crate::nic::Limits;
use crate::transport::MAX_MESSAGE;
use crate::wire::{Gid, Mtu};

/// What a device is and has at most: `ibv_device_attr_ex`. Reliable datagrams, raw packets and fast memory regions,
/// which that has fields for too, are not there: their figures are 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceAttr {
    /// A name for people.
    pub name: String,
    /// The crate's version (`fw_ver`).
    pub version: &'static str,
    /// The class of device that it behaves as.
    pub personality: &'static str,
    /// EUI-64.
    pub node_guid: u64,
    /// That of the whole system: the same, as each NIC is a system of its own.
    pub sys_image_guid: u64,
    /// The maker's IEEE number: none, as for the kernel's software devices.
    pub vendor_id: u32,
    /// The maker's number of the product.
    pub vendor_part_id: u32,
    /// Version of the hardware, of which there is none.
    pub hw_ver: u32,
    /// Sizes of memory pages that regions may have: a bit for each power of two.
    pub page_size_cap: u64,
    /// Limits that depend on the personality.
    pub limits: Limits,
    /// Memory windows, if there are no regions.
    pub max_mw: u32,
    /// Address handles. They take no room in the device, so this is what an `int` holds.
    pub max_ah: u32,
    /// Scatter/gather elements of an RDMA READ.
    pub max_sge_rd: u32,
    /// READs and atomics in flight from peers, of all queue pairs together.
    pub max_res_rd_atom: u32,
    /// What atomics are atomic against.
    pub atomic_cap: AtomicCap,
    /// What else it can do.
    pub caps: DeviceCaps,
    /// What it does with regions whose pages come and go.
    pub on_demand: OnDemand,
    /// At which rates its queue pairs can be told to send.
    pub pacing: Pacing,
    /// An acknowledgement may take 4.096 µs · 2^this longer than the wire.
    pub local_ca_ack_delay: u8,
    /// Ports.
    pub phys_port_cnt: u8,
    /// Ticks of its clock in a thousandth of a second: it counts nanoseconds ([`Context::clock`]).
    pub hca_core_clock_khz: u64,
    /// The bits of a completion's time that count.
    pub completion_timestamp_mask: u64,
}

impl DeviceAttr {
    /// What programs of libibverbs are told. FLUSH is not promised, which this release of the interface has no work request
    /// for. And atomics are atomic against the processor's too, but no hardware says so, and UCX uses them only where less
    /// is said.
    pub fn for_programs(self) -> DeviceAttr {
        let flush = DeviceCaps::FLUSH_GLOBAL.0 | DeviceCaps::FLUSH_PERSISTENT.0;
        DeviceAttr { caps: DeviceCaps(self.caps.0 & !flush), atomic_cap: AtomicCap::Hca, ..self }
    }
}

/// What a device does with regions on demand, with the bits of `ibv_odp_caps`: `IBV_ODP_SUPPORT` and
/// `IBV_ODP_SUPPORT_IMPLICIT`, and `IBV_ODP_SUPPORT_SEND` and what follows for each service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "services by their names")]
pub struct OnDemand {
    pub general: u64,
    pub rc: u32,
    pub uc: u32,
    pub ud: u32,
    pub xrc: u32,
}

impl OnDemand {
    /// All that each service does.
    const ALL: OnDemand = {
        let (send, recv, write, read, atomic, srq_recv) = (1, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5);
        let datagram = send | recv;
        let reliable = send | srq_recv | write | read | atomic;
        OnDemand { general: 1 | 2, rc: reliable | recv, uc: datagram | write, ud: datagram, xrc: reliable }
    };
}

/// How slow queue pairs can be told to send (`ibv_packet_pacing_caps`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pacing {
    /// The lowest rate, in kilobits a second.
    pub least_kbps: u32,
    /// The highest.
    pub most_kbps: u32,
    /// Those that heed it: a bit for each, by the numbers of `ibv_qp_type`.
    pub services: u32,
}

impl Pacing {
    /// RC, UC, UD and XRC's initiators at any rate.
    const ALL: Pacing =
        Pacing { least_kbps: 1, most_kbps: u32::MAX, services: 1 << 2 | 1 << 3 | 1 << 4 | 1 << 9 };
}

/// What an atomic operation is atomic against, with the numbers of verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum AtomicCap {
    /// There are none.
    None = 0,
    /// Other atomics of this device.
    Hca = 1,
    /// Those of the processor and of other devices too.
    Global = 2,
}

/// Abilities of a device, with the bits of `device_cap_flags_ex` (whose lower half is `device_cap_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCaps(pub u64);

impl DeviceCaps {
    /// Counts packets with a wrong partition key.
    pub const BAD_PKEY_CNTR: DeviceCaps = DeviceCaps(1 << 1);
    /// Counts packets with a wrong queue key.
    pub const BAD_QKEY_CNTR: DeviceCaps = DeviceCaps(1 << 2);
    /// Queue pairs can go on by an alternate path.
    pub const AUTO_PATH_MIG: DeviceCaps = DeviceCaps(1 << 4);
    /// `modify` checks the current state if it is given.
    pub const CURR_QP_STATE_MOD: DeviceCaps = DeviceCaps(1 << 7);
    /// Raises an event when the port comes up.
    pub const PORT_ACTIVE_EVENT: DeviceCaps = DeviceCaps(1 << 10);
    /// Has a system image GUID.
    pub const SYS_IMAGE_GUID: DeviceCaps = DeviceCaps(1 << 11);
    /// Answers "receiver not ready" on RC.
    pub const RC_RNR_NAK_GEN: DeviceCaps = DeviceCaps(1 << 12);
    /// Shared receive queues can be resized.
    pub const SRQ_RESIZE: DeviceCaps = DeviceCaps(1 << 13);

    /// Has memory windows.
    pub const MEM_WINDOW: DeviceCaps = DeviceCaps(1 << 17);
    /// Has the extended reliable service.
    pub const XRC: DeviceCaps = DeviceCaps(1 << 20);
    /// Has fast regions, SEND with invalidate and local invalidate.
    pub const MEM_MGT_EXTENSIONS: DeviceCaps = DeviceCaps(1 << 21);
    /// Has windows of type 2A.
    pub const MEM_WINDOW_TYPE_2A: DeviceCaps = DeviceCaps(1 << 23);
    /// Has windows of type 2B.
    pub const MEM_WINDOW_TYPE_2B: DeviceCaps = DeviceCaps(1 << 24);
    /// Has FLUSH to global visibility.
    pub const FLUSH_GLOBAL: DeviceCaps = DeviceCaps(1 << 38);
    /// Has FLUSH to persistence.
    pub const FLUSH_PERSISTENT: DeviceCaps = DeviceCaps(1 << 39);
    /// Has ATOMIC WRITE.
    pub const ATOMIC_WRITE: DeviceCaps = DeviceCaps(1 << 40);

    /// Whether it has all of `others`.
    pub fn has(self, others: DeviceCaps) -> bool {
        self.0 & others.0 == others.0
    }
}

impl BitOr for DeviceCaps {
    type Output = DeviceCaps;
    fn bitor(self, other: DeviceCaps) -> DeviceCaps {
        DeviceCaps(self.0 | other.0)
    }
}

/// An acknowledgement may wait for the application's next call, or up to 16 ms for the background thread: 2^12 · 4.096 µs.
const ACK_DELAY: u8 = 12;

/// Every size from that of the smallest page on.
const PAGE_SIZES: u64 = !0xfff;

/// What a port is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAttr {
    /// The port carries packets.
    pub active: bool,
    /// The largest path MTU whose packets the link carries.
    pub active_mtu: Mtu,
    /// The largest path MTU at all.
    pub max_mtu: Mtu,
    /// Entries of the GID table: one for each address that the port has or had. Addresses that it gets later extend the table.
    pub gid_table_len: usize,
    /// Entries of the partition key table.
    pub pkey_table_len: usize,
    /// Bytes of the longest message.
    pub max_msg_size: u64,
    /// Packets with a wrong partition key so far.
    pub bad_pkey_cntr: u64,
    /// Packets with a wrong queue key so far.
    pub qkey_viol_cntr: u64,
    /// What stands for its address where programs know no GIDs ([`lid_of`]).
    pub lid: u16,
    /// `port_cap_flags`: there is a connection manager, and GIDs are IP addresses.
    pub cap_flags: u32,
    /// `IBV_WIDTH_4X`, of lanes of 25 Gb/s: software has no figure of its own, and programs size their windows by it.
    pub active_width: u8,
    /// The speed of a lane, with the number of verbs.
    pub active_speed: u8,
}

/// What stands for an address where programs know no GIDs: its last 16 bits. RoCE has no LIDs, so this is good among
/// neighbours whose addresses differ in nothing else.
pub fn lid_of(gid: Gid) -> u16 {
    let [.., high, low] = gid.0;
    u16::from_be_bytes([high, low])
}

/// The state of a port, with the numbers of `enum ibv_port_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum PortState {
    /// It carries nothing.
    Down = 1,
    /// It carries packets.
    Active = 4,
}

impl PortAttr {
    /// The port's state. (Ports of InfiniBand have three more, while a subnet manager sets them up.)
    pub fn state(&self) -> PortState {
        if self.active { PortState::Active } else { PortState::Down }
    }

    /// The number of its physical state: link up, or disabled.
    pub fn phys_state(&self) -> u8 {
        if self.active { 5 } else { 3 }
    }
}

/// The node GUID of a device that is to be opened on a link with this MAC, or with zeros for none, and these addresses.
pub fn node_guid(mac: [u8; 6], addresses: &[IpAddr]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    if mac != [0; 6] {
        // EUI-64, as hardware makes it.
        return u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    }
    // What no other device of the network has: its address, or the part of it that names the host.
    let host = match main_address(addresses) {
        Some(IpAddr::V4(ip)) => ip.to_bits(),
        Some(IpAddr::V6(ip)) => ip.to_bits() as u32,
        None => 0,
    };
    0x5258_fffe_0000_0000 | u64::from(host)
}

impl Context {
    /// What the device is and has at most.
    pub fn query_device(&self) -> DeviceAttr {
        let limits = self.0.limits;
        let guid = node_guid(self.0.info.mac, &self.0.info.addresses);
        DeviceAttr {
            name: format!("urxe ({})", self.0.info.name),
            version: env!("CARGO_PKG_VERSION"),
            personality: self.0.personality,
            node_guid: guid,
            sys_image_guid: guid,
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            hw_ver: 0,
            page_size_cap: PAGE_SIZES,
            limits,
            max_mw: limits.max_mr,
            max_ah: i32::MAX as u32,
            max_sge_rd: limits.max_sge,
            max_res_rd_atom: limits.max_qp.saturating_mul(limits.max_qp_rd_atom).min(i32::MAX as u32),
            // Done with the processor's own atomic instructions.
            atomic_cap: AtomicCap::Global,
            caps: DeviceCaps::BAD_PKEY_CNTR
                | DeviceCaps::BAD_QKEY_CNTR
                | DeviceCaps::AUTO_PATH_MIG
                | DeviceCaps::CURR_QP_STATE_MOD
                | DeviceCaps::PORT_ACTIVE_EVENT
                | DeviceCaps::SYS_IMAGE_GUID
                | DeviceCaps::RC_RNR_NAK_GEN
                | DeviceCaps::SRQ_RESIZE
                | DeviceCaps::MEM_WINDOW
                | DeviceCaps::XRC
                | DeviceCaps::MEM_MGT_EXTENSIONS
                | DeviceCaps::MEM_WINDOW_TYPE_2A
                | DeviceCaps::MEM_WINDOW_TYPE_2B
                | DeviceCaps::FLUSH_GLOBAL
                | DeviceCaps::FLUSH_PERSISTENT
                | DeviceCaps::ATOMIC_WRITE,
            on_demand: if knows_what_is_mapped() { OnDemand::ALL } else { OnDemand::default() },
            pacing: Pacing::ALL,
            local_ca_ack_delay: ACK_DELAY,
            phys_port_cnt: 1,
            hca_core_clock_khz: 1_000_000,
            completion_timestamp_mask: u64::MAX,
        }
    }

    /// The port. There is one, number 1.
    pub fn query_port(&self) -> PortAttr {
        let counters = self.counters();
        self.0.shards.look(|nic| PortAttr {
            active: nic.port_is_up(),
            active_mtu: self.0.mtu,
            max_mtu: Mtu::Mtu4096,
            gid_table_len: nic.config().port.gids.len(),
            pkey_table_len: nic.pkeys().len(),
            max_msg_size: MAX_MESSAGE,
            bad_pkey_cntr: counters.rx_pkey_violation,
            qkey_viol_cntr: counters.rx_qkey_violation,
            lid: nic.config().port.main_gid().and_then(|i| nic.config().port.gid(i)).map_or(0, lid_of),
            cap_flags: 1 << 16 | 1 << 26,
            active_width: 2,
            active_speed: 32,
        })
    }
}
