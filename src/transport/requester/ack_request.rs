//! Acknowledgement requests: decides which packets carry AckReq.
//!
//! A packet requests an acknowledgement if something depends on it: a completion, room in the congestion
//! window or room in the send queue. All other packets go without, because an acknowledgement costs both
//! sides as much as a short message. If no packet follows them, [loss recovery](crate::transport::recovery) sends
//! a tail loss probe, which requests it.

use crate::wire::Mtu;

/// Minimum number of acknowledgement requests per window and per send queue, so that the window never closes
/// and the send queue never fills up with completed work requests.
const PARTS: u32 = 4;

/// Maximum number of full packets between two acknowledgement requests, regardless of the window size: even a
/// peer that lags far behind acknowledges something before the local ACK timer expires. rxe requests
/// acknowledgements equally often.
const ASK_PACKETS: u64 = 64;

/// Reports whether a packet that extends from flight cost `start_cost` to `end_cost` crosses a boundary
/// between parts of the peer's window. The result depends only on the packet's position and on that window.
pub(super) fn is_marked(start_cost: u64, end_cost: u64, window: usize, mtu: Mtu) -> bool {
    let part = part_bits(window, mtu);
    start_cost >> part != end_cost >> part
}

/// Returns the largest flight cost that can follow `start_cost` without crossing a part boundary.
pub(super) fn until_mark(start_cost: u64, window: usize, mtu: Mtu) -> u64 {
    !start_cost & ((1 << part_bits(window, mtu)) - 1)
}

/// Returns the binary logarithm of the part size, which is a power of two so that the per-packet check is
/// fast.
fn part_bits(window: usize, mtu: Mtu) -> u32 {
    (window as u64 / u64::from(PARTS)).clamp(1, ASK_PACKETS * mtu.bytes() as u64).ilog2()
}

/// Reports whether the work request at `index` is the last one in its part of a send queue with `max_wr`
/// slots.
pub(super) fn fills_a_part(index: u64, max_wr: u32) -> bool {
    let part = 1u64 << (max_wr / PARTS).max(1).ilog2();
    index & (part - 1) == part - 1
}
