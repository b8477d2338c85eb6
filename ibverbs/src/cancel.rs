//! Thread cancellation (`pthread_cancel`).
//!
//! A cancelled thread is unwound from the system call that it is in, which is allowed only through frames of
//! plain data. Therefore cancellation is disabled while Rust code runs ([`disable`]), and a blocking call is
//! a loop of attempts ([`blocking`]): an attempt returns, and releases its locks and handles, before the
//! thread waits at a cancellation point for the next one. Such a call also defers an asynchronous
//! cancellation (`PTHREAD_CANCEL_ASYNCHRONOUS`) to these points. Other calls do not support threads with
//! asynchronous cancellation, which POSIX forbids to make them.

use std::ffi::c_int;
use std::mem::ManuallyDrop;

pub(crate) use urxe_rsockets::{Call, PENDING};

use crate::errno::{self, OnSuccess};

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, previous: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn pthread_setcanceltype(kind: c_int, previous: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

/// `PTHREAD_CANCEL_DEFERRED`.
const DEFERRED: c_int = 0;

/// Disables cancellation of this thread until the guard is dropped. Until then, system calls are not
/// cancellation points. If no call fails until then ([`errno::set`]), `errno` stays unchanged.
pub(crate) fn disable() -> (Disabled, OnSuccess) {
    (disable_alone(), OnSuccess::new())
}

/// Disables cancellation as [`disable`] does, for a call that reports errors by its result alone: `errno`
/// stays unchanged in any case.
pub(crate) fn disable_and_keep_errno() -> (Disabled, KeptErrno) {
    (disable_alone(), KeptErrno(errno::get()))
}

fn disable_alone() -> Disabled {
    let mut previous = 0;
    // SAFETY: `DISABLE` is a valid state, and `previous` is a writable local.
    unsafe { pthread_setcancelstate(DISABLE, &mut previous) };
    Disabled(previous)
}

/// Guard that restores `errno`.
pub(crate) struct KeptErrno(c_int);

impl Drop for KeptErrno {
    fn drop(&mut self) {
        errno::restore(self.0);
    }
}

/// Guard returned by [`disable`]; dropping it restores the previous cancellation state.
#[must_use = "cancellation is enabled again when the guard is dropped"]
pub(crate) struct Disabled(c_int);

impl Drop for Disabled {
    fn drop(&mut self) {
        let mut previous = 0;
        // SAFETY: the state is the valid one that `disable` read, and `previous` is a writable local.
        unsafe { pthread_setcancelstate(self.0, &mut previous) };
    }
}

/// Makes one attempt, with cancellation disabled. A panic during the attempt aborts the process.
#[allow(
    improper_ctypes_definitions,
    reason = "only Rust calls this; the ABI is the one that nothing unwinds through"
)]
extern "C" fn attempt_once<T, F>(attempt: &mut F, call: &mut Call) -> Result<T, c_int>
where
    F: FnMut(&mut Call) -> Result<T, c_int>,
{
    let _uncancelled = disable();
    let result = attempt(call);
    if !matches!(result, Err(PENDING)) {
        call.end();
    }
    result
}

/// Makes a call that may block: repeats the attempt while it fails with [`PENDING`], and waits at a
/// cancellation point between attempts. All values in the caller's frames must be plain data, because
/// unwinding does not drop them.
///
/// # Errors
/// The errors of the last attempt.
pub(crate) fn blocking<T: Copy, F: FnMut(&mut Call) -> Result<T, c_int>>(attempt: F) -> Result<T, c_int> {
    const { assert!(!std::mem::needs_drop::<F>()) };
    let mut attempt = ManuallyDrop::new(attempt);
    let mut kind = DEFERRED;
    // SAFETY: `DEFERRED` is a valid type and `kind` a writable local. If a pending cancellation takes effect
    // here, the frames up to the program's own have nothing to drop.
    unsafe { pthread_setcanceltype(DEFERRED, &mut kind) };
    let result = attempt_until_done(&mut *attempt);
    if kind != DEFERRED {
        let mut previous = 0;
        // SAFETY: `kind` is the valid type read above and `previous` a writable local. A thread that was
        // cancelled meanwhile is unwound from here; as above, no frame has anything to drop.
        unsafe { pthread_setcanceltype(kind, &mut previous) };
    }
    result
}

/// Runs the loop of [`blocking`], in a function of its own. A thread with asynchronous cancellation may be
/// unwound from any instruction of `blocking`, which must therefore have no cleanup code, not even code that
/// the compiler generates before it knows the types: a function with cleanup code can be unwound only from
/// its calls.
#[inline(never)]
fn attempt_until_done<T: Copy, F>(attempt: &mut F) -> Result<T, c_int>
where
    F: FnMut(&mut Call) -> Result<T, c_int>,
{
    // SAFETY: if the thread is unwound from here, the frames up to the program's own have nothing to drop.
    unsafe { pthread_testcancel() };
    let mut call = Call::default();
    let before = errno::get();
    loop {
        match attempt_once(attempt, &mut call) {
            Err(PENDING) => call.wait(),
            result => {
                if !errno::is_set() {
                    errno::restore(before);
                }
                return result;
            }
        }
    }
}
