//! Attributes of a device and its port (`ibv_query_device_ex`, `ibv_query_port`).

use std::net::IpAddr;

use bitflags::bitflags;

use super::Context;
use crate::host::primary_address;
use crate::memory::supports_populate;
use crate::nic::Limits;
use crate::transport::MAX_MESSAGE;
use crate::wire::{Gid, Mtu};

/// Attributes and limits of a device (`ibv_device_attr_ex`). The fields for reliable datagrams, raw packets
/// and fast memory regions (FMR) are omitted, because these are not supported; libibverbs programs read 0
/// there.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Human-readable name.
    pub name: String,
    /// Version of this crate (`fw_ver`).
    pub version: &'static str,
    /// Name of the personality: the class of devices that the NIC imitates.
    pub personality: &'static str,
    /// Node GUID, an EUI-64.
    pub node_guid: u64,
    /// System image GUID: equal to the node GUID, because each NIC counts as a system of its own.
    pub sys_image_guid: u64,
    /// IEEE vendor ID: 0xffffff (none), as reported by the kernel's software devices.
    pub vendor_id: u32,
    /// Vendor's part number.
    pub vendor_part_id: u32,
    /// Hardware version: 0, because there is no hardware.
    pub hw_ver: u32,
    /// Page sizes that regions may have, as a mask with one bit per power of two.
    pub page_size_cap: u64,
    /// Limits that depend on the personality.
    pub limits: Limits,
    /// Maximum number of memory windows. Regions count against the same limit.
    pub max_mw: u32,
    /// Maximum number of address handles: the largest `int`, because address handles use no device memory.
    pub max_ah: u32,
    /// Maximum number of scatter/gather elements per RDMA READ.
    pub max_sge_rd: u32,
    /// Maximum number of READs and atomics in flight from peers, over all queue pairs.
    pub max_res_rd_atom: u32,
    /// Scope within which atomic operations are atomic.
    pub atomic_cap: AtomicCap,
    /// Further capabilities.
    pub caps: DeviceCaps,
    /// On-demand paging capabilities.
    pub on_demand: OnDemand,
    /// Supported packet pacing rates.
    pub pacing: Pacing,
    /// Acknowledgement delay, as an exponent n: the device may take up to 4.096 µs * 2^n to send an
    /// acknowledgement.
    pub local_ca_ack_delay: u8,
    /// Number of ports.
    pub phys_port_cnt: u8,
    /// Clock frequency in kHz: 1000000, because the clock counts nanoseconds ([`Context::clock`]).
    pub hca_core_clock_khz: u64,
    /// Mask of the valid bits in a completion timestamp.
    pub completion_timestamp_mask: u64,
}

impl DeviceAttr {
    /// Returns the attributes as reported to libibverbs programs. Atomics are reported as atomic only with
    /// respect to this device's other atomics. They are atomic with respect to the processor too, but no
    /// hardware reports that, and UCX uses atomics only if the lesser capability is reported.
    #[doc(hidden)]
    pub fn for_libibverbs(self) -> DeviceAttr {
        DeviceAttr { atomic_cap: AtomicCap::Hca, ..self }
    }
}

/// On-demand paging capabilities of a device, with the bit values of `ibv_odp_caps`: `general` contains
/// `IBV_ODP_SUPPORT` and `IBV_ODP_SUPPORT_IMPLICIT`, and each service its operations, such as
/// `IBV_ODP_SUPPORT_SEND`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "services by their names")]
#[non_exhaustive]
pub struct OnDemand {
    pub general: u64,
    pub rc: u32,
    pub uc: u32,
    pub ud: u32,
    pub xrc: u32,
}

impl OnDemand {
    /// On-demand paging for all operations that each service supports.
    const ALL: OnDemand = {
        let (send, recv, write, read, atomic, srq_recv) = (1, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5);
        let datagram = send | recv;
        let reliable = send | srq_recv | write | read | atomic;
        OnDemand { general: 1 | 2, rc: reliable | recv, uc: datagram | write, ud: datagram, xrc: reliable }
    };
}

/// Supported packet pacing rates (`ibv_packet_pacing_caps`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Pacing {
    /// Lowest rate, in kilobits per second.
    pub min_kbps: u32,
    /// Highest rate, in kilobits per second.
    pub max_kbps: u32,
    /// Services that support pacing, as a mask with one bit per `ibv_qp_type` value.
    pub services: u32,
}

impl Pacing {
    /// Pacing at any rate for RC, UC, UD and XRC initiator queue pairs.
    const ALL: Pacing =
        Pacing { min_kbps: 1, max_kbps: u32::MAX, services: 1 << 2 | 1 << 3 | 1 << 4 | 1 << 9 };
}

/// Scope within which atomic operations are atomic, with the values of `enum ibv_atomic_cap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum AtomicCap {
    /// No atomic operations.
    None = 0,
    /// Atomic with respect to the other atomic operations of this device.
    Hca = 1,
    /// Atomic also with respect to atomic operations by the processor and by other devices.
    Global = 2,
}

