//! Which queue pairs are whose, where several NICs of this crate make up one.

/// A NIC's place among those that make up one device. Each has the queue pairs whose numbers end in its index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardId {
    index: u8,
    count: u8,
}

impl ShardId {
    /// The only one.
    pub const WHOLE: ShardId = ShardId { index: 0, count: 1 };

    /// As many as there may be.
    pub const MAX_COUNT: usize = 64;

    /// Number `index` of `count`, which must be a power of two up to [`MAX_COUNT`](Self::MAX_COUNT).
    pub fn new(index: usize, count: usize) -> Option<ShardId> {
        let fits = count.is_power_of_two() && count <= ShardId::MAX_COUNT && index < count;
        fits.then_some(ShardId { index: index as u8, count: count as u8 })
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

    /// Whose a queue pair is, by the last byte of its number.
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
