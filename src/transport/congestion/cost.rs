//! Flight cost of packets: the unit of congestion windows and of per-peer windows.

/// Flight cost that a packet has in addition to its payload.
const HEADER_COST: u64 = 128;

/// Minimum flight cost of a packet: a socket buffer charges hardly less for a short packet that arrives alone
/// (measured with the udp link, [`crate::link::udp::MIN_CHARGE`]).
const LEAST_COST: u64 = 1024;

/// Returns the flight cost of a packet with `payload` bytes: its estimated share of the peer's receive
/// buffer.
pub const fn packet_cost(payload: u64) -> u64 {
    let cost = payload + HEADER_COST;
    if cost < LEAST_COST { LEAST_COST } else { cost }
}
