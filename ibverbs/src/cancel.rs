//! Cancellation of threads (`pthread_cancel`).
//!
//! A thread that is cancelled is unwound from the system call that it is in. Only frames of plain data may be unwound so. Therefore
//! cancellation is disabled while Rust code runs ([`disable`]), and a call that blocks is a loop of attempts ([`blocking`]): an
//! attempt has returned, with its locks and handles, before the thread waits in a cancellation point for the next one. Such a call
//! defers an asynchronous cancellation (`PTHREAD_CANCEL_ASYNCHRONOUS`) to these points. In calls that do not block, threads of
//! that type are not supported: POSIX lets them make no such calls.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use libc::{nfds_t, pollfd, sigset_t, timespec};

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, len: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

/// `PTHREAD_CANCEL_DEFERRED`.
const DEFERRED: c_int = 0;

/// Disables cancellation of this thread until the guard is dropped: system calls inside are no cancellation points.
pub fn disable() -> Disabled {
    let mut before = 0;
    // SAFETY: the integer is this function's.
    unsafe { pthread_setcancelstate(DISABLE, &mut before) };
    Disabled(before)
}

/// See [`disable`].
#[must_use = "cancellation is enabled again when it is dropped"]
pub struct Disabled(c_int);

impl Drop for Disabled {
    fn drop(&mut self) {
        let mut inside = 0;
        // SAFETY: the state is the one that the thread had.
        unsafe { pthread_setcancelstate(self.0, &mut inside) };
    }
}

/// The result of an attempt at a call.
pub enum Step<T> {
    Done(T),
    /// The next attempt follows when one of the descriptors is ready that [`Call`] was given.
    Wait,
}

/// State of a blocking call between its attempts.
pub struct Call {
    /// The first attempt has done the steps that are not repeated.
    pub begun: bool,
    /// Bytes transferred so far.
    pub done: usize,
    /// The address of the object that the first attempt found.
    object: Option<usize>,
    deadline: Option<Option<Instant>>,
    /// Why the last wait failed.
    failure: Option<c_int>,
    one: pollfd,
    /// Several descriptors, in `HELD`.
    several: Option<(*mut pollfd, usize)>,
    timeout: Option<Duration>,
}

/// Descriptors and objects of a waiting call. If the thread is cancelled, the thread-local drops them when the thread ends.
#[derive(Default)]
struct Held {
    fds: Vec<pollfd>,
    other: Option<Box<dyn Any>>,
}

thread_local! {
    static HELD: RefCell<Held> = RefCell::default();
}

impl Call {
    pub fn new() -> Call {
        let one = pollfd { fd: -1, events: 0, revents: 0 };
        Call {
            begun: false,
            done: 0,
            object: None,
            deadline: None,
            failure: None,
            one,
            several: None,
            timeout: None,
        }
    }

    /// When the call times out: counted from the first attempt.
    pub fn deadline(&mut self, timeout: Option<Duration>) -> Option<Instant> {
        let from_now = || timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        *self.deadline.get_or_insert_with(from_now)
    }

    /// Whether this is the object that the first attempt found: by the same number there may be another since.
    pub fn is_of<T>(&mut self, object: *const T) -> bool {
        *self.object.get_or_insert(object.addr()) == object.addr()
    }

    /// Whether the call has waited, or has been asked to.
    pub fn has_waited(&self) -> bool {
        self.several.is_some() || self.one.fd >= 0
    }

    /// The error number of the last wait, told once: `EINTR`, or what the system lacks.
    pub fn take_failure(&mut self) -> Option<c_int> {
        self.failure.take()
    }

    /// Waits for one descriptor after this attempt.
    pub fn wait_for(&mut self, fd: c_int, events: libc::c_short, timeout: Option<Duration>) {
        (self.one, self.several, self.timeout) = (pollfd { fd, events, revents: 0 }, None, timeout);
    }

