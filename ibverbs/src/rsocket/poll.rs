//! `rpoll` and `rselect`: waiting for rsockets and other file descriptors at once.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use libc::{c_short, fd_set, pollfd, timeval};

use super::link_polls::LinkPolls;
use super::options::duration;
use super::socket::Socket;
use super::table::find_all;
use super::wait::{TIMED_OUT, poll, wait};
use crate::cancel::Call;

/// Events that are reported even if they were not requested.
const ALWAYS: c_short = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

/// Waits until a descriptor has events or the timeout expires. Returns the number of descriptors with events.
///
/// # Errors
/// An error number, or [`PENDING`](crate::cancel::PENDING).
pub(super) fn wait_for(
    call: &mut Call,
    fds: &mut [pollfd],
    timeout: Option<Duration>,
) -> Result<c_int, c_int> {
    let sockets = find_all(fds.iter().map(|fd| fd.fd));
    let is_other = |(fd, socket): (&pollfd, &Option<Arc<dyn Socket>>)| socket.is_none() && fd.fd >= 0;
    let mut others: Vec<pollfd> =
        fds.iter().zip(&sockets).filter(|(fd, socket)| is_other((fd, socket))).map(|(fd, _)| *fd).collect();
    let mut poll_once = |others: &mut [pollfd]| {
        let mut look = |link_polls: &mut LinkPolls| {
            for (fd, socket) in fds.iter_mut().zip(&sockets) {
                let events = |socket: &Arc<dyn Socket>| socket.events(link_polls) & (fd.events | ALWAYS);
                fd.revents = socket.as_ref().map_or(0, events);
            }
            fds.iter().any(|fd| fd.revents != 0)
        };
        let mut link_polls = LinkPolls::Later(Vec::new());
        if !look(&mut link_polls) && link_polls.poll() {
            look(&mut LinkPolls::None);
        }
        if !others.is_empty() {
            if let Err(e) = poll(others) {
                return Some(Err(e));
            }
            let plain = fds.iter_mut().zip(&sockets).filter(|(fd, socket)| is_other((fd, socket)));
            plain.zip(&*others).for_each(|((fd, _), other)| fd.revents = other.revents);
        }
        let count = fds.iter().filter(|fd| fd.revents != 0).count();
        (count > 0).then_some(Ok(count as c_int))
    };
    if let Some(count) = poll_once(&mut others) {
        return count;
    }
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        return Ok(0);
    }
    let deadline = call.deadline(timeout);
    let rsockets: Vec<_> = sockets.iter().flatten().cloned().collect();
    match wait(call, &rsockets, &mut others, deadline, poll_once) {
        Ok(count) => count,
        Err(TIMED_OUT) => Ok(0),
        Err(e) => Err(e),
    }
}

/// Descriptor sets that the program passes to `select`: for reads, for writes, and for exceptions.
pub(super) struct Sets(pub [*mut fd_set; 3]);

/// Event to poll for the descriptors in each of the [`Sets`], and events for which a descriptor stays in it.
const EVENTS: [(c_short, c_short); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

impl Sets {
    /// Returns the sets that are not null, with their [`EVENTS`].
    fn given(&self) -> impl Iterator<Item = (*mut fd_set, (c_short, c_short))> {
        self.0.into_iter().zip(EVENTS).filter(|(set, _)| !set.is_null())
    }

    /// Returns the descriptors below `count` that are in any of the sets, with the events to poll for.
    ///
    /// # Safety
    /// Each set is null or points to a valid `fd_set`, and `count` is at most `FD_SETSIZE`.
    unsafe fn requested(&self, count: c_int) -> Vec<pollfd> {
        let polled = |fd| {
            // SAFETY: the caller passes valid sets, and `fd` is below `count` and so below `FD_SETSIZE`.
            let sets = self.given().filter(|(set, _)| unsafe { libc::FD_ISSET(fd, *set) });
            pollfd { fd, events: sets.fold(0, |events, (_, (event, _))| events | event), revents: 0 }
        };
        (0..count).map(polled).filter(|fd| fd.events != 0).collect()
    }

    /// Stores the found events in the sets, and returns the number of bits set.
    ///
    /// # Safety
    /// Each set is null or points to a writable `fd_set`, and `fds` were returned by
    /// [`requested`](Self::requested) for these sets.
    unsafe fn store(&self, fds: &[pollfd]) -> c_int {
        let mut count = 0;
        for (set, (requested, ready)) in self.given() {
            // SAFETY: the caller passes writable sets.
            unsafe { libc::FD_ZERO(set) };
            for fd in fds.iter().filter(|fd| fd.events & requested != 0 && fd.revents & ready != 0) {
                // SAFETY: as above; `requested` returned the descriptor, which is thus below `FD_SETSIZE`.
                unsafe { libc::FD_SET(fd.fd, set) };
                count += 1;
            }
        }
        count
    }
}

/// Waits like `select`, but does not store the remaining time in `timeout`.
///
/// # Safety
/// Each set is null or points to a writable `fd_set`, and `timeout` is null or points to a valid `timeval`.
///
/// # Errors
/// An error number, or [`PENDING`](crate::cancel::PENDING); the sets are unchanged in both cases.
pub(super) unsafe fn select(
    call: &mut Call,
    count: c_int,
    sets: &Sets,
    timeout: *mut timeval,
) -> Result<c_int, c_int> {
    if !(0..=libc::FD_SETSIZE as c_int).contains(&count) {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller passes null or a pointer to a valid `timeval`.
    let time = unsafe { timeout.as_ref() }
        .map(|time| duration(time.tv_sec, time.tv_usec).ok_or(libc::EINVAL))
        .transpose()?;
    // SAFETY: the caller passes null or valid sets, and `count` is at most `FD_SETSIZE`.
    let mut fds = unsafe { sets.requested(count) };
    wait_for(call, &mut fds, time)?;
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(libc::EBADF);
    }
    // SAFETY: the caller passes null or writable sets, and `fds` are the entries that `requested` returned
    // for them.
    Ok(unsafe { sets.store(&fds) })
}
