//! Table-driven CRC-32 that processes eight bytes at a time. It is for headers and small payloads, which are
//! too short to recoup the setup cost of carry-less multiplication in `crc32fast`.

/// CRC-32 polynomial, bit-reflected.
pub(super) const POLY: u32 = 0xedb8_8320;

/// Lookup tables: `TABLES[i][b]` is the CRC register that results from a register of zero, byte `b` and then
/// `i` zero bytes.
static TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = crc >> 1 ^ POLY & 0u32.wrapping_sub(crc & 1);
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut i = 1;
    while i < 8 {
        byte = 0;
        while byte < 256 {
            let before = tables[i - 1][byte];
            tables[i][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        i += 1;
    }
    tables
};

/// Advances the CRC register by eight message bytes, the first in the lowest bits.
#[inline]
fn step(register: u32, eight: u64) -> u32 {
    let t = &TABLES;
    let [a, b, c, d, e, f, g, h] = (eight ^ u64::from(register)).to_le_bytes();
    let first = t[7][a as usize] ^ t[6][b as usize] ^ t[5][c as usize] ^ t[4][d as usize];
    first ^ t[3][e as usize] ^ t[2][f as usize] ^ t[1][g as usize] ^ t[0][h as usize]
}

/// Extends the CRC `crc` by eight bytes, the first in the lowest bits.
#[inline]
pub(super) fn update_eight(crc: u32, eight: u64) -> u32 {
    !step(!crc, eight)
}

/// Extends the CRC `crc` by `bytes`.
#[inline]
pub(super) fn update(crc: u32, bytes: &[u8]) -> u32 {
    let t = &TABLES;
    let (eights, rest) = bytes.as_chunks::<8>();
    let mut register = !crc;
    for eight in eights {
        register = step(register, u64::from_le_bytes(*eight));
    }
    let (fours, rest) = rest.as_chunks::<4>();
    for four in fours {
        let [a, b, c, d] = (u32::from_le_bytes(*four) ^ register).to_le_bytes();
        register = t[3][a as usize] ^ t[2][b as usize] ^ t[1][c as usize] ^ t[0][d as usize];
    }
    for byte in rest {
        register = register >> 8 ^ t[0][(register as u8 ^ byte) as usize];
    }
    !register
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_short_data_matches_crc32fast_at_every_length() {
        let bytes: Vec<u8> = (0..200u32).map(|i| (i * 37 + 11) as u8).collect();
        for start in 0..9 {
            for len in 0..100 {
                let (before, now) = (&bytes[..start], &bytes[start..start + len]);
                let expected = crc32fast::hash(&bytes[..start + len]);
                assert_eq!(update(crc32fast::hash(before), now), expected, "{start} + {len}");
                if let Some((eight, rest)) = now.split_first_chunk() {
                    let eight = update_eight(crc32fast::hash(before), u64::from_le_bytes(*eight));
                    assert_eq!(update(eight, rest), expected, "{start} + 8 + {}", len - 8);
                }
            }
        }
    }
}
