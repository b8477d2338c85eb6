//! Recovery of the IPv4 identification from a received ICRC.
//!
//! A UDP socket does not show the identification and flags of a datagram, but the ICRC covers them. CRC is
//! affine: a change `D` of the four header bytes (identification, flags) with `n` covered bytes behind them
//! changes the ICRC by `D * x^(8n+32)` modulo the polynomial of the CRC, whatever the rest of the packet is.
//! The difference between the received ICRC and one computed with guessed bytes, multiplied by `x^-(8n+32)`,
//! is hence the only `D` that explains it. It is accepted only if the resulting flags are don't-fragment or
//! none.
//!
//! Polynomials are in the bit order of the CRC: bit 31 is the coefficient of x^0. A register that holds the
//! next four message bytes, the first in the lowest bits, then needs no reordering.

use super::IpIdent;
use super::crc_short::POLY;

/// Polynomial 1.
const ONE: u32 = 1 << 31;
/// Polynomial x.
pub(super) const X: u32 = ONE >> 1;
/// Polynomial `x^-1`, the multiplicative inverse of x.
const INV_X: u32 = (ONE ^ POLY) << 1 | 1;

/// Computes `a * b` modulo [`POLY`].
const fn mul(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut i = 32;
    while i > 0 {
        i -= 1;
        // Masks instead of branches, which the nearly random bits would mispredict.
        product ^= b & 0u32.wrapping_sub(a >> i & 1);
        b = b >> 1 ^ POLY & 0u32.wrapping_sub(b & 1);
    }
    product
}

/// Computes `base^0` to `base^256`.
const fn powers(base: u32) -> [u32; 257] {
    let mut table = [ONE; 257];
    let mut i = 1;
    while i < table.len() {
        table[i] = mul(table[i - 1], base);
        i += 1;
    }
    table
}

/// Computes `base^exponent`.
pub(super) const fn power(base: u32, exponent: usize) -> u32 {
    let (mut power, mut i) = (ONE, 0);
    while i < exponent {
        power = mul(power, base);
        i += 1;
    }
    power
}

/// `STEP[i]` is `x^(-8i)`.
static STEP: [u32; 257] = powers(power(INV_X, 8));
/// `STRIDE[i]` is `x^(-8 * 256 * i)`.
static STRIDE: [u32; 257] = powers(power(INV_X, 8 * 256));

/// Number of bytes that the ICRC covers from the identification to the end of the UDP header.
const TO_BTH: usize = 16 + 8;

/// `x^(8 * TO_BTH)`.
const REACH: u32 = power(X, 8 * TO_BTH);

/// Changes to the CRC of the bytes before the BTH: `EFFECT[0]` is indexed by the identification's high byte,
/// and `EFFECT[1]` by its low byte.
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

/// Returns the change to the CRC of the bytes before the BTH for the given identification and flags, relative
/// to identification 0 with don't-fragment.
#[inline]
pub(super) fn effect(id: u16, flags: u16) -> u32 {
    let [high, low] = id.to_be_bytes();
    let of_flags = match flags {
        IpIdent::DONT_FRAGMENT => 0,
        _ => mul(u32::from((flags ^ IpIdent::DONT_FRAGMENT).swap_bytes()) << 16, REACH),
    };
    EFFECT[0][high as usize] ^ EFFECT[1][low as usize] ^ of_flags
}

/// Returns the XOR mask for four message bytes (the first in the lowest bits) that changes the message's CRC
/// by `difference`. `bytes` is the distance from the first of the four to the end of the message.
///
/// Takes two multiplications in constant time, so that packets meant to fail cost no more than a checksum.
fn explain(difference: u32, bytes: usize) -> u32 {
    debug_assert!(bytes <= 0xffff + 48, "no packet is that long: {bytes} bytes");
    mul(mul(difference, STEP[bytes % 256]), STRIDE[bytes / 256])
}

/// Recovers the identification and flags of a packet from the difference between its ICRC and the one
/// computed with `id` and don't-fragment. `bytes` is the number of bytes that the ICRC covers, starting at
/// the identification.
///
/// A corrupt packet is accepted with probability 2^-15: 16 bits are spent on the identification, and one on
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
    fn x_times_its_inverse_is_one() {
        assert_eq!(mul(INV_X, ONE >> 1), ONE);
        assert_eq!(mul(mul(STRIDE[3], STEP[7]), ONE), mul(STEP[7], STRIDE[3]));
        assert_eq!(STEP[256], STRIDE[1]);
    }

    #[test]
    fn changed_bytes_are_recovered_at_any_distance_from_the_end() {
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
