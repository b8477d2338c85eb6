//! Waiting for rsockets, alone or together with other file descriptors.
//!
//! When a socket's descriptor becomes readable, the waiting thread itself processes the socket's events,
//! which consumes them. Other threads waiting for the same socket would miss them. Therefore, each waiting
//! thread has its own eventfd, through which the thread that processes the events wakes it.

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::pollfd;
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use urxe::sys::fork::ForkGeneration;
use urxe::verbs::signals_restart_calls;

use super::options::polling;
use crate::cancel::{Call, PENDING};
use crate::errno;

thread_local! {
    /// This thread's waker, created at its first wait, with the process that created it.
    static THREAD_WAKER: RefCell<Option<(ForkGeneration, Arc<Waker>)>> = const { RefCell::new(None) };
}

/// Returns this thread's waker. Creates one if the thread has none and `make` is set.
fn thread_waker(make: bool) -> Option<Arc<Waker>> {
    let get = |cell: &RefCell<Option<(ForkGeneration, Arc<Waker>)>>| {
        let mut slot = cell.borrow_mut();
        // A forked child shares the eventfd of its parent's waker, so it needs one of its own.
        let outcome =
            slot.as_ref().filter(|(process, _)| process.is_current()).map(|(_, waker)| waker.clone());
        if outcome.is_some() || !make {
            return outcome;
        }
        let waker = Arc::new(Waker::new()?);
        *slot = Some((ForkGeneration::current(), waker.clone()));
        Some(waker)
    };
    // The thread-local is destroyed only while the thread exits.
    THREAD_WAKER.try_with(get).ok().flatten()
}

/// Eventfd that wakes one waiting thread.
pub(super) struct Waker(EventFd);

impl Waker {
    fn new() -> Option<Waker> {
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).ok().map(Waker)
    }

    /// Wakes the thread.
    fn wake(&self) {
        // Fails only if the counter is full, and then the thread is awake.
        let _ = self.0.write(1);
    }

    /// Resets the counter.
    fn reset(&self) {
        // Fails if the counter is zero, which needs no reset.
        let _ = self.0.read();
    }
}

/// Wakers of the threads that wait for a socket.
#[derive(Default)]
pub(super) struct Watchers(Mutex<Vec<Arc<Waker>>>);

impl Watchers {
    /// Wakes all waiting threads except the calling one. Called after the socket has changed.
    pub(super) fn wake(&self) {
        let watchers = self.0.lock();
        if !watchers.is_empty() {
            let own_ = thread_waker(false);
            let is_own = |waker: &Arc<Waker>| own_.as_ref().is_some_and(|own_| Arc::ptr_eq(own_, waker));
            watchers.iter().filter(|waker| !is_own(waker)).for_each(|waker| waker.wake());
        }
    }

    /// Reports whether no thread waits.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Wakes all waiting threads. Called when the socket has a new descriptor to wait for: a thread that processes this
    /// change in the last look before it sleeps would otherwise sleep without the descriptor.
    pub(super) fn wake_all(&self) {
        self.0.lock().iter().for_each(|waker| waker.wake());
    }
}

/// A socket that threads can wait for.
pub(super) trait Waitable {
    /// Returns the threads to wake when the socket changes.
    fn watchers(&self) -> &Watchers;

