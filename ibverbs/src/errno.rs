//! Error conventions of the C interface.
#![allow(clippy::missing_safety_doc)]

use std::cell::Cell;
use std::ffi::c_int;

thread_local! {
    /// Number of [`OnSuccess`] guards of this thread, and whether the call that it executes has failed.
    static CALLS: Cell<(u32, bool)> = const { Cell::new((0, false)) };
}

/// Returns the calling thread's `errno`.
pub(crate) fn get() -> c_int {
    // SAFETY: `__errno_location` returns a valid pointer to the calling thread's own `errno`.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's `errno`, without noting that a call has failed.
pub(crate) fn restore(errno: c_int) {
    // SAFETY: `__errno_location` returns a valid pointer to the calling thread's own `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// Sets the calling thread's `errno`, as the call that it executes fails.
pub(crate) fn set(errno: c_int) {
    restore(errno);
    CALLS.set((CALLS.get().0, true));
}

/// Reports whether the thread's call has set `errno`.
pub(crate) fn is_set() -> bool {
    CALLS.get().1
}

/// Guard for a call, which restores the value that `errno` had before the call unless the call [`set`] it.
/// The system calls of a call that succeeds may fail, for example with `EAGAIN`; programs in Go take an
/// `errno` that a successful call leaves behind for its failure.
pub(crate) struct OnSuccess(c_int);

impl OnSuccess {
    /// Begins a call, or a call within one.
    pub(crate) fn new() -> OnSuccess {
        let (calls, failed) = CALLS.get();
        CALLS.set((calls + 1, failed && calls > 0));
        OnSuccess(get())
    }
}

impl Drop for OnSuccess {
    fn drop(&mut self) {
        let (calls, failed) = CALLS.get();
        CALLS.set((calls - 1, failed));
        if calls == 1 && !failed {
            restore(self.0);
        }
    }
}

/// Sets `errno` and returns null, for calls that return a pointer.
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set(errno);
    std::ptr::null_mut()
}

/// Returns the pointer that a call has returned, or the error with which it has failed.
pub(crate) fn non_null<T>(returned: *mut T) -> Result<*mut T, c_int> {
    if returned.is_null() { Err(get()) } else { Ok(returned) }
}

/// Sets `errno` and returns -1, for calls that report failure by -1.
pub(crate) fn minus_one<R: From<i8>>(errno: c_int) -> R {
    set(errno);
    R::from(-1)
}

/// Sets `errno` and returns -4 (`IBV_REREG_MR_ERR_CMD`), for failures of `ibv_rereg_mr`.
pub(crate) fn minus_four(errno: c_int) -> c_int {
    set(errno);
    -4
}

/// Sets the calling thread's `errno` unless the argument is 0, and returns the argument.
pub(crate) fn store(errno: c_int) -> c_int {
    if errno != 0 {
        set(errno);
    }
    errno
}
