//! Encoding of fields in MADs.

use std::ops::Range;

use super::code::{
    Acknowledged, AprStatus, CommId, RejReason, Rejected, ServiceId, SidrStatus, TransportService,
};
use crate::wire::{AckTimeout, Gid, Mtu, PKey, Psn, QKey, Qpn};

/// Bits of a field, or of a part of it, as in the specification's tables: the byte, the bit within the byte
/// (from the left) and the width in bits.
pub(super) type Bits = (usize, usize, usize);

/// Type that a field can hold.
pub(super) trait Field: Sized {
    fn read(data: &[u8], at: &[Bits]) -> Self;
    fn write(&self, data: &mut [u8], at: &[Bits]);
}

/// Returns the bytes that contain the bits, the number of bits after them in the last byte, and the mask of
/// a value of their width.
fn locate((byte, bit, width): Bits) -> (Range<usize>, usize, u128) {
    let len = (bit + width).div_ceil(8);
    (byte..byte + len, len * 8 - bit - width, u128::MAX >> (128 - width))
}

fn word(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |word, byte| word << 8 | u128::from(*byte))
}

/// Returns the bits at `at`: at most 128, of which each part is in at most 16 bytes.
fn bits(data: &[u8], at: &[Bits]) -> u128 {
    at.iter().fold(0, |value, part| {
        let (bytes, shift, mask) = locate(*part);
        value.unbounded_shl(mask.count_ones()) | word(&data[bytes]) >> shift & mask
    })
}

fn set_bits(data: &mut [u8], at: &[Bits], mut value: u128) {
    for part in at.iter().rev() {
        let (bytes, shift, mask) = locate(*part);
        let bytes = &mut data[bytes];
        let word = word(bytes) & !(mask << shift) | (value & mask) << shift;
        bytes.iter_mut().rev().zip(word.to_le_bytes()).for_each(|(byte, new)| *byte = new);
        value = value.unbounded_shr(mask.count_ones());
    }
}

macro_rules! number {
    ($($type:ty: |$bits:ident| $read:expr, |$value:ident| $write:expr;)*) => {
        $(impl Field for $type {
            fn read(data: &[u8], at: &[Bits]) -> Self {
                let $bits = bits(data, at);
                $read
            }
            fn write(&self, data: &mut [u8], at: &[Bits]) {
                let $value = *self;
                set_bits(data, at, u128::from($write));
            }
        })*
    };
}

number! {
    bool: |b| b != 0, |v| v;
    u8: |b| b as u8, |v| v;
    u16: |b| b as u16, |v| v;
    u32: |b| b as u32, |v| v;
    u64: |b| b as u64, |v| v;
    CommId: |b| CommId(b as u32), |v| v.0;
    ServiceId: |b| ServiceId(b as u64), |v| v.0;
    Qpn: |b| Qpn::new(b as u32), |v| v.get();
    Psn: |b| Psn::new(b as u32), |v| v.get();
    QKey: |b| QKey(b as u32), |v| v.0;
    Gid: |b| Gid(b.to_be_bytes()), |v| u128::from_be_bytes(v.0);
    PKey: |b| PKey(b as u16), |v| v.0;
    AckTimeout: |b| AckTimeout::new(b as u8), |v| v.code();
    Option<Mtu>: |b| Mtu::from_code(b as u8), |v| v.map_or(0, Mtu::code);
    RejReason: |b| RejReason::from_code(b as u16), |v| v.code();
    SidrStatus: |b| SidrStatus::from_code(b as u8), |v| v.code();
    AprStatus: |b| AprStatus::from_code(b as u8), |v| v.code();
    Rejected: |b| Rejected::from_code(b as u8), |v| v.code();
    Acknowledged: |b| Acknowledged::from_code(b as u8), |v| v.code();
    TransportService: |b| TransportService::from_code(b as u8), |v| v.code();
}

impl<const N: usize> Field for [u8; N] {
    fn read(data: &[u8], at: &[Bits]) -> Self {
        debug_assert_eq!(at[0].2, N * 8);
        std::array::from_fn(|i| data[at[0].0 + i])
    }
    fn write(&self, data: &mut [u8], at: &[Bits]) {
        data[at[0].0..][..N].copy_from_slice(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_bits_are_numbered_from_the_most_significant() {
        let mut data = [0; 16];
        data[..4].copy_from_slice(&[0b1010_0101, 0xff, 0x00, 0x81]);
        assert_eq!(bits(&data, &[(0, 0, 4)]), 0b1010);
        assert_eq!(bits(&data, &[(0, 3, 5)]), 0b0_0101);
        assert_eq!(bits(&data, &[(0, 4, 12)]), 0x5ff);
        assert_eq!(bits(&data, &[(3, 7, 1)]), 1);
        assert_eq!(bits(&data, &[(0, 0, 128)]), 0xa5ff_0081 << 96);
        assert_eq!(bits(&data, &[(0, 0, 4), (3, 0, 8)]), 0xa81);
    }

    #[test]
    fn setting_a_field_leaves_adjacent_bits_unchanged() {
        let mut data = [0xff; 16];
        set_bits(&mut data, &[(0, 4, 20)], 0);
        assert_eq!(data[..4], [0xf0, 0, 0, 0xff]);
        set_bits(&mut data, &[(1, 0, 64)], 0x0102_0304_0506_0708);
        assert_eq!(data[..10], [0xf0, 1, 2, 3, 4, 5, 6, 7, 8, 0xff]);
        // Bits beyond the width are discarded, and do not reach the neighbouring fields.
        set_bits(&mut data, &[(9, 3, 3)], 0xff);
        set_bits(&mut data, &[(9, 0, 3)], 0);
        assert_eq!(data[9], 0x1f);
        set_bits(&mut data, &[(10, 0, 4), (12, 0, 8)], 0x0a_bcd0);
        assert_eq!(data[10..14], [0xcf, 0xff, 0xd0, 0xff]);
    }
}
