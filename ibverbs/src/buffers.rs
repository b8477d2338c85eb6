//! The program's buffers and lists as slices, for the duration of a call.

use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use urxe::verbs::{LKey, Sge};

use crate::abi::ibv_sge;

// A program's `ibv_sge` is used as an `Sge`.
const _: () = {
    assert!(size_of::<ibv_sge>() == size_of::<Sge>() && align_of::<ibv_sge>() == align_of::<Sge>());
    assert!(offset_of!(ibv_sge, addr) == offset_of!(Sge, addr));
    assert!(offset_of!(ibv_sge, length) == offset_of!(Sge, length));
    assert!(offset_of!(ibv_sge, lkey) == offset_of!(Sge, lkey));
    assert!(size_of::<LKey>() == size_of::<u32>());
};

/// Maximum number of elements of a list that is copied; no queue pair accepts as many.
const MAX_COPIED: usize = 1024;

/// Returns a program's scatter/gather list as a slice; its elements have the layout of [`Sge`]. A list that
/// is not aligned, such as libiscsi's in packed structures, is copied, because a slice of it would be
/// undefined.
///
/// # Errors
/// `EINVAL` for a negative count, for a null list of another count than 0, or for more than `MAX_COPIED`
/// elements that are not aligned.
///
/// # Safety
/// `list` has `count` readable elements, or is null; they are not written during `'a`, which ends before the
/// C call does.
pub(crate) unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Result<Cow<'a, [Sge]>, c_int> {
    let list: *const Sge = list.cast();
    match usize::try_from(count) {
        Ok(0) => Ok(Cow::Borrowed(&[])),
        Ok(count) if !list.is_null() && list.is_aligned() => {
            // SAFETY: the list is aligned and not null, so the caller passes `count` readable elements, which
            // are not written during `'a`. Both types have the same fields of integers at the
            // same offsets (asserted above).
            Ok(Cow::Borrowed(unsafe { std::slice::from_raw_parts(list, count) }))
        }
        Ok(count) if !list.is_null() && count <= MAX_COPIED => {
            // SAFETY: as above, but for the alignment, which these accesses do not need.
            Ok((0..count).map(|index| unsafe { list.add(index).read_unaligned() }).collect())
        }
        _ => Err(libc::EINVAL),
    }
}

/// Returns `length` bytes of the program's memory at `addr`.
///
/// # Safety
/// Unless `length` is 0, `addr` points to as many readable bytes, which are not written during `'a`.
pub(crate) unsafe fn bytes<'a>(addr: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: `length` is not 0, so the caller passes as many readable bytes, which are not written during
    // `'a`.
    unsafe { std::slice::from_raw_parts(addr.cast(), length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_at_any_alignment_have_the_same_elements() {
        let sges = [1, 2].map(|n| ibv_sge { addr: n << 40, length: n as u32, lkey: 7 });
        let mut memory = [0u64; 5];
        for offset in 0..8 {
            // SAFETY: two elements of 16 bytes fit at each offset.
            let found = unsafe {
                let at = memory.as_mut_ptr().byte_add(offset).cast::<ibv_sge>();
                at.cast::<[ibv_sge; 2]>().write_unaligned(sges);
                elements(at, 2).expect("a valid list").into_owned()
            };
            assert_eq!(found, [1, 2].map(|n| Sge { addr: n << 40, length: n as u32, lkey: LKey(7) }));
        }
    }
}
