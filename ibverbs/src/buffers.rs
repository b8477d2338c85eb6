//! The program's buffers and lists as slices, for the duration of a call.

use std::ffi::{c_int, c_void};

use urxe::verbs::Sge;

use crate::abi::ibv_sge;

/// Returns the scatter/gather elements of a program, which have the layout of the NIC's [`Sge`].
///
/// # Safety
/// `list` has `count` readable elements, which stay valid and unchanged while the result is used: until the
/// end of the C call, although the lifetime says `'static`.
pub unsafe fn elements(list: *const ibv_sge, count: c_int) -> Result<&'static [Sge], c_int> {
    const { assert!(size_of::<ibv_sge>() == size_of::<Sge>() && align_of::<ibv_sge>() == align_of::<Sge>()) };
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller vouches for the elements. Both types are `#[repr(C)]` with an address, a length
        // and a key in this order.
        Ok(count) if !list.is_null() => Ok(unsafe { std::slice::from_raw_parts(list.cast(), count) }),
        _ => Err(libc::EINVAL),
    }
}

/// Returns the program's bytes at `addr`.
///
/// # Safety
/// Unless `length` is 0, `addr` points to as many readable bytes, which are not written while the result is
/// used.
pub unsafe fn bytes<'a>(addr: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for `length` bytes, which is not 0.
    unsafe { std::slice::from_raw_parts(addr.cast(), length) }
}
