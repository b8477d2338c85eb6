//! Packet sequence numbers.

use std::ops::{Add, AddAssign, Sub};

use super::numbers::hexadecimal;

/// Packet sequence number (PSN): 24 bits, compared as a serial number, so that half of the number space lies
/// before each PSN (C9-64).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Number of distinct PSNs.
    pub const SPACE: u32 = 1 << 24;

    /// Creates a PSN from the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Psn(value & (Self::SPACE - 1))
    }

    /// Returns the value, 0..2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the PSN after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Psn::new(self.0 + 1)
    }

    /// Returns the PSN before this one.
    #[must_use]
    pub const fn prev(self) -> Self {
        Psn::new(self.0.wrapping_sub(1))
    }

    /// Returns the signed distance from `earlier` to `self`, in -2^23..2^23.
    pub const fn since(self, earlier: Psn) -> i32 {
        // The shift moves the sign of the serial number to the sign bit of the i32.
        ((self.0.wrapping_sub(earlier.0) << 8) as i32) >> 8
    }

    /// Reports whether `self` comes before `other`.
    pub const fn is_before(self, other: Psn) -> bool {
        self.since(other) < 0
    }

    /// Reports whether `self` comes after `other`.
    pub const fn is_after(self, other: Psn) -> bool {
        self.since(other) > 0
    }
}

impl Add<u32> for Psn {
    type Output = Psn;
    fn add(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_add(n))
    }
}

impl AddAssign<u32> for Psn {
    fn add_assign(&mut self, n: u32) {
        *self = *self + n;
    }
}

impl Sub<u32> for Psn {
    type Output = Psn;
    fn sub(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(n))
    }
}

hexadecimal! {
    Psn: "psn {:#08x}", "{:#08x}";
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn psn_wraps_at_24_bits() {
        assert_eq!(Psn::new(0xff_ffff).next(), Psn::new(0));
        assert_eq!(Psn::new(0).prev(), Psn::new(0xff_ffff));
        assert!(Psn::new(0xff_fff0).is_before(Psn::new(5)));
        assert_eq!(Psn::new(5).since(Psn::new(0xff_fff0)), 21);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -(1 << 23));
    }

    proptest! {
        #[test]
        fn psn_distance_to_a_sum_is_the_addend(start in 0u32..Psn::SPACE, n in 0u32..(1 << 23)) {
            let a = Psn::new(start);
            prop_assert_eq!((a + n).since(a), n as i32);
            prop_assert_eq!((a + n) - n, a);
            prop_assert_eq!(a.since(a + n), -(n as i32));
            prop_assert_eq!(a.is_before(a + n), n != 0);
        }
    }
}
