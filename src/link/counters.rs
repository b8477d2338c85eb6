//! Counters of the packets that a link drops.
#![forbid(unsafe_code)]

use crate::sys::counters::counters;
use crate::wire::frame::{FrameError, PRIORITIES};

counters! {
    /// Packets that a link received but did not deliver, or could not send, by cause.
    "link_" LinkCounters {
        /// Frames that are neither RoCEv2 packets for this link nor neighbour discovery.
        rx_foreign,
        /// RoCEv1 packets with a valid ICRC; only RoCEv2 is supported.
        rx_roce_v1,
        /// RoCEv1 packets with an invalid ICRC.
        rx_roce_v1_corrupt,
        /// Frames that are truncated or have inconsistent lengths.
        rx_truncated,
        /// IPv4 packets with options, which RoCEv2 does not allow.
        rx_ip_options,
        /// Fragments of IP packets.
        rx_fragments,
        /// Frames with an invalid IP, UDP or ICMP checksum.
        rx_bad_checksum,
        /// Frames that are malformed in any other way.
        rx_malformed,
        /// Packets, or coalesced runs of packets, that arrived while the receive buffer was full.
        rx_overflow,
        /// Packets that the kernel or a full queue rejected.
        tx_dropped,
        /// Packets larger than the path MTU.
        tx_oversized,
        /// Packets to a destination without a route or without a listener.
        tx_unreachable,
        /// Packets to an address whose MAC is not (yet) known.
        tx_unresolved,
        /// Packets to another process of this host for which a ring in shared memory is required, and there was none.
        tx_no_ring,
    } by PRIORITIES {
        /// Pause frames received that name a priority, resumptions included, by priority.
        rx_prio_pause,
        /// Pause frames sent that name a priority, resumptions included, by priority.
        tx_prio_pause,
    }
}

/// Names of the counters by priority, as the driver of ConnectX adapters gives them to ethtool.
macro_rules! pause_names {
    ($direction:literal: $($priority:literal)*) => {
        [$(concat!($direction, "_prio", $priority, "_pause")),*]
    };
}
const RX_PRIO_PAUSE: [&str; PRIORITIES] = pause_names!("rx": 0 1 2 3 4 5 6 7);
const TX_PRIO_PAUSE: [&str; PRIORITIES] = pause_names!("tx": 0 1 2 3 4 5 6 7);

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
        self.named()
            .chain(RX_PRIO_PAUSE.into_iter().zip(self.rx_prio_pause))
            .chain(TX_PRIO_PAUSE.into_iter().zip(self.tx_prio_pause))
    }
}
