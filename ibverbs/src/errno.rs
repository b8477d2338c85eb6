//! Error conventions of the C interface.
#![allow(clippy::missing_safety_doc)]

use std::ffi::c_int;

/// Sets the calling thread's `errno`.
pub(crate) fn set(errno: c_int) {
    // SAFETY: `__errno_location` returns a valid pointer to the calling thread's own `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// Sets `errno` and returns null, for calls that return a pointer.
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set(errno);
    std::ptr::null_mut()
}

/// Sets `errno` and returns -1, for calls that report failure by -1.
pub(crate) fn minus_one(errno: c_int) -> c_int {
    set(errno);
    -1
}

/// Sets `errno` and returns -1, for calls that return a number of bytes.
pub(crate) fn no_bytes(errno: c_int) -> libc::ssize_t {
    set(errno);
    -1
}

/// Sets the calling thread's `errno` unless the argument is 0, and returns the argument.
pub(crate) fn store(errno: c_int) -> c_int {
    if errno != 0 {
        set(errno);
    }
    errno
}

/// Returns the error number for `result`, or 0 for success, for calls that return an error number.
pub(crate) fn number<E>(result: Result<(), E>, errno: impl FnOnce(&E) -> c_int) -> c_int {
    result.map_or_else(|e| errno(&e), |()| 0)
}
