//! Number of packets that a link takes at the moment, for links that send at the rate of a wire or whose peer
//! pauses priorities.

/// Number of packets of each priority that a link takes now. The priority of a packet, 0 to 7, is given by
/// the three highest bits of its DSCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EgressRoom([u8; 8]);

/// Number of packets that stands for no limit.
const NO_LIMIT: u8 = u8::MAX;

impl EgressRoom {
    /// Room for as many packets as the NIC has.
    pub const UNLIMITED: EgressRoom = EgressRoom([NO_LIMIT; 8]);

    /// Creates a value from the number of packets of each priority; a number above 254 counts as 254.
    pub fn new(packets: impl Fn(usize) -> usize) -> EgressRoom {
        EgressRoom(std::array::from_fn(|priority| packets(priority).min((NO_LIMIT - 1).into()) as u8))
    }

    /// Creates a value without room for the paused priorities, and without a limit for the others.
    pub fn with_pauses(is_paused: impl Fn(usize) -> bool) -> EgressRoom {
        EgressRoom(std::array::from_fn(|priority| if is_paused(priority) { 0 } else { NO_LIMIT }))
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

    /// Reports whether any number of packets of a priority can be sent.
    pub fn is_unlimited(self, priority: usize) -> bool {
        self.0[priority] == NO_LIMIT
    }

    /// Charges packets of a priority.
    pub fn take(&mut self, priority: usize, packets: usize) {
        if !self.is_unlimited(priority) {
            let left = &mut self.0[priority];
            *left = left.saturating_sub(packets.min(u8::MAX.into()) as u8);
        }
    }
}

/// Returns the priority of packets with a traffic class: the three highest bits of the DSCP.
pub fn priority_of(traffic_class: u8) -> usize {
    usize::from(traffic_class >> 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_limited_room_is_used_up() {
        let mut room = EgressRoom::new(|priority| if priority == 1 { 2 } else { 1000 });
        room.take(1, 3);
        room.take(2, 1000);
        assert!(!room.has_room(1) && !room.has_room(2) && !room.is_unlimited(3));
        let mut room = EgressRoom::with_pauses(|priority| priority == 3);
        room.take(2, 1000);
        assert_eq!([2, 3].map(|priority| room.has_room(priority)), [true, false]);
        assert_eq!([2, 3].map(|priority| room.is_unlimited(priority)), [true, false]);
        assert_eq!(EgressRoom::from_bits(room.to_bits()), room);
    }
}
