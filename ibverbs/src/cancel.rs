//! Thread cancellation (`pthread_cancel`).
//!
//! A cancelled thread is unwound from the system call that it is in, which is allowed only through frames of
//! plain data. Therefore cancellation is disabled while Rust code runs ([`disable`]), and a blocking call is
//! a loop of attempts ([`blocking`]): an attempt returns, and releases its locks and handles, before the
//! thread waits at a cancellation point for the next one. Such a call also defers an asynchronous
//! cancellation (`PTHREAD_CANCEL_ASYNCHRONOUS`) to these points. Other calls do not support threads with
//! asynchronous cancellation, which POSIX forbids to make them.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use libc::{nfds_t, pollfd, sigset_t, timespec};

use crate::errno::{self, OnSuccess};

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, previous: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn pthread_setcanceltype(kind: c_int, previous: *mut c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, len: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
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

/// Disables cancellation as [`disable`] does, for a call that reports errors by its result alone: `errno` stays
/// unchanged in any case.
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

/// Pseudo error number of an attempt at a blocking call: the next attempt is due when a descriptor passed to
/// [`Call`] is ready. It cannot collide with real error numbers, which are positive.
pub(crate) const PENDING: c_int = c_int::MIN;

/// State that a blocking call keeps between its attempts.
pub(crate) struct Call {
    /// Whether an attempt has already done the steps that must not be repeated.
    pub started: bool,
    /// Number of bytes transferred so far.
    pub done: usize,
    /// Address of the object that the first attempt used.
    object: Option<usize>,
    deadline: Option<Option<Instant>>,
    /// Error number of the last wait, if it failed.
    failure: Option<c_int>,
    single: pollfd,
    /// Pointer to and length of the descriptor list in `WAIT_STATE`, which is used instead of `single`.
    list: Option<(*mut pollfd, usize)>,
    timeout: Option<Duration>,
}

/// Descriptors and object kept for a waiting call. They are thread-local so that they are dropped at thread
/// exit if the thread is cancelled.
#[derive(Default)]
struct WaitState {
    fds: Vec<pollfd>,
    other: Option<Box<dyn Any>>,
}

thread_local! {
    static WAIT_STATE: RefCell<WaitState> = RefCell::default();
}

impl Call {
    /// Returns the state of a call before its first attempt.
    pub(crate) fn new() -> Call {
        let single = pollfd { fd: -1, events: 0, revents: 0 };
        Call {
            started: false,
            done: 0,
            object: None,
            deadline: None,
            failure: None,
            single,
            list: None,
            timeout: None,
        }
    }

    /// Returns the time at which the call times out: `timeout` after the first attempt asked for it.
    pub(crate) fn deadline(&mut self, timeout: Option<Duration>) -> Option<Instant> {
        let from_now = || timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        *self.deadline.get_or_insert_with(from_now)
    }

    /// Reports whether `object` is the one that the first attempt used. The descriptor may meanwhile refer to
    /// a different object.
    pub(crate) fn is_same_object<T>(&mut self, object: *const T) -> bool {
        *self.object.get_or_insert(object.addr()) == object.addr()
    }

    /// Reports whether the call has waited, or is about to.
    pub(crate) fn has_waited(&self) -> bool {
        self.list.is_some() || self.single.fd >= 0
    }

    /// Takes the error number of the last wait: `EINTR`, or one that indicates a lack of resources.
    pub(crate) fn take_failure(&mut self) -> Option<c_int> {
        self.failure.take()
    }

    /// Makes the call wait for one descriptor once this attempt has returned.
    pub(crate) fn wait_for(&mut self, fd: c_int, events: libc::c_short, timeout: Option<Duration>) {
        (self.single, self.list, self.timeout) = (pollfd { fd, events, revents: 0 }, None, timeout);
    }

    /// Makes the call wait for several descriptors once this attempt has returned. `other` is kept until the
    /// call waits again or completes. Returns false if neither the list nor `other` can be stored because the
    /// thread is exiting.
    pub(crate) fn wait_for_list(
        &mut self,
        fds: &[pollfd],
        timeout: Option<Duration>,
        other: Option<Box<dyn Any>>,
    ) -> bool {
        let stored = WAIT_STATE.try_with(|state| {
            let mut state = state.borrow_mut();
            state.fds.clear();
            state.fds.extend_from_slice(fds);
            let previous = std::mem::replace(&mut state.other, other);
            (state.fds.as_mut_ptr(), state.fds.len(), previous)
        });
        // The earlier value is dropped after the borrow has ended, because its destructor may wait too.
        let stored = stored.ok().map(|(fds, len, _)| (fds, len));
        (self.list, self.timeout) = (stored, timeout);
        stored.is_some()
    }

    /// Waits. If cancellation is enabled, the thread may be cancelled here, so this stack frame must contain
    /// nothing that needs to be dropped.
    fn wait(&mut self) {
        let (fds, len) = self.list.unwrap_or((&raw mut self.single, 1));
        let time = self.timeout.map(|timeout| timespec {
            tv_sec: timeout.as_secs().min(MAX_WAIT_SECS) as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `fds` points to `len` descriptors: the one in this struct, which is borrowed, or the
        // thread-local list, which does not change before the next attempt. `time` is null or a local, and a
        // null mask is allowed.
        self.failure = unsafe {
            match ppoll(fds, len as nfds_t, time, std::ptr::null()) {
                0.. => None,
                _ => Some(errno::get()),
            }
        };
    }

    /// Waits with cancellation disabled.
    pub(crate) fn wait_uncancelled(&mut self) {
        let _uncancelled = disable();
        self.wait();
        release();
    }
}

/// Upper bound of a wait in seconds: longer than any program runs, but representable in all types involved.
const MAX_WAIT_SECS: u64 = i32::MAX as u64;

/// Drops the object kept for a wait.
fn release() {
    // Taken out first and dropped without the borrow, as a destructor may wait too.
    let other = WAIT_STATE.try_with(|state| state.borrow_mut().other.take());
    drop(other);
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
    if !matches!(result, Err(PENDING)) && call.has_waited() {
        release();
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
    let mut call = Call::new();
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