    /// Waits for several descriptors after this attempt; `other` is kept until the call waits
    /// again or is done. False if the thread is ending, and
    /// has no place for them.
    pub fn wait_for_several(
        &mut self,
        fds: &[pollfd],
        timeout: Option<Duration>,
        other: Option<Box<dyn Any>>,
    ) -> bool {
        let placed = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            held.fds.clear();
            held.fds.extend_from_slice(fds);
            let before = std::mem::replace(&mut held.other, other);
            (held.fds.as_mut_ptr(), held.fds.len(), before)
        });
        // The earlier value is dropped after the borrow has ended: its destructor may wait too.
        let placed = placed.ok().map(|(fds, len, _)| (fds, len));
        (self.several, self.timeout) = (placed, timeout);
        placed.is_some()
    }

    /// Waits, where the thread may be cancelled if its cancellation is enabled. Nothing in this frame is dropped.
    fn wait(&mut self) {
        let (fds, len) = self.several.unwrap_or((&raw mut self.one, 1));
        let (time, has_time) = match self.timeout {
            Some(timeout) => {
                let seconds = if timeout.as_secs() > MOST { MOST } else { timeout.as_secs() };
                (timespec { tv_sec: seconds as libc::time_t, tv_nsec: timeout.subsec_nanos().into() }, true)
            }
            None => (timespec { tv_sec: 0, tv_nsec: 0 }, false),
        };
        let time = if has_time { &raw const time } else { std::ptr::null() };
        // SAFETY: the descriptors are in this struct, or in the thread's own list, which stays as it is until the next attempt.
        self.failure = unsafe {
            match ppoll(fds, len as nfds_t, time, std::ptr::null()) {
                0.. => None,
                _ => Some(*libc::__errno_location()),
            }
        };
    }

    /// Waits where the thread is not to be cancelled.
    pub fn wait_undisturbed(&mut self) {
        let _uncancelled = disable();
        self.wait();
        release();
    }
}

/// The longest wait, in seconds: more than any program lasts, and within all types.
const MOST: u64 = i32::MAX as u64;

/// Drops what was kept for a wait.
fn release() {
    // Dropped without the borrow.
    let other = HELD.try_with(|held| held.borrow_mut().other.take());
    drop(other);
}

/// One attempt, with cancellation disabled. A panic ends the process here.
#[allow(
    improper_ctypes_definitions,
    reason = "only Rust calls this; the ABI is the one that nothing unwinds through"
)]
extern "C" fn attempt_once<T, F: FnMut(&mut Call) -> Step<T>>(attempt: &mut F, call: &mut Call) -> Step<T> {
    let _uncancelled = disable();
    let step = attempt(call);
    if matches!(step, Step::Done(_)) && call.has_waited() {
        release();
    }
    step
}

/// Makes a call that may block: attempts until one has a result, and waits in between in a cancellation point. Everything in
/// the caller's frame has to be plain data, as it is unwound without being dropped.
pub fn blocking<T: Copy, F: FnMut(&mut Call) -> Step<T>>(attempt: F) -> T {
    const { assert!(!std::mem::needs_drop::<F>()) };
    let mut attempt = ManuallyDrop::new(attempt);
    let mut kind = DEFERRED;
    // SAFETY: the integer is this function's. The frames up to the program's own have nothing to drop.
    unsafe { pthread_setcanceltype(DEFERRED, &mut kind) };
    let result = attempt_until_done(&mut *attempt);
    if kind != DEFERRED {
        let mut inside = 0;
        // SAFETY: as above: a thread that was cancelled meanwhile is unwound from here.
        unsafe { pthread_setcanceltype(kind, &mut inside) };
    }
    result
}

/// See [`blocking`], from whose every instruction a thread of the asynchronous type may be unwound. So `blocking` must have nothing
/// to drop, even as the compiler sees it before it knows the types: a function with cleanup can be unwound from its calls only.
#[inline(never)]
fn attempt_until_done<T: Copy, F: FnMut(&mut Call) -> Step<T>>(attempt: &mut F) -> T {
    // SAFETY: the frames up to the program's own have nothing to drop.
    unsafe { pthread_testcancel() };
    let mut call = Call::new();
    loop {
        match attempt_once(attempt, &mut call) {
            Step::Done(result) => return result,
            Step::Wait => call.wait(),
        }
    }
}
