//! How calls of C say that something went wrong.
#![allow(clippy::missing_safety_doc)]

use std::ffi::c_int;

/// Sets `errno`.
pub fn set(errno: c_int) {
    // SAFETY: the C library gives each thread a valid place.
    unsafe { *libc::__errno_location() = errno };
}

/// For calls that return a pointer: null, with `errno` set.
pub fn null<T>(errno: c_int) -> *mut T {
    set(errno);
    std::ptr::null_mut()
}

/// For calls that return -1 with `errno` set.
pub fn minus_one(errno: c_int) -> c_int {
    set(errno);
    -1
}

/// For calls that return the error's number, 0 for none.
pub fn number<E>(result: Result<(), E>, errno: impl FnOnce(&E) -> c_int) -> c_int {
    result.map_or_else(|e| errno(&e), |()| 0)
}
