//! Waiting for rsockets, alone or together with other file descriptors.
//!
//! When a socket's descriptor becomes readable, the waiting thread itself processes the socket's events,
//! which consumes them. Other threads waiting for the same socket would miss them. Therefore, each waiting
//! thread has its own eventfd, through which the thread that processes the events wakes it.

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::pollfd;
use nix::errno::Errno;
use urxe::verbs::signals_restart_calls;

use crate::call::{Call, PENDING};
use crate::options::polling;
use crate::socket::Socket;
use crate::watchers::{Waker, thread_waker};

/// Registration of a waker with sockets, cancelled on drop.
struct Watching {
    sockets: Vec<Arc<dyn Socket>>,
    waker: Waker,
}

impl Watching {
    fn new(sockets: &[Arc<dyn Socket>], waker: Waker) -> Watching {
        sockets.iter().for_each(|socket| socket.common().watchers.add(&waker));
        Watching { sockets: sockets.to_vec(), waker }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.sockets.iter().for_each(|socket| socket.common().watchers.remove(&self.waker));
    }
}

/// Error of a wait until its deadline.
pub(crate) const TIMED_OUT: c_int = libc::EAGAIN;

/// Makes a blocking call within another one, which has disabled thread cancellation.
///
/// # Errors
/// The errors of the call.
pub(crate) fn uncancellable<T>(mut attempt: impl FnMut(&mut Call) -> Result<T, c_int>) -> Result<T, c_int> {
    let mut call = Call::default();
    loop {
        match attempt(&mut call) {
            Err(PENDING) => call.wait(),
            result => {
                call.end();
                return result;
            }
        }
    }
}

/// Repeats a wait until it succeeds or fails for good, or until the deadline. Calls `on_progress` at least
/// every 50 ms.
pub(crate) fn wait_for_close(
    deadline: Instant,
    on_progress: &dyn Fn(),
    mut wait: impl FnMut(&mut Call, Option<Duration>) -> Result<(), c_int>,
) {
    while Instant::now() < deadline {
        on_progress();
        let remaining = deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(50));
        match uncancellable(|call| wait(call, Some(remaining))) {
            Err(libc::EAGAIN | libc::EINTR) => {}
            _ => break,
        }
    }
}

/// Returns the result of `poll_once`. If it has none yet, sets up the call to wait until a socket changes, an
/// event requested in `others` occurs, or the deadline expires; the call is then attempted again.
///
/// # Errors
/// [`PENDING`], [`TIMED_OUT`], `EINTR`, and the errors of `ppoll`.
pub(crate) fn wait<R>(
    call: &mut Call,
    sockets: &[Arc<dyn Socket>],
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
    // Resets the counter. Fails if it is zero already.
    let _ = waker.read();
    let watching = Watching::new(sockets, waker);
    let polled = |fd: c_int| pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = Vec::with_capacity(others.len() + 1 + 2 * sockets.len());
    fds.extend_from_slice(others);
    fds.push(polled(watching.waker.as_raw_fd()));
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
pub(crate) type PollOutcome<T> = Option<Result<T, c_int>>;

/// Calls `poll_once` for a socket. If it has no result and the call may block, sets up a wait. After a
/// signal, the call is restarted like a system call: only if it has no timeout, and `done`, the number of
/// bytes that it has transferred, is 0.
///
/// # Errors
/// `EAGAIN`, `EINTR`, [`PENDING`], and the errors of `poll_once`.
pub(crate) fn until<T>(
    call: &mut Call,
    socket: &Arc<impl Socket>,
    (may_block, timeout): (bool, Option<Duration>),
    done: &Cell<usize>,
    mut poll_once: impl FnMut() -> PollOutcome<T>,
) -> Result<T, c_int> {
    loop {
        if let Some(result) = poll_once() {
            return result;
        }
        if !may_block {
            return Err(libc::EAGAIN);
        }
        let deadline = call.deadline(timeout);
        let sockets: [Arc<dyn Socket>; 1] = [socket.clone()];
        match wait(call, &sockets, &mut [], deadline, |_| poll_once()) {
            Err(libc::EINTR) if timeout.is_none() && done.get() == 0 && signals_restart_calls() => {}
            result => return result?,
        }
    }
}

/// Looks for the events of descriptors that are not rsockets. By `ppoll`, as preloaded libraries map `poll`
/// to `rpoll`.
pub(crate) fn poll(fds: &mut [pollfd]) -> Result<(), c_int> {
    let (len, now) = (fds.len() as libc::nfds_t, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: `fds` is a mutable slice of the given length, and a null mask is allowed.
    match unsafe { libc::ppoll(fds.as_mut_ptr(), len, &now, std::ptr::null()) } {
        0.. => Ok(()),
        _ => Err(Errno::last_raw()),
    }
}