bitflags! {
    /// Capabilities of a device, with the bit values of `device_cap_flags_ex` (whose lower half is
    /// `device_cap_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct DeviceCaps: u64 {
        /// Counts received packets with an invalid partition key.
        const BAD_PKEY_CNTR = 1 << 1;
        /// Counts received packets with an invalid queue key.
        const BAD_QKEY_CNTR = 1 << 2;
        /// Queue pairs support automatic path migration to an alternate path.
        const AUTO_PATH_MIG = 1 << 4;
        /// Modifying a queue pair checks its current state if the caller specifies one.
        const CURR_QP_STATE_MOD = 1 << 7;
        /// Raises an event when the port becomes active.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// Has a system image GUID.
        const SYS_IMAGE_GUID = 1 << 11;
        /// Generates RNR NAKs on RC.
        const RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// Supports memory windows.
        const MEM_WINDOW = 1 << 17;
        /// Supports extended reliable connections (XRC).
        const XRC = 1 << 20;
        /// Supports fast registration, SEND with invalidate and local invalidate.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Supports type 2A memory windows.
        const MEM_WINDOW_TYPE_2A = 1 << 23;
        /// Supports type 2B memory windows.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// Supports FLUSH with global visibility.
        const FLUSH_GLOBAL = 1 << 38;
        /// Supports FLUSH with persistence.
        const FLUSH_PERSISTENT = 1 << 39;
        /// Supports ATOMIC WRITE.
        const ATOMIC_WRITE = 1 << 40;
    }
}

/// Reported acknowledgement delay, as an exponent: 4.096 µs * 2^12 is 16.8 ms. An acknowledgement waits for
/// the application's next call, or at most 16 ms for the background thread to send it.
const ACK_DELAY: u8 = 12;

/// Supported page sizes: all powers of two of at least 4096 bytes.
const PAGE_SIZES: u64 = !0xfff;

/// Attributes of a port (`ibv_port_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PortAttr {
    /// Whether the port carries packets.
    pub active: bool,
    /// Largest path MTU whose packets the link can carry.
    pub active_mtu: Mtu,
    /// Largest path MTU that the NIC supports.
    pub max_mtu: Mtu,
    /// Number of entries in the GID table: one for each address that the port has or had. Addresses added
    /// later extend the table.
    pub gid_table_len: usize,
    /// Number of entries in the partition key table.
    pub pkey_table_len: usize,
    /// Maximum message length in bytes.
    pub max_msg_size: u64,
    /// Number of packets received so far with an invalid partition key.
    pub bad_pkey_cntr: u64,
    /// Number of packets received so far with an invalid queue key.
    pub qkey_viol_cntr: u64,
    /// Capability flags (`port_cap_flags`): `IBV_PORT_CM_SUP` and `IBV_PORT_IP_BASED_GIDS`.
    pub cap_flags: u32,
    /// Link width, encoded as in `ibv_port_attr`. It and the speed per lane are those of the
    /// [personality](crate::verbs::Personality) unless a fault changes them. Software has no nominal speed,
    /// but some programs size their windows and select their protocols by this value.
    pub active_width: u8,
    /// Speed per lane, encoded as in `ibv_port_attr`.
    pub active_speed: u8,
}

/// Returns a substitute for a LID, for `urxe run --lid-routing`: the last 16 bits of the address. Ports of
/// RoCE have LID 0, so the substitute works only between neighbours whose addresses differ in no other bits.
pub fn lid_of(gid: Gid) -> u16 {
    let [.., high, low] = gid.0;
    u16::from_be_bytes([high, low])
}

/// State of a port, with the values of `enum ibv_port_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum PortState {
    /// The port carries no packets.
    Down = 1,
    /// The port carries packets.
    Active = 4,
}

impl PortAttr {
    /// Returns the port's state. (InfiniBand ports have three more states, used while a subnet manager
    /// configures them.)
    pub fn state(&self) -> PortState {
        if self.active { PortState::Active } else { PortState::Down }
    }

    /// Returns the port's physical state: 5 for link up, 3 for disabled.
    pub fn phys_state(&self) -> u8 {
        if self.active { 5 } else { 3 }
    }
}

/// Returns a device's node GUID, derived from its link's MAC address or, if that is all zeros, from its
/// primary IP address.
pub fn node_guid(mac: [u8; 6], addresses: &[IpAddr]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    if mac != [0; 6] {
        // EUI-64 of the MAC address, as hardware builds it.
        return u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    }
    // Without a MAC address, the IPv4 address or the last 32 bits of the IPv6 address make the GUID unique in
    // the network.
    let host = match primary_address(addresses) {
        Some(IpAddr::V4(ip)) => ip.to_bits(),
        Some(IpAddr::V6(ip)) => ip.to_bits() as u32,
        None => 0,
    };
    0x5258_fffe_0000_0000 | u64::from(host)
}

impl Context {
    /// Returns the device's attributes and limits.
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
            // Atomics are executed with the processor's own atomic instructions.
            atomic_cap: AtomicCap::Global,
            caps: DeviceCaps::all(),
            on_demand: if supports_populate() { OnDemand::ALL } else { OnDemand::default() },
            pacing: Pacing::ALL,
            local_ca_ack_delay: ACK_DELAY,
            phys_port_cnt: 1,
            hca_core_clock_khz: 1_000_000,
            completion_timestamp_mask: u64::MAX,
        }
    }

    /// Returns the attributes of port 1, the only port.
    pub fn query_port(&self) -> PortAttr {
        let counters = self.counters();
        self.0.shards.with_nic(|nic| PortAttr {
            active: nic.port_is_up(),
            active_mtu: self.0.mtu,
            max_mtu: Mtu::Mtu4096,
            gid_table_len: nic.config().port.gids.len(),
            pkey_table_len: nic.pkeys().len(),
            max_msg_size: MAX_MESSAGE,
            bad_pkey_cntr: counters.rx_pkey_violation,
            qkey_viol_cntr: counters.rx_qkey_violation,
            cap_flags: 1 << 16 | 1 << 26,
            active_width: nic.port_speed().width(),
            active_speed: nic.port_speed().lane(),
        })
    }
}