    /// Requests a notification of the next change, and passes the file descriptors that the change makes
    /// readable to `by`.
    fn arm(&self, by: &mut dyn FnMut(BorrowedFd<'_>));

    /// Makes the background threads of the devices poll for the changes.
    fn stop_polling(&self);
}

/// Registration of a waker with sockets, cancelled on drop.
struct Watching {
    sockets: Vec<Arc<dyn Waitable>>,
    waker: Arc<Waker>,
}

impl Watching {
    fn new(sockets: &[Arc<dyn Waitable>], waker: Arc<Waker>) -> Watching {
        sockets.iter().for_each(|socket| socket.watchers().0.lock().push(waker.clone()));
        Watching { sockets: sockets.to_vec(), waker }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        for socket in &self.sockets {
            let mut watchers = socket.watchers().0.lock();
            if let Some(at) = watchers.iter().position(|waker| Arc::ptr_eq(waker, &self.waker)) {
                watchers.swap_remove(at);
            }
        }
    }
}

/// Error of a wait until its deadline.
pub(super) const TIMED_OUT: c_int = libc::EAGAIN;

/// Makes a blocking call with thread cancellation disabled.
///
/// # Errors
/// The errors of the call.
pub(super) fn uncancellable<T>(mut attempt: impl FnMut(&mut Call) -> Result<T, c_int>) -> Result<T, c_int> {
    let mut call = Call::new();
    loop {
        match attempt(&mut call) {
            Err(PENDING) => call.wait_uncancelled(),
            result => return result,
        }
    }
}

/// Reports whether a socket call interrupted by a signal must be restarted. Like a system call, it is
/// restarted only if it has transferred nothing and has no timeout.
pub(super) fn restarts<T>(result: &Result<T, c_int>, timeout: Option<Duration>, done: usize) -> bool {
    matches!(result, Err(libc::EINTR)) && timeout.is_none() && done == 0 && signals_restart_calls()
}

/// Returns the result of `poll_once`. If it has none yet, sets up the call to wait until a socket changes, an
/// event requested in `others` occurs, or the deadline expires; the call is then attempted again.
///
/// # Errors
/// [`PENDING`], [`TIMED_OUT`], `EINTR`, and the errors of `ppoll`.
pub(super) fn wait<R>(
    call: &mut Call,
    sockets: &[Arc<dyn Waitable>],
    others: &mut [pollfd],
    deadline: Option<Instant>,
    mut poll_once: impl FnMut(&mut [pollfd]) -> Option<R>,
) -> Result<R, c_int> {
    if !call.has_waited() {
        let until = Instant::now() + polling();
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        while Instant::now() < until {
            if let Some(outcome) = poll_once(others) {
                return Ok(outcome);
            }
        }
    }
    let waker = thread_waker(true).ok_or(libc::EMFILE)?;
    waker.reset();
    let watching = Watching::new(sockets, waker);
    let polled = |fd: c_int| pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = Vec::with_capacity(others.len() + 1 + 2 * sockets.len());
    fds.extend_from_slice(others);
    fds.push(polled(watching.waker.0.as_raw_fd()));
    sockets.iter().for_each(|socket| socket.arm(&mut |fd| fds.push(polled(fd.as_raw_fd()))));
    if let Some(outcome) = poll_once(others) {
        return Ok(outcome);
    }
    // Not before the last look, which often finds something: this may wake background threads.
    sockets.iter().for_each(|socket| socket.stop_polling());
    if let Some(e) = call.take_failure() {
        return Err(e);
    }
    let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if remaining.is_some_and(|remaining| remaining.is_zero()) {
        return Err(TIMED_OUT);
    }
    match call.wait_for_list(&fds, remaining, Some(Box::new(watching))) {
        true => Err(PENDING),
        false => Err(libc::EMFILE),
    }
}

/// Result of an attempt; `None` if the call must wait.
pub(super) type PollOutcome<T> = Option<Result<T, c_int>>;

/// Calls `poll_once` for a socket. If it has no result and the call may block, sets up a wait.
///
/// # Errors
/// `EAGAIN`, `EINTR`, [`PENDING`], and the errors of `poll_once`.
pub(super) fn until<T>(
    call: &mut Call,
    socket: &Arc<impl Waitable + 'static>,
    may_block: bool,
    timeout: Option<Duration>,
    mut poll_once: impl FnMut() -> PollOutcome<T>,
) -> Result<T, c_int> {
    if let Some(result) = poll_once() {
        return result;
    }
    if !may_block {
        return Err(libc::EAGAIN);
    }
    let deadline = call.deadline(timeout);
    let sockets: [Arc<dyn Waitable>; 1] = [socket.clone()];
    wait(call, &sockets, &mut [], deadline, |_| poll_once())?
}

/// Looks for the events of descriptors that are not rsockets. By `ppoll`, as preloaded libraries map `poll`
/// to `rpoll`.
pub(super) fn poll(fds: &mut [pollfd]) -> Result<(), c_int> {
    let (len, now) = (fds.len() as libc::nfds_t, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: `fds` is a mutable slice of the given length, and a null mask is allowed.
    match unsafe { libc::ppoll(fds.as_mut_ptr(), len, &now, std::ptr::null()) } {
        0.. => Ok(()),
        _ => Err(errno::get()),
    }
}

/// Returns the raw number of a file descriptor.
pub(super) fn raw(fd: impl AsFd) -> c_int {
    fd.as_fd().as_raw_fd()
}
