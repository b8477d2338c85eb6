//! Waiting for rsockets and other file descriptors at once.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use libc::{c_short, pollfd};

use crate::call::Call;
use crate::link_polls::LinkPolls;
use crate::socket::Socket;
use crate::table::find_all;
use crate::wait::{TIMED_OUT, poll, wait};

/// Events that are reported even if they were not requested.
const ALWAYS: c_short = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

/// Waits until a descriptor has events or the timeout expires. Returns the number of descriptors with events.
///
/// # Errors
/// An error number, or [`PENDING`](crate::PENDING).
pub fn wait_for(call: &mut Call, fds: &mut [pollfd], timeout: Option<Duration>) -> Result<c_int, c_int> {
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
