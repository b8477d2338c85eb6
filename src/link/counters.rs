//! Counters of the packets that a link drops.
#![forbid(unsafe_code)]

use std::ops::AddAssign;

use crate::wire::frame::{FrameError, PRIORITIES};

/// Packets that a link received but did not deliver, or could not send, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LinkCounters {
    /// Frames that are neither RoCEv2 packets for this link nor neighbour discovery.
    pub rx_foreign: u64,
    /// RoCEv1 packets with a valid ICRC; only RoCEv2 is supported.
    pub rx_roce_v1: u64,
    /// RoCEv1 packets with an invalid ICRC.
    pub rx_roce_v1_corrupt: u64,
    /// Frames that are truncated or have inconsistent lengths.
    pub rx_truncated: u64,
    /// IPv4 packets with options, which RoCEv2 does not allow.
    pub rx_ip_options: u64,
    /// Fragments of IP packets.
    pub rx_fragments: u64,
    /// Frames with an invalid IP, UDP or ICMP checksum.
    pub rx_bad_checksum: u64,
    /// Frames that are malformed in any other way.
    pub rx_malformed: u64,
    /// Packets, or coalesced runs of packets, that arrived while the receive buffer was full.
    pub rx_overflow: u64,
    /// Packets that the kernel or a full queue rejected.
    pub tx_dropped: u64,
    /// Packets larger than the path MTU.
    pub tx_oversized: u64,
    /// Packets to a destination without a route or without a listener.
    pub tx_unreachable: u64,
    /// Packets to an address whose MAC is not (yet) known.
    pub tx_unresolved: u64,
    /// Packets to another process of this host for which a ring in shared memory is required, and there was none.
    pub tx_no_ring: u64,
    /// Pause frames received that name a priority, resumptions included, by priority.
    pub rx_prio_pause: [u64; PRIORITIES],
    /// Pause frames sent that name a priority, resumptions included, by priority.
    pub tx_prio_pause: [u64; PRIORITIES],
}

/// Names of the counters by priority, as the driver of ConnectX adapters gives them to ethtool.
const RX_PRIO_PAUSE: [&str; PRIORITIES] = [
    "rx_prio0_pause",
    "rx_prio1_pause",
    "rx_prio2_pause",
    "rx_prio3_pause",
    "rx_prio4_pause",
    "rx_prio5_pause",
    "rx_prio6_pause",
    "rx_prio7_pause",
];
const TX_PRIO_PAUSE: [&str; PRIORITIES] = [
    "tx_prio0_pause",
    "tx_prio1_pause",
    "tx_prio2_pause",
    "tx_prio3_pause",
    "tx_prio4_pause",
    "tx_prio5_pause",
    "tx_prio6_pause",
    "tx_prio7_pause",
];

impl LinkCounters {
    /// Counts a frame that was dropped because of a parse error.
    pub(crate) fn count(&mut self, error: &FrameError) {
        *match error {
            FrameError::Truncated { .. }
            | FrameError::LengthTooShort { .. }
            | FrameError::NeighborOption
            | FrameError::UdpLength { .. } => &mut self.rx_truncated,
            FrameError::Ipv4Options { .. } => &mut self.rx_ip_options,
            FrameError::Fragment => &mut self.rx_fragments,
            FrameError::Ipv4Checksum { .. }
            | FrameError::UdpChecksum { .. }
            | FrameError::IcmpChecksum { .. } => &mut self.rx_bad_checksum,
            FrameError::IpVersion { .. } => &mut self.rx_malformed,
        } += 1;
    }

    /// Counts a dropped RoCEv1 packet. `intact` tells whether its ICRC is valid.
    pub(crate) fn count_roce_v1(&mut self, intact: bool) {
        *(if intact { &mut self.rx_roce_v1 } else { &mut self.rx_roce_v1_corrupt }) += 1;
    }

    /// Iterates over the counters as name-value pairs, in declaration order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("link_rx_foreign", self.rx_foreign),
            ("link_rx_roce_v1", self.rx_roce_v1),
            ("link_rx_roce_v1_corrupt", self.rx_roce_v1_corrupt),
            ("link_rx_truncated", self.rx_truncated),
            ("link_rx_ip_options", self.rx_ip_options),
            ("link_rx_fragments", self.rx_fragments),
            ("link_rx_bad_checksum", self.rx_bad_checksum),
            ("link_rx_malformed", self.rx_malformed),
            ("link_rx_overflow", self.rx_overflow),
            ("link_tx_dropped", self.tx_dropped),
            ("link_tx_oversized", self.tx_oversized),
            ("link_tx_unreachable", self.tx_unreachable),
            ("link_tx_unresolved", self.tx_unresolved),
            ("link_tx_no_ring", self.tx_no_ring),
        ]
        .into_iter()
        .chain(RX_PRIO_PAUSE.into_iter().zip(self.rx_prio_pause))
        .chain(TX_PRIO_PAUSE.into_iter().zip(self.tx_prio_pause))
    }
}

impl AddAssign for LinkCounters {
    fn add_assign(&mut self, other: LinkCounters) {
        let LinkCounters {
            rx_foreign,
            rx_roce_v1,
            rx_roce_v1_corrupt,
            rx_truncated,
            rx_ip_options,
            rx_fragments,
            rx_bad_checksum,
            rx_malformed,
            rx_overflow,
            tx_dropped,
            tx_oversized,
            tx_unreachable,
            tx_unresolved,
            tx_no_ring,
            rx_prio_pause,
            tx_prio_pause,
        } = other;
        self.rx_foreign += rx_foreign;
        self.rx_roce_v1 += rx_roce_v1;
        self.rx_roce_v1_corrupt += rx_roce_v1_corrupt;
        self.rx_truncated += rx_truncated;
        self.rx_ip_options += rx_ip_options;
        self.rx_fragments += rx_fragments;
        self.rx_bad_checksum += rx_bad_checksum;
        self.rx_malformed += rx_malformed;
        self.rx_overflow += rx_overflow;
        self.tx_dropped += tx_dropped;
        self.tx_oversized += tx_oversized;
        self.tx_unreachable += tx_unreachable;
        self.tx_unresolved += tx_unresolved;
        self.tx_no_ring += tx_no_ring;
        self.rx_prio_pause.iter_mut().zip(rx_prio_pause).for_each(|(sum, n)| *sum += n);
        self.tx_prio_pause.iter_mut().zip(tx_prio_pause).for_each(|(sum, n)| *sum += n);
    }
}
