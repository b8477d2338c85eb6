//! Copying and ICRC computation in one pass, which loads each byte only once.

use super::guarded::{self, Faulted};
use crate::wire::icrc::Icrc;

/// Copies `len` bytes, and extends `icrc` over exactly the bytes copied, even if the source changes in the
/// meantime. A fault in the source may leave the copy incomplete.
///
/// # Safety
/// `from` must be valid for reads of `len` bytes or point to user memory, `to` must be valid for writes of
/// `len` bytes, and the two ranges must not overlap.
pub(super) unsafe fn copy_and_crc(
    from: *const u8,
    to: *mut u8,
    len: usize,
    mut icrc: Icrc,
) -> Result<Icrc, Faulted> {
    #[cfg_attr(
        not(all(target_arch = "x86_64", not(any(miri, urxe_plain_access)))),
        expect(unused_mut, reason = "the wide copy sets it")
    )]
    let mut done = 0;
    #[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
    if len >= wide::BLOCK && wide::is_available() {
        done = len - len % wide::BLOCK;
        // SAFETY: `is_available` has found the instructions, and `done` is a non-zero multiple of `BLOCK`;
        // the caller guarantees the first `done` of its `len` bytes.
        icrc = unsafe { wide::copy_and_crc(from, to, done, icrc)? };
    }
    // SAFETY: the caller guarantees `len` bytes at both addresses, and these are the last `len - done` of
    // them; those at `to` are initialised by the copy.
    let rest = unsafe {
        guarded::copy(from.add(done), to.add(done), len - done)?;
        std::slice::from_raw_parts(to.add(done), len - done)
    };
    icrc.update(rest);
    Ok(icrc)
}

/// Implementation with 512-bit carry-less multiplication (Gopal et al., "Fast CRC Computation for Generic
/// Polynomials Using PCLMULQDQ Instruction", 2009), which leaves the load and store ports free for the copy.
#[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
mod wide {
    use std::arch::asm;
    use std::arch::x86_64::*;

    use crate::memory::guarded::{Faulted, guarded};
    use crate::wire::icrc::Icrc;

    /// Number of bytes per step: four 512-bit registers.
    pub const BLOCK: usize = 256;

    pub fn is_available() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
    }

    /// Returns the multipliers that fold a register forward by `bits` bits: x^(bits + 32) and x^(bits - 32),
    /// modulo the CRC polynomial.
    const fn fold_by(bits: usize) -> [i64; 2] {
        [Icrc::power(bits + 32) as i64, Icrc::power(bits - 32) as i64]
    }

    const BY_2048: [i64; 2] = fold_by(2048);
    const BY_512: [i64; 2] = fold_by(512);
    const BY_128: [i64; 2] = fold_by(128);

    /// # Safety
    /// As for [`super::copy_and_crc`]; moreover `len` must be a non-zero multiple of [`BLOCK`], and
    /// [`is_available`] true.
    #[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse2")]
    pub unsafe fn copy_and_crc(
        from: *const u8,
        to: *mut u8,
        len: usize,
        icrc: Icrc,
    ) -> Result<Icrc, Faulted> {
        let fold = |sum, by, next| {
            let (low, high) =
                (_mm512_clmulepi64_epi128::<0x00>(sum, by), _mm512_clmulepi64_epi128::<0x11>(sum, by));
            _mm512_ternarylogic_epi64::<0x96>(low, high, next)
        };
        let fold_128 = |sum, by, next| {
            let (low, high) = (_mm_clmulepi64_si128::<0x00>(sum, by), _mm_clmulepi64_si128::<0x11>(sum, by));
            _mm_xor_si128(_mm_xor_si128(low, high), next)
        };
        let wide = |[low, high]: [i64; 2]| _mm512_set_epi64(high, low, high, low, high, low, high, low);
        let mut fault = 0_u32;
        let mut copy = |at: usize| {
            let (a, b, c, d): (__m512i, __m512i, __m512i, __m512i);
            // SAFETY: `at` and `len` are multiples of `BLOCK` with `at < len`, so the block from `at` on lies
            // inside the ranges that the caller guarantees. A fault of the loads sets `fault`.
            unsafe {
                guarded!([
                    "vmovdqu64 {a}, zmmword ptr [{from}]", "vmovdqu64 {b}, zmmword ptr [{from} + 64]",
                    "vmovdqu64 {c}, zmmword ptr [{from} + 128]", "vmovdqu64 {d}, zmmword ptr [{from} + 192]"],
                    from = in(reg) from.add(at), fault = inout(reg) fault,
                    a = out(zmm_reg) a, b = out(zmm_reg) b, c = out(zmm_reg) c, d = out(zmm_reg) d);
                let to = to.add(at);
                _mm512_storeu_si512(to.cast(), a);
                _mm512_storeu_si512(to.add(64).cast(), b);
                _mm512_storeu_si512(to.add(128).cast(), c);
                _mm512_storeu_si512(to.add(192).cast(), d);
            }
            (fault, [a, b, c, d])
        };
        let (mut faulted, mut sums) = copy(0);
        let state = _mm512_zextsi128_si512(_mm_cvtsi32_si128(icrc.register() as i32));
        sums[0] = _mm512_xor_si512(sums[0], state);
        let by = wide(BY_2048);
        let mut at = BLOCK;
        while at < len && faulted == 0 {
            let next;
            (faulted, next) = copy(at);
            for (sum, next) in sums.iter_mut().zip(next) {
                *sum = fold(*sum, by, next);
            }
            at += BLOCK;
        }
        if faulted != 0 {
            return Err(Faulted);
        }
        let by = wide(BY_512);
        let [a, b, c, d] = sums;
        let sum = fold(fold(fold(a, by, b), by, c), by, d);
        let by = _mm_set_epi64x(BY_128[1], BY_128[0]);
        let a = fold_128(_mm512_extracti32x4_epi32::<0>(sum), by, _mm512_extracti32x4_epi32::<1>(sum));
        let b = fold_128(a, by, _mm512_extracti32x4_epi32::<2>(sum));
        let c = fold_128(b, by, _mm512_extracti32x4_epi32::<3>(sum));
        let mut remainder = [0; 16];
        // SAFETY: `remainder` has the 16 bytes of the register, and the store needs no alignment.
        unsafe { _mm_storeu_si128(remainder.as_mut_ptr().cast(), c) };
        Ok(Icrc::of_remainder(&remainder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn icrc_of_a_copy_matches_the_copied_bytes() {
        let source: Vec<u8> = (0..9000u32).map(|i| ((i * i) >> 7) as u8).collect();
        for start in [0, 1, 63] {
            for len in [0, 1, 255, 256, 257, 511, 512, 1000, 1024, 4095, 4096, 8200] {
                let mut target = vec![0xee; len + 1];
                let mut before = Icrc::default();
                before.update(&source[..start]);
                let from = &source[start..start + len];
                // SAFETY: `from` and `target` have at least `len` bytes, and are separate allocations.
                let icrc = unsafe { copy_and_crc(from.as_ptr(), target.as_mut_ptr(), len, before) }.unwrap();
                assert_eq!((&target[..len], target[len]), (from, 0xee));
                assert_eq!(icrc.value(), crc32fast::hash(&source[..start + len]), "{start} + {len}");
            }
        }
    }
}
