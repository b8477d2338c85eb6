//! What calls on an id take: connection parameters, options.

use crate::transport::QpType;
use crate::wire::mad::ip::PortSpace;
use crate::wire::{Gid, Mtu, PKey, QKey, Qpn};

/// The service that ids of a port space have unless they say otherwise.
pub(super) fn usual_service(space: PortSpace) -> QpType {
    match space {
        PortSpace::Tcp | PortSpace::Ib => QpType::Rc,
        PortSpace::Udp | PortSpace::Ipoib => QpType::Ud,
    }
}

/// The queue key of datagrams among ids (`RDMA_UDP_QKEY`).
pub const UDP_QKEY: QKey = QKey(0x0123_4567);

/// As many READs and atomics as the device does, or when accepting as the request asks for (`RDMA_MAX_RESP_RES`,
/// `RDMA_MAX_INIT_DEPTH`).
pub const MAX_RD_ATOMIC: u8 = 0xff;

/// What one side of a connection asks for, or grants (`struct rdma_conn_param`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnParam {
    /// Bytes for the peer's program.
    pub private_data: Vec<u8>,
    /// READs and atomics of the peer's that it takes at a time, or [`MAX_RD_ATOMIC`].
    pub responder_resources: u8,
    /// READs and atomics that it has in flight at a time, or [`MAX_RD_ATOMIC`].
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries after a timeout, 0..=7. The side that connects says it for both.
    pub retry_count: u8,
    /// Retries after a receiver-not-ready, 0..=7: those that the peer is to make.
    pub rnr_retry_count: u8,
    /// Receives come from a shared queue. Not looked at where the manager drives the queue pair.
    pub srq: bool,
    /// The queue pair, where the manager does not drive it.
    pub qp_num: Option<Qpn>,
    /// The queue key that datagrams to it must have: [`UDP_QKEY`] unless given.
    pub qkey: Option<QKey>,
}

impl Default for ConnParam {
    /// No private data, as many READs as the device does, 7 retries each.
    fn default() -> Self {
        ConnParam {
            private_data: Vec::new(),
            responder_resources: MAX_RD_ATOMIC,
            initiator_depth: MAX_RD_ATOMIC,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qp_num: None,
            qkey: None,
        }
    }
}

impl ConnParam {
    /// The default with bytes for the peer's program.
    pub fn with_data(private_data: &[u8]) -> ConnParam {
        ConnParam { private_data: private_data.to_vec(), ..ConnParam::default() }
    }
}

/// How a multicast group is joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Membership {
    /// To send and to receive.
    #[default]
    Full,
    /// To send only.
    SendOnly,
}

/// The path of a connection, as a path record has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Ours.
    pub sgid: Gid,
    /// The peer's.
    pub dgid: Gid,
    /// Which entry of the GID table ours is.
    pub sgid_index: u8,
    /// The partition.
    pub pkey: PKey,
    /// Payload bytes a packet.
    pub mtu: Mtu,
    /// Traffic class (ToS).
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// How long a packet can be under way: 4.096 µs · 2^this.
    pub packet_life_time: u8,
}
