//! Parameters for calls on an id: connection parameters, group membership and paths.

use crate::sys::options::options;
use crate::transport::QpType;
use crate::wire::mad::ip::PortSpace;
use crate::wire::{Gid, Mtu, PKey, QKey, Qpn};

/// Returns a port space's default transport service.
pub(super) fn default_qp_type(space: PortSpace) -> QpType {
    match space {
        PortSpace::Tcp | PortSpace::Ib => QpType::Rc,
        PortSpace::Udp | PortSpace::Ipoib => QpType::Ud,
    }
}

/// Q_Key of all datagrams between ids (`RDMA_UDP_QKEY`).
pub const UDP_QKEY: QKey = QKey(0x0123_4567);

/// Placeholder for the device's maximum number of READs and atomics. When accepting, it is also capped at the
/// number that the peer has requested (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
pub const MAX_RD_ATOMIC: u8 = 0xff;

options! {
    /// Parameters requested or granted by one side of a connection (`struct rdma_conn_param`).
    ///
    /// The defaults have no private data, the device's maximum number of READs and atomics, and 7 retries of each kind.
    #[derive(Clone, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    pub struct ConnParam {
        /// Private data for the peer's program.
        pub private_data: Vec<u8> = Vec::new(),
        /// Maximum number of the peer's READs and atomics in flight, or [`MAX_RD_ATOMIC`].
        pub responder_resources: u8 = MAX_RD_ATOMIC,
        /// Maximum number of this side's READs and atomics in flight, or [`MAX_RD_ATOMIC`].
        pub initiator_depth: u8 = MAX_RD_ATOMIC,
        /// Whether end-to-end flow control is in use.
        pub flow_control: bool = false,
        /// Number of retries after a timeout, 0..=7. The connecting side sets it for both sides.
        pub retry_count: u8 = 7,
        /// Number of retries that the peer makes after an RNR NAK, 0..=7.
        pub rnr_retry_count: u8 = 7,
        /// Whether receives are taken from a shared receive queue. Ignored if a queue pair is attached to the id.
        pub srq: bool = false,
        optional
        /// Queue pair number, if no queue pair is attached to the id.
        pub qp_num: Option<Qpn>,
        /// Q_Key that datagrams to the queue pair must carry. Defaults to the attached queue pair's Q_Key or,
        /// without one, to [`UDP_QKEY`].
        pub qkey: Option<QKey>,
    }
}

impl ConnParam {
    /// Creates default parameters with private data for the peer's program.
    pub fn with_data(private_data: &[u8]) -> ConnParam {
        ConnParam { private_data: private_data.to_vec(), ..ConnParam::default() }
    }
}

/// Role of an id in a multicast group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Membership {
    /// Member that sends and receives.
    #[default]
    Full,
    /// Member that only sends.
    SendOnly,
}

/// A connection's path, with the fields of a path record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathRecord {
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
    /// Index of the source GID in the port's GID table.
    pub sgid_index: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Path MTU: the maximum payload of a packet.
    pub mtu: Mtu,
    /// Traffic class (ToS).
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Code of the maximum packet lifetime, which is 4.096 µs * 2^code.
    pub packet_life_time: u8,
}
