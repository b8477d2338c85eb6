//! Which queue pairs are whose, where several NICs of this crate make up one.

use super::Seat;

/// A NIC's place among those that make up one device. Each has the queue pairs whose numbers end in its index, of those that
/// the device has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardId {
    index: u8,
    count: u8,
    seat: Seat,
}

impl ShardId {
    /// The only one.
    pub const WHOLE: ShardId = ShardId { index: 0, count: 1, seat: Seat::WHOLE };

    /// As many as there may be.
    pub const MAX_COUNT: usize = 64;

    /// Number `index` of `count`, which must be a power of two up to [`MAX_COUNT`](Self::MAX_COUNT).
    pub fn new(index: usize, count: usize) -> Option<ShardId> {
        let fits = count.is_power_of_two() && count <= ShardId::MAX_COUNT && index < count;
        fits.then_some(ShardId { index: index as u8, count: count as u8, seat: Seat::WHOLE })
    }

    /// This shard of a device that has not all numbers.
    pub fn seated(self, seat: Seat) -> ShardId {
        ShardId { seat, ..self }
    }

    /// The numbers that the device has.
    pub fn seat(self) -> Seat {
        self.seat
    }

    /// The lowest bits of its queue pairs' numbers.
    pub fn index(self) -> u32 {
        self.index.into()
    }

    /// How many bits those are.
    pub fn bits(self) -> u32 {
        self.count.trailing_zeros()
    }

    /// Whether it is the one that speaks for all.
    pub fn is_first(self) -> bool {
        self.index == 0
    }

    /// Whether there are no others.
    pub fn is_alone(self) -> bool {
        self.count == 1
    }

    /// The shard that has a queue pair, by the last byte of its number.
    pub fn of(self, qpn: u8) -> usize {
        usize::from(qpn & (self.count - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_powers_of_two() {
        for (index, count, fits) in
            [(0, 1, true), (63, 64, true), (1, 1, false), (0, 3, false), (0, 0, false)]
        {
            assert_eq!(ShardId::new(index, count).is_some(), fits, "{index} of {count}");
        }
        assert_eq!(ShardId::new(0, 128), None);
        assert_eq!(ShardId::new(5, 8).map(|s| (s.bits(), s.of(0xfe))), Some((3, 6)));
    }
}
