//! Encoding of fields in the 232 bytes of a message. As in the specification's tables, a field is specified
//! by its byte, its bit (from the left) and its width.

use super::code::{
    Acknowledged, AprStatus, CommId, RejReason, Rejected, ServiceId, SidrStatus, TransportService,
};
use crate::wire::{AckTimeout, Gid, Mtu, PKey, Psn, QKey, Qpn};

/// Length of the data after a MAD's header, in bytes.
pub(super) const DATA_LEN: usize = 232;
pub(super) const DATA_BITS: usize = DATA_LEN * 8;

/// Data after a MAD's header.
pub(super) type Data = [u8; DATA_LEN];

/// Returns the `width` bits that start at bit `at`, where bit 0 is the highest bit of the first byte. `width`
/// must be at most 64, and the bits must not extend over more than eight bytes.
fn bits(data: &Data, at: usize, width: usize) -> u64 {
    let end = (at + width).div_ceil(8);
    let word = data[at / 8..end].iter().fold(0, |word: u64, b| word << 8 | u64::from(*b));
    word >> (end * 8 - at - width) & mask(width)
}

fn set_bits(data: &mut Data, at: usize, width: usize, value: u64) {
    let end = (at + width).div_ceil(8);
    let shift = end * 8 - at - width;
    let (mut keep, mut word) = (!(mask(width) << shift), (value & mask(width)) << shift);
    for byte in data[at / 8..end].iter_mut().rev() {
        *byte = *byte & keep as u8 | word as u8;
        (keep, word) = (keep >> 8 | 0xff << 56, word >> 8);
    }
}

const fn mask(width: usize) -> u64 {
    u64::MAX >> (64 - width)
}

/// A type that a message field can hold.
pub(super) trait Field: Sized {
    fn read(data: &Data, at: usize, width: usize) -> Self;
    fn write(&self, data: &mut Data, at: usize, width: usize);
}

macro_rules! number {
    ($($type:ty: |$bits:ident| $read:expr, |$value:ident| $write:expr;)*) => {
        $(impl Field for $type {
            fn read(data: &Data, at: usize, width: usize) -> Self {
                let $bits = bits(data, at, width);
                $read
            }
            fn write(&self, data: &mut Data, at: usize, width: usize) {
                let $value = *self;
                set_bits(data, at, width, u64::from($write));
            }
        })*
    };
}

number! {
    bool: |b| b != 0, |v| v;
    u8: |b| b as u8, |v| v;
    u16: |b| b as u16, |v| v;
    u32: |b| b as u32, |v| v;
    u64: |b| b, |v| v;
    CommId: |b| CommId(b as u32), |v| v.0;
    ServiceId: |b| ServiceId(b), |v| v.0;
    Qpn: |b| Qpn::new(b as u32), |v| v.get();
    Psn: |b| Psn::new(b as u32), |v| v.get();
    QKey: |b| QKey(b as u32), |v| v.0;
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
    fn read(data: &Data, at: usize, width: usize) -> Self {
        debug_assert_eq!(width, N * 8);
        std::array::from_fn(|i| data[at / 8 + i])
    }
    fn write(&self, data: &mut Data, at: usize, _: usize) {
        data[at / 8..][..N].copy_from_slice(self);
    }
}

impl Field for Gid {
    fn read(data: &Data, at: usize, width: usize) -> Self {
        Gid(Field::read(data, at, width))
    }
    fn write(&self, data: &mut Data, at: usize, width: usize) {
        self.0.write(data, at, width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_bits_are_numbered_from_the_most_significant() {
        let mut data = [0; DATA_LEN];
        data[..4].copy_from_slice(&[0b1010_0101, 0xff, 0x00, 0x81]);
        assert_eq!(bits(&data, 0, 4), 0b1010);
        assert_eq!(bits(&data, 3, 5), 0b0_0101);
        assert_eq!(bits(&data, 4, 12), 0x5ff);
        assert_eq!(bits(&data, 31, 1), 1);
        assert_eq!(bits(&data, 0, 64), 0xa5ff_0081_0000_0000);
    }

    #[test]
    fn setting_a_field_leaves_adjacent_bits_unchanged() {
        let mut data = [0xff; DATA_LEN];
        set_bits(&mut data, 4, 20, 0);
        assert_eq!(data[..4], [0xf0, 0, 0, 0xff]);
        set_bits(&mut data, 8, 64, 0x0102_0304_0506_0708);
        assert_eq!(data[..10], [0xf0, 1, 2, 3, 4, 5, 6, 7, 8, 0xff]);
        // Bits beyond the width are discarded, and do not reach the neighbouring fields.
        set_bits(&mut data, 75, 3, 0xff);
        set_bits(&mut data, 72, 3, 0);
        assert_eq!(data[9], 0x1f);
    }
}
