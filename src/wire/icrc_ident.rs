//! Which IPv4 identification explains a received ICRC.
//!
//! A UDP socket never shows the identification and flags of a datagram, but the ICRC covers them. CRC is
//! affine: changing the four header bytes `D` (identification, flags) with `n` covered bytes behind them changes the
//! ICRC by `D·x^(8n+32)` modulo the CRC's polynomial, whatever the rest of the packet is. Multiplying the
//! difference between the received ICRC and one computed with guessed bytes by `x^-(8n+32)` hence gives the
//! one `D` that explains it. It is believed only if it leaves the flags at don't-fragment or none.
//!
//! Polynomials are in the CRC's own bit order: bit 31 is the coefficient of x^0. A register that holds the
//! next four message bytes, first byte lowest, then needs no shuffling at all.

use super::IpIdent;
use super::crc_short::POLY;

/// The polynomial 1.
const ONE: u32 = 1 << 31;
/// `x^-1`: times x it is 1.
const INV_X: u32 = (ONE ^ POLY) << 1 | 1;

/// `a·b` modulo [`POLY`].
const fn mul(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut i = 32;
    while i > 0 {
        i -= 1;
        // Masks instead of branches: the bits are as good as random.
        product ^= b & 0u32.wrapping_sub(a >> i & 1);
        b = b >> 1 ^ POLY & 0u32.wrapping_sub(b & 1);
    }
    product
}

/// `base^0` to `base^256`.
const fn powers(base: u32) -> [u32; 257] {
    let mut table = [ONE; 257];
    let mut i = 1;
    while i < table.len() {
        table[i] = mul(table[i - 1], base);
        i += 1;
    }
    table
}

const fn inverse_of_byte() -> u32 {
    let mut p = ONE;
    let mut i = 0;
    while i < 8 {
        p = mul(p, INV_X);
        i += 1;
    }
    p
}

/// `x^(-8i)`.
static STEP: [u32; 257] = powers(inverse_of_byte());
/// `x^(-8·256·i)`.
static STRIDE: [u32; 257] = powers(powers(inverse_of_byte())[256]);

/// Bytes that the ICRC covers from the identification to the UDP header's end.
const TO_BTH: usize = 16 + 8;

/// `x^(8·TO_BTH)`.
const REACH: u32 = {
    let (mut p, mut i) = (ONE, 0);
    while i < 8 * TO_BTH {
        p = mul(p, ONE >> 1);
        i += 1;
    }
    p
};

/// What a byte of the identification, high and low, changes in the CRC of all before the BTH.
static EFFECT: [[u32; 256]; 2] = {
    let mut table = [[0; 256]; 2];
    let mut i = 0;
    while i < 256 {
        table[0][i] = mul(i as u32, REACH);
        table[1][i] = mul((i as u32) << 8, REACH);
        i += 1;
    }
    table
};

/// What this identification and these flags change in the CRC of all before the BTH, against 0 and don't-fragment.
#[inline]
pub(super) fn effect(id: u16, flags: u16) -> u32 {
    let [high, low] = id.to_be_bytes();
    let of_flags = match flags {
        IpIdent::DONT_FRAGMENT => 0,
        _ => mul(u32::from((flags ^ IpIdent::DONT_FRAGMENT).swap_bytes()) << 16, REACH),
    };
    EFFECT[0][high as usize] ^ EFFECT[1][low as usize] ^ of_flags
}

/// The four message bytes (first in the low byte) whose change, `bytes` before the end of the message and
/// counted in them, changes its CRC by `difference`.
///
/// Three multiplications in constant time, so that packets meant to fail cost no more than a checksum.
fn explain(difference: u32, bytes: usize) -> u32 {
    debug_assert!(bytes <= 0xffff + 48, "no packet is that long: {bytes} bytes");
    mul(mul(difference, STEP[bytes % 256]), STRIDE[bytes / 256])
}

/// What identification and flags a packet was sent with, given the difference between its ICRC and the one
/// computed with `id` and don't-fragment. `bytes` is what the ICRC covers from the identification on.
///
/// A corrupted packet gets through with probability 2^-15: 16 bits are spent on the identification and one on
/// accepting both values of don't-fragment.
pub(super) fn recover(difference: u32, bytes: usize, id: u16) -> Option<(u16, u16)> {
    let change = explain(difference, bytes).to_le_bytes();
    let flags = match change[2..] {
        [0, 0] => IpIdent::DONT_FRAGMENT,
        [0x40, 0] => 0,
        _ => return None,
    };
    Some((id ^ u16::from_be_bytes([change[0], change[1]]), flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inverse_of_x_is_one() {
        assert_eq!(mul(INV_X, ONE >> 1), ONE);
        assert_eq!(mul(mul(STRIDE[3], STEP[7]), ONE), mul(STEP[7], STRIDE[3]));
        assert_eq!(STEP[256], STRIDE[1]);
    }

    #[test]
    fn changed_bytes_are_found_at_any_distance() {
        for bytes in [4usize, 5, 40, 255, 256, 257, 1044, 4200, 65_535] {
            let mut message = vec![0x5a; bytes + 9];
            let before = crc32fast::hash(&message);
            let change = [0xde, 0xad, 0x40, 0x01];
            for (m, c) in message[9..].iter_mut().zip(change) {
                *m ^= c;
            }
            let after = crc32fast::hash(&message);
            assert_eq!(explain(before ^ after, bytes), u32::from_le_bytes(change), "{bytes} bytes");
        }
    }
}
