//! Blocking waits: on a descriptor in real time, or by advancing the clock in virtual time.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;

use crate::fabric::Fabric;
use crate::sys::signals::signals_restart_calls;

/// Reason why a wait ended without a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitEnd {
    /// The timeout, whose length is the value, expired.
    TimedOut(Duration),
    /// A signal interrupted the wait, and not all of the program's handlers have `SA_RESTART`.
    Interrupted,
    /// In virtual time only: nothing is pending on the fabric that could end the wait.
    Idle,
    /// The system is out of descriptors or another resource that the wait needs.
    System(Errno),
}

/// Returns the time at which a timeout expires: thirty years from now if the timeout exceeds the clock's
/// range, like [`Duration::MAX`].
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or_else(|| now + FAR)
}

/// Waits in real time until `take` returns a value or the timeout, if any, expires. `fd` must become readable
/// whenever `take` may return a value. Returns [`WaitEnd::Interrupted`] after a signal, unless all of the
/// program's handlers have `SA_RESTART`.
pub(crate) fn until_readable<R>(
    fd: BorrowedFd<'_>,
    timeout: Option<Duration>,
    mut take: impl FnMut() -> Option<R>,
) -> Result<R, WaitEnd> {
    let deadline = timeout.map(deadline_after);
    loop {
        if let Some(taken) = take() {
            return Ok(taken);
        }
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if let (Some(Duration::ZERO), Some(timeout)) = (left, timeout) {
            return Err(WaitEnd::TimedOut(timeout));
        }
        let ready = ppoll(&mut [PollFd::new(fd, PollFlags::POLLIN)], left.map(TimeSpec::from), None);
        match (ready, timeout) {
            (Ok(0), Some(timeout)) => return Err(WaitEnd::TimedOut(timeout)),
            (Err(Errno::EINTR), _) if !signals_restart_calls() => return Err(WaitEnd::Interrupted),
            (Ok(_) | Err(Errno::EINTR), _) => {}
            // ppoll fails only for lack of memory; a short sleep is better than a busy loop.
            (Err(_), _) => {
                std::thread::sleep(left.unwrap_or(Duration::MAX).min(Duration::from_millis(1)));
            }
        }
    }
}

/// Waits like [`until_readable`], for a `take` that may return nothing and yet leave `fd` readable: after the
/// first calls, `take` is called only when `fd` is signalled anew, for example by a write to an eventfd.
/// Several threads may wait on the same `fd` without affecting each other.
pub(crate) fn until_signalled<R>(
    fd: BorrowedFd<'_>,
    timeout: Option<Duration>,
    mut take: impl FnMut() -> Option<R>,
) -> Result<R, WaitEnd> {
    if let Some(taken) = take() {
        return Ok(taken);
    }
    if timeout == Some(Duration::ZERO) {
        return Err(WaitEnd::TimedOut(Duration::ZERO));
    }
    let edges = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(WaitEnd::System)?;
    let edge_triggered = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
    edges.add(fd, edge_triggered).map_err(WaitEnd::System)?;
    until_readable(edges.0.as_fd(), timeout, || {
        // Cleared before `take`, so that what is signalled during `take` ends the next wait.
        let _ = edges.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO);
        take()
    })
}

/// Advances virtual time until `take` returns a value or the timeout expires, and lets other threads of the
/// fabric run meanwhile. Returns [`WaitEnd::Idle`] if nothing is left to do.
pub(crate) fn step_until<R>(
    fabric: &Fabric,
    timeout: Duration,
    mut take: impl FnMut() -> Option<R>,
) -> Result<R, WaitEnd> {
    if fabric.threads().are_in_use() {
        return fabric.wait_in_turn(timeout, take);
    }
    let deadline = fabric.now() + timeout;
    loop {
        if let Some(taken) = take() {
            return Ok(taken);
        }
        if fabric.step_until(deadline).is_none() {
            let has_passed = fabric.pass_time_until(deadline);
            return Err(if has_passed { WaitEnd::TimedOut(timeout) } else { WaitEnd::Idle });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_beyond_the_range_of_the_clock_expires_in_the_far_future() {
        let year = Duration::from_secs(365 * 24 * 3600);
        assert!(deadline_after(Duration::MAX) > Instant::now() + year);
        let soon = deadline_after(Duration::from_secs(5));
        assert!(soon <= Instant::now() + Duration::from_secs(5));
    }
}
