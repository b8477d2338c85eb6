//! Acknowledgement requests: decides which packets carry AckReq.
//!
//! A personality of a device has that device's rule ([`AckRequests`]). By default, a packet requests an
//! acknowledgement if something depends on it: a completion, room in the congestion window or room in the
//! send queue. All other packets go without, because an acknowledgement costs both sides as much as a short
//! message. If no packet follows them, [loss recovery](crate::transport::recovery) sends a tail loss probe,
//! which requests it.

use crate::transport::quirks::AckRequests;
use crate::wire::{Mtu, Psn};

/// Minimum number of acknowledgement requests per window and per send queue, so that the window never closes
/// and the send queue never fills up with completed work requests.
const PARTS: u32 = 4;

/// Position of a packet, as far as acknowledgement requests depend on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketPosition {
    /// Flight cost of everything before the packet.
    pub start_cost: u64,
    /// Index of the packet within its message.
    pub packet: u32,
    pub psn: Psn,
}

impl AckRequests {
    /// Returns the maximum number of full packets between two acknowledgement requests, regardless of the
    /// window size: even a peer that lags far behind acknowledges something before the local ACK timer
    /// expires.
    fn interval(self) -> u32 {
        match self {
            AckRequests::Needed => 64,
            AckRequests::Signaled => 256,
            AckRequests::Messages => 66,
        }
    }

    /// Reports whether a packet that extends to flight cost `end_cost` requests an acknowledgement because of
    /// its position: it crosses a boundary between parts of the peer's window, or ends an interval. The
    /// result depends only on the packet's position and on that window.
    pub(super) fn is_marked(self, at: PacketPosition, end_cost: u64, window: usize, mtu: Mtu) -> bool {
        let part = self.part_bits(window, mtu);
        at.start_cost >> part != end_cost >> part || self.packets_until_interval_ends(at) == 0
    }

    /// Returns the number of full packets, which cost `each`, that can follow `at` before one is marked.
    pub(super) fn packets_until_mark(self, at: PacketPosition, each: u64, window: usize, mtu: Mtu) -> u64 {
        let until_part_ends = !at.start_cost & ((1 << self.part_bits(window, mtu)) - 1);
        (until_part_ends / each).min(self.packets_until_interval_ends(at).into())
    }

    /// Returns the binary logarithm of the size of a part of the window, which is a power of two so that the
    /// per-packet check is fast.
    fn part_bits(self, window: usize, mtu: Mtu) -> u32 {
        let part = window as u64 / u64::from(PARTS);
        let max = match self {
            AckRequests::Needed => u64::from(self.interval()) * mtu.bytes() as u64,
            AckRequests::Signaled | AckRequests::Messages => u64::MAX,
        };
        part.clamp(1, max).ilog2()
    }

    fn packets_until_interval_ends(self, at: PacketPosition) -> u32 {
        let position = match self {
            // Parts of the window are no longer than an interval.
            AckRequests::Needed => return u32::MAX,
            AckRequests::Signaled => at.psn.get(),
            AckRequests::Messages => at.packet,
        };
        self.interval() - 1 - position % self.interval()
    }
}

/// Reports whether the work request at `index` is the last one in its part of a send queue with `max_wr`
/// slots.
pub(super) fn fills_a_part(index: u64, max_wr: u32) -> bool {
    let part = 1u64 << (max_wr / PARTS).max(1).ilog2();
    index & (part - 1) == part - 1
}
