//! Which queue pair numbers are whose, where several processes share an address.

use crate::wire::Qpn;

/// A [part](Qpn::part) of the queue pair numbers: those that begin with its index. Several NICs may then have the same address, and whoever
/// hands out packets knows whose they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seat {
    index: u8,
    bits: u8,
}

impl Seat {
    /// All numbers.
    pub const WHOLE: Seat = Seat { index: 0, bits: 0 };

    /// How many bits of a number say whose it is.
    pub const BITS: u32 = Qpn::PART_BITS;

    /// How many there are.
    pub const COUNT: usize = 1 << Seat::BITS;

    /// Number `index` of [`COUNT`](Self::COUNT). The first has the management queue pairs, QP0 and QP1.
    pub fn new(index: usize) -> Option<Seat> {
        (index < Seat::COUNT).then_some(Seat { index: index as u8, bits: Seat::BITS as u8 })
    }

    /// The highest bits of its numbers.
    pub fn index(self) -> u32 {
        self.index.into()
    }

    /// How many bits those are: none if it has all numbers.
    pub fn bits(self) -> u32 {
        self.bits.into()
    }

    /// Whether a number is of it, by the number's first byte.
    pub fn has(self, qpn: u8) -> bool {
        u32::from(qpn) >> (8 - self.bits()) == self.index()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_of_one_seat() {
        for first in 0..=255_u8 {
            let of: Vec<usize> = (0..Seat::COUNT).filter(|i| Seat::new(*i).unwrap().has(first)).collect();
            assert_eq!(of, [usize::from(first) >> 2]);
            assert!(Seat::WHOLE.has(first));
        }
        assert_eq!(Seat::new(Seat::COUNT), None);
    }
}
