//! Flight cost of packets: the measure for congestion windows and per-peer windows.

/// Flight cost added to the payload length of every packet, in bytes.
const HEADER_COST: u64 = 128;

/// Minimum flight cost of a packet, in bytes: the kernel charges a socket buffer hardly less for a short
/// packet that arrives alone (measured for the udp link, see [`crate::link::udp::MIN_CHARGE`]).
const LEAST_COST: u64 = 1024;

/// Returns the flight cost of a packet with `payload` bytes: an estimate of the receive buffer space that it
/// takes at the peer.
pub const fn packet_cost(payload: u64) -> u64 {
    let cost = payload + HEADER_COST;
    if cost < LEAST_COST { LEAST_COST } else { cost }
}
