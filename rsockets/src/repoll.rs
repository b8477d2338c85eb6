//! Sets of rsockets and other file descriptors to wait for, with the arguments of `epoll`. As with librdmacm,
//! every descriptor is level-triggered, whatever flags it has.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use libc::{epoll_event, pollfd};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::call::Call;
use crate::poll::wait_for;

/// Events that `poll` and `epoll` encode in the same way.
const SHARED: u32 = (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLOUT | libc::EPOLLRDHUP) as u32;

/// A descriptor in a set.
#[derive(Clone, Copy)]
struct Entry {
    fd: c_int,
    events: u32,
    data: u64,
}

/// A set of descriptors.
struct Set {
    entries: Mutex<Vec<Entry>>,
    /// Signalled when `entries` changes, until a waiting thread has noticed.
    changed: EventFd,
}

/// All sets, by the program's descriptor. Programs close the descriptor with `close`, so an entry remains
/// until a new set gets its number.
static SETS: Mutex<BTreeMap<c_int, Arc<Set>>> = Mutex::new(BTreeMap::new());

fn find(fd: c_int) -> Result<Arc<Set>, c_int> {
    SETS.lock().get(&fd).cloned().ok_or(libc::EINVAL)
}

/// Closes the descriptor of a set.
///
/// # Errors
/// `EBADF` if there is no set with this descriptor.
pub fn close(fd: c_int) -> Result<(), c_int> {
    SETS.lock().remove(&fd).ok_or(libc::EBADF)?;
    // SAFETY: the program asks to close this descriptor, which `create` released to it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Creates a set. The program gets the descriptor of an empty `epoll` instance, created with `flags`.
///
/// # Errors
/// `EINVAL` for unknown flags, and those of the system calls.
pub fn create(flags: c_int) -> Result<c_int, c_int> {
    create_set(flags).map_err(|e| e as c_int)
}

fn create_set(flags: c_int) -> nix::Result<c_int> {
    let flags = EpollCreateFlags::from_bits(flags).ok_or(nix::errno::Errno::EINVAL)?;
    let epoll = Epoll::new(flags)?;
    let changed = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let fd = epoll.0.into_raw_fd();
    SETS.lock().insert(fd, Arc::new(Set { entries: Mutex::default(), changed }));
    Ok(fd)
}

/// Changes a set, as `epoll_ctl` does.
///
/// # Errors
/// `EINVAL` if there is no such set or operation, or no event for it; `EEXIST`, `ENOENT`.
pub fn change(set: c_int, op: c_int, fd: c_int, event: Option<&epoll_event>) -> Result<(), c_int> {
    let set = find(set)?;
    let mut entries = set.entries.lock();
    let at = entries.iter().position(|entry| entry.fd == fd);
    let new = event.map(|event| Entry { fd, events: event.events, data: event.u64 });
    match (op, at, new) {
        (libc::EPOLL_CTL_ADD, None, Some(new)) => entries.push(new),
        (libc::EPOLL_CTL_ADD, Some(_), _) => return Err(libc::EEXIST),
        (libc::EPOLL_CTL_MOD, Some(at), Some(new)) => entries[at] = new,
        (libc::EPOLL_CTL_DEL, Some(at), _) => drop(entries.remove(at)),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None, _) => return Err(libc::ENOENT),
        _ => return Err(libc::EINVAL),
    }
    // Fails only if the counter is full, and then it is readable.
    let _ = set.changed.write(1);
    Ok(())
}

/// Waits until descriptors of a set have events or the timeout expires. Stores at most as many events as
/// `out` has room for, and returns their number.
///
/// # Errors
/// `EINVAL` if there is no such set, and those of [`wait_for`].
pub fn wait(
    call: &mut Call,
    set: c_int,
    out: &mut [MaybeUninit<epoll_event>],
    timeout: Option<Duration>,
) -> Result<c_int, c_int> {
    let set = find(set)?;
    loop {
        // Before the entries are read, so that a later change is not missed. Fails if there was no change.
        let _ = set.changed.read();
        let entries = set.entries.lock().clone();
        let polled = |fd, events| pollfd { fd, events, revents: 0 };
        let mut fds: Vec<_> =
            entries.iter().map(|entry| polled(entry.fd, (entry.events & SHARED) as i16)).collect();
        fds.push(polled(set.changed.as_raw_fd(), libc::POLLIN));
        if wait_for(call, &mut fds, timeout)? == 0 {
            return Ok(0);
        }
        let ready = entries.iter().zip(&fds).filter(|(_, fd)| fd.revents != 0);
        let mut count = 0;
        for ((entry, fd), out) in ready.zip(&mut *out) {
            let revents = match fd.revents & libc::POLLNVAL {
                0 => fd.revents as u32,
                // The descriptor is closed, for which `epoll` has no event.
                _ => (libc::EPOLLERR | libc::EPOLLHUP) as u32,
            };
            out.write(epoll_event { events: revents, u64: entry.data });
            count += 1;
        }
        if count > 0 {
            return Ok(count);
        }
    }
}
