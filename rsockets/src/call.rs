//! State of a blocking call, which is a loop of attempts and waits. An attempt returns, and releases its
//! locks and handles, before the thread waits, so that the thread can be cancelled (`pthread_cancel`) in the
//! wait: cancellation unwinds the frames of the thread, which must hold plain data only.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use libc::{nfds_t, pollfd, sigset_t, timespec};
use nix::errno::Errno;

unsafe extern "C-unwind" {
    fn ppoll(fds: *mut pollfd, len: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}

/// Pseudo error number of an attempt at a blocking call: the next attempt is due when a descriptor passed to
/// [`Call`] is ready. It cannot collide with real error numbers, which are positive.
pub const PENDING: c_int = c_int::MIN;

/// State that a blocking call keeps between its attempts; the default is that before the first one.
#[derive(Default)]
pub struct Call {
    /// Whether an attempt has already done the steps that must not be repeated.
    pub started: bool,
    /// Number of bytes transferred so far.
    pub done: usize,
    /// Address of the object that the first attempt used.
    object: Option<usize>,
    deadline: Option<Option<Instant>>,
    /// Error number of the last wait, if it failed.
    failure: Option<c_int>,
    single: Option<pollfd>,
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
        self.list.is_some() || self.single.is_some()
    }

    /// Takes the error number of the last wait: `EINTR`, or one that indicates a lack of resources.
    pub fn take_failure(&mut self) -> Option<c_int> {
        self.failure.take()
    }

    /// Makes the call wait for one descriptor once this attempt has returned.
    pub fn wait_for(&mut self, fd: c_int, events: libc::c_short, timeout: Option<Duration>) {
        (self.single, self.list, self.timeout) = (Some(pollfd { fd, events, revents: 0 }), None, timeout);
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

    /// Waits. If cancellation is enabled, the thread may be cancelled here, so neither this stack frame nor
    /// those of the callers may contain anything that needs to be dropped. No other call of this thread may
    /// have been set up to wait for a list since the last attempt.
    pub fn wait(&mut self) {
        let single = self.single.as_mut_slice();
        let (fds, len) = self.list.unwrap_or((single.as_mut_ptr(), single.len()));
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
                _ => Some(Errno::last_raw()),
            }
        };
    }

    /// Drops the object kept for a wait. Called after the last attempt.
    pub fn end(&self) {
        if self.has_waited() {
            // Taken out first and dropped without the borrow, as a destructor may wait too.
            let other = WAIT_STATE.try_with(|state| state.borrow_mut().other.take());
            drop(other);
        }
    }
}

/// Upper bound of a wait in seconds: longer than any program runs, but representable in all types involved.
const MAX_WAIT_SECS: u64 = i32::MAX as u64;
