//! Lists of scatter/gather elements.

use super::Sge;

/// Calls `each` for every contiguous piece of bytes `at..at + len` of a scatter/gather list, passing the
/// piece's element, address and length.
pub(super) fn gather<'a, E>(
    sges: impl Iterator<Item = &'a Sge>,
    at: u32,
    len: u32,
    mut each: impl FnMut(&Sge, u64, u32) -> Result<(), E>,
) -> Result<(), E> {
    let (mut skip, mut left) = (at, len);
    for sge in sges {
        if left == 0 {
            break;
        }
        if skip >= sge.length {
            skip -= sge.length;
            continue;
        }
        let n = left.min(sge.length - skip);
        each(sge, sge.addr.wrapping_add(skip as u64), n)?;
        left -= n;
        skip = 0;
    }
    Ok(())
}
