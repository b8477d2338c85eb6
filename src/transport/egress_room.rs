//! Number of packets that a link takes at the moment, for links that send at the rate of a wire.

/// Number of packets of each priority that a link takes now. The priority of a packet, 0 to 7, is given by
/// the three highest bits of its DSCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EgressRoom([u8; 8]);

impl EgressRoom {
    /// Room for as many packets as a turn can send.
    pub const UNLIMITED: EgressRoom = EgressRoom([u8::MAX; 8]);

    /// Creates a value from the number of packets of each priority; a number above 255 counts as 255.
    pub fn new(packets: impl Fn(usize) -> usize) -> EgressRoom {
        EgressRoom(std::array::from_fn(|priority| packets(priority).min(u8::MAX.into()) as u8))
    }

    /// Returns the value as a number, to be kept in an atomic.
    pub fn to_bits(self) -> u64 {
        u64::from_le_bytes(self.0)
    }

    /// Returns the value that [`to_bits`](Self::to_bits) has returned as `bits`.
    pub fn from_bits(bits: u64) -> EgressRoom {
        EgressRoom(bits.to_le_bytes())
    }

    /// Reports whether a packet of a priority can be sent.
    pub fn has_room(self, priority: usize) -> bool {
        self.0[priority] > 0
    }

    /// Charges packets of a priority.
    pub fn take(&mut self, priority: usize, packets: usize) {
        let left = &mut self.0[priority];
        *left = left.saturating_sub(packets.min(u8::MAX.into()) as u8);
    }
}

/// Returns the priority of packets with a traffic class: the three highest bits of the DSCP.
pub fn priority_of(traffic_class: u8) -> usize {
    usize::from(traffic_class >> 5)
}
