//! The program's buffers and lists as slices, for the duration of a call.

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

/// Returns a program's scatter/gather list as a slice; its elements have the layout of [`Sge`].
///
/// # Errors
/// `EINVAL` for a negative count, or for a null list of another count than 0.
///
/// # Safety
/// `list` has `count` readable elements, or is null; they are not written during `'a`, which ends before the
/// C call does.
pub(crate) unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge], c_int> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the list is not null, so the caller passes `count` readable elements, which are not written
        // during `'a`. Both types have the same fields of integers at the same offsets (asserted above).
        Ok(count) if !list.is_null() => Ok(unsafe { std::slice::from_raw_parts(list.cast(), count) }),
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
