//! C interface: the calls of `rdma/rsocket.h`.

use std::ffi::{c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ptr::{null, null_mut};
use std::time::Duration;

use libc::{
    c_short, epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval,
};
use urxe_rsockets::{self as rsockets, Received, Sink, Source, duration, get_for, repoll, stream, wait_for};

use crate::cancel::Call;
use crate::errno;
use crate::rdmacm::process::{ExitStage, ProcessGlobals, set_exit_action};
use crate::rdmacm::sockaddr::{read, write};

entry_points! {
    "RDMACM_1.0" minus_one rsocket(family: c_int, kind: c_int, protocol: c_int) = new_socket;
    "RDMACM_1.0" minus_one rbind(fd: c_int, to: *const sockaddr, len: socklen_t)
        => rsockets::get(fd)?.bind(address(to, len)?);
    "RDMACM_1.0" minus_one rlisten(fd: c_int, backlog: c_int) => stream(rsockets::get(fd)?)?.listen(backlog);
    "RDMACM_1.0" minus_one rshutdown(fd: c_int, how: c_int)
        => rsockets::get(fd)?.shutdown(ended_directions(how)?);
    "RDMACM_1.0" minus_one rclose(fd: c_int) => repoll::close(fd).or_else(|_| rsockets::close(fd));
    "RDMACM_1.0" minus_one rgetpeername(fd: c_int, out: *mut sockaddr, len: *mut socklen_t)
        => rsockets::get(fd)?.peer_addr().map(|address| write_address(address, out, len));
    "RDMACM_1.0" minus_one rgetsockname(fd: c_int, out: *mut sockaddr, len: *mut socklen_t)
        => rsockets::get(fd)?.local_addr().map(|address| write_address(address, out, len));
    "RDMACM_1.0" minus_one rsetsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void,
        len: socklen_t) = set_option;
    "RDMACM_1.0" minus_one rgetsockopt(fd: c_int, level: c_int, name: c_int, out: *mut c_void,
        len: *mut socklen_t) = get_option;
    "RDMACM_1.0" minus_one rfcntl(fd: c_int, command: c_int, argument: c_long) = control;
    "RDMACM_1.0" minus_one riomap(fd: c_int, buffer: *mut c_void, len: size_t, protection: c_int,
        flags: c_int, offset: off_t) -> off_t = map;
    "RDMACM_1.0" minus_one riounmap(fd: c_int, buffer: *mut c_void, len: size_t)
        => stream(rsockets::get(fd)?)?.with_connection(|conn| conn.unmap(buffer.addr() as u64, len));
    "RDMACM_1.5" minus_one repoll_create(flags: c_int) => repoll::create(flags);
    // Returns an error number, as librdmacm does, and also stores it in `errno`.
    "RDMACM_1.5" store repoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event)
        => repoll::change(set, op, fd, event.as_ref());
}

// `riowrite` returns -1 in an unsigned type.
waiting_entry_points! {
    "RDMACM_1.0" raccept(fd: c_int, peer: *mut sockaddr, len: *mut socklen_t) -> c_int = accept;
    "RDMACM_1.0" rconnect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int = connect;
    "RDMACM_1.0" rread(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t
        => |call| receive_from(call, fd, to, len, 0, null_mut(), null_mut());
    "RDMACM_1.0" rrecv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t
        => |call| receive_from(call, fd, to, len, flags, null_mut(), null_mut());
    "RDMACM_1.0" rrecvfrom(fd: c_int, to: *mut c_void, len: size_t, flags: c_int, peer: *mut sockaddr,
        peer_len: *mut socklen_t) -> ssize_t = receive_from;
    "RDMACM_1.0" rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = receive_message;
    "RDMACM_1.0" rwrite(fd: c_int, from: *const c_void, len: size_t) -> ssize_t
        => |call| send_to(call, fd, from, len, 0, null(), 0);
    "RDMACM_1.0" rsend(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t
        => |call| send_to(call, fd, from, len, flags, null(), 0);
    "RDMACM_1.0" rsendto(fd: c_int, from: *const c_void, len: size_t, flags: c_int, to: *const sockaddr,
        to_len: socklen_t) -> ssize_t = send_to;
    "RDMACM_1.0" rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = send_message;
    "RDMACM_1.0" rreadv(fd: c_int, list: *const iovec, len: c_int) -> ssize_t = receive_list;
    "RDMACM_1.0" rwritev(fd: c_int, list: *const iovec, len: c_int) -> ssize_t = send_list;
    "RDMACM_1.0" rpoll(fds: *mut pollfd, len: nfds_t, timeout: c_int) -> c_int = poll;
    "RDMACM_1.0" rselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval) -> c_int => |call| select(call, count, &Sets([read, write, except]), timeout);
    "RDMACM_1.0" riowrite(fd: c_int, from: *const c_void, len: size_t, offset: off_t, flags: c_int) -> ssize_t
        = write_at;
    "RDMACM_1.5" repoll_wait(set: c_int, out: *mut epoll_event, max: c_int, timeout: c_int) -> c_int
        => |call| repoll::wait(call, set, room(out, max)?, time_limit(timeout));
}

/// Maximum number of buffers per message (`IOV_MAX`).
const IOV_MAX: usize = 1024;

fn new_socket(family: c_int, kind: c_int, protocol: c_int) -> Result<c_int, c_int> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // The arguments are checked before anything else. If a preloaded library maps `socket` to this function,
    // the sockets of this library itself are also created here, and those that fail the check become sockets
    // of the system.
    match (family, kind & !flags, protocol) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {}
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {}
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_DGRAM, _) => {
            return Err(libc::EPROTONOSUPPORT);
        }
        (libc::AF_INET | libc::AF_INET6, ..) => return Err(libc::ESOCKTNOSUPPORT),
        _ => return Err(libc::EAFNOSUPPORT),
    }
    let manager = &ProcessGlobals::current()?.manager;
    set_exit_action(ExitStage::Rsockets, |_, on_progress| rsockets::close_all(on_progress));
    rsockets::create(manager, family, kind)
}

/// Returns whether a call of `shutdown` ends reads, and whether it ends writes.
fn ended_directions(how: c_int) -> Result<(bool, bool), c_int> {
    match how {
        libc::SHUT_RD => Ok((true, false)),
        libc::SHUT_WR => Ok((false, true)),
        libc::SHUT_RDWR => Ok((true, true)),
        _ => Err(libc::EINVAL),
    }
}

/// Reads a socket address that the program passes.
///
/// # Safety
/// `from` is null or points to `len` readable bytes.
unsafe fn address(from: *const sockaddr, len: socklen_t) -> Result<SocketAddr, c_int> {
    if from.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `from` is not null, and `len` bytes include the family.
    let min = match c_int::from(unsafe { (*from).sa_family }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return Err(libc::EAFNOSUPPORT),
    };
    if (len as usize) < min {
        return Err(libc::EINVAL);
    }
    // SAFETY: `from` points to at least as many bytes as an address of its family has.
    unsafe { read(from) }.ok_or(libc::EAFNOSUPPORT)
}

/// Writes an address to a buffer of the program, truncated to the length at `len`, and then stores the full
/// length at `len`.
///
/// # Safety
/// Each pointer is null or valid for writes: `to` for as many bytes as `len` points to.
unsafe fn write_address(address: SocketAddr, to: *mut sockaddr, len: *mut socklen_t) {
    if to.is_null() || len.is_null() {
        return;
    }
    let (storage, full_len) = write(address);
    // SAFETY: both pointers are not null, so the caller passes a valid length and that many writable bytes at
    // `to`; at most the length of `storage` is copied.
    unsafe {
        let copied = (*len).min(full_len) as usize;
        std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), to.cast::<u8>(), copied);
        *len = full_len;
    }
}

unsafe fn accept(
    call: &mut Call,
    fd: c_int,
    peer: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<c_int, c_int> {
    let (new, address) = rsockets::accept(call, fd)?;
    if let Some(address) = address {
        // SAFETY: the program passes null or a buffer for an address, with its length.
        unsafe { write_address(address, peer, len) };
    }
    Ok(new)
}

unsafe fn connect(call: &mut Call, fd: c_int, to: *const sockaddr, len: socklen_t) -> Result<(), c_int> {
    let socket = get_for(call, fd)?;
    let has_family = !to.is_null() && len as usize >= size_of::<libc::sa_family_t>();
    // SAFETY: `to` is not null, and the `len` bytes that the program passes include the family.
    let to = match has_family && c_int::from(unsafe { (*to).sa_family }) == libc::AF_UNSPEC {
        true => None,
        // SAFETY: the program passes null or an address of `len` bytes.
        false => Some(unsafe { address(to, len) }?),
    };
    socket.connect(call, to)
}

/// Returns a buffer of the program as a slice.
///
/// # Safety
/// `from` is null or points to `len` readable bytes that do not change while the slice is used.
unsafe fn bytes<'a>(from: *const c_void, len: usize) -> Result<&'a [u8], c_int> {
    match (from.is_null(), isize::try_from(len)) {
        (_, Ok(0)) => Ok(&[]),
        // SAFETY: `from` is not null, so the caller passes `len` readable bytes, and `len` fits in an
        // `isize`.
        (false, Ok(_)) => Ok(unsafe { std::slice::from_raw_parts(from.cast(), len) }),
        (true, Ok(_)) => Err(libc::EFAULT),
        (_, Err(_)) => Err(libc::EINVAL),
    }
}

/// Returns a buffer of the program as a mutable slice.
///
/// # Safety
/// `to` is null or points to `len` writable bytes that nothing else accesses while the slice is used.
unsafe fn writable<'a>(to: *mut c_void, len: usize) -> Result<&'a mut [u8], c_int> {
    match (to.is_null(), isize::try_from(len)) {
        (_, Ok(0)) => Ok(&mut []),
        // SAFETY: `to` is not null, so the caller passes `len` bytes that only this slice accesses, and `len`
        // fits in an `isize`.
        (false, Ok(_)) => Ok(unsafe { std::slice::from_raw_parts_mut(to.cast(), len) }),
        (true, Ok(_)) => Err(libc::EFAULT),
        (_, Err(_)) => Err(libc::EINVAL),
    }
}

/// Returns a list of program buffers as a slice, after checking that their total length fits in an `isize`.
///
/// # Safety
/// `list` is null or points to `len` entries.
unsafe fn parts<'a>(list: *const iovec, len: usize) -> Result<&'a [iovec], c_int> {
    match len {
        0 => Ok(&[]),
        // The limit of the system.
        len if len > IOV_MAX => Err(libc::EINVAL),
        _ if list.is_null() => Err(libc::EFAULT),
        len => {
            // SAFETY: `list` is not null, so the caller passes `len` entries.
            let list = unsafe { std::slice::from_raw_parts(list, len) };
            let all = list.iter().try_fold(0isize, |all, part| all.checked_add_unsigned(part.iov_len));
            all.map(|_| list).ok_or(libc::EINVAL)
        }
    }
}

/// Makes one attempt to receive data.
///
/// # Safety
/// The entries of `list` are buffers that nothing else accesses during the attempt, or null.
unsafe fn receive(call: &mut Call, fd: c_int, list: &[iovec], flags: c_int) -> Result<Received, c_int> {
    let socket = match get_for(call, fd) {
        Err(_) if call.done > 0 => return Ok(Received { bytes: call.done, ..Received::default() }),
        found => found?,
    };
    // SAFETY: the caller guarantees that each entry is null or a buffer of its length that nothing else
    // accesses during this attempt.
    let parts: Result<Vec<_>, c_int> =
        list.iter().map(|part| unsafe { writable(part.iov_base, part.iov_len) }).collect();
    let mut sink = Sink::new(parts?);
    sink.skip(call.done);
    if flags & libc::MSG_OOB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let result = socket.receive(call, &mut sink, flags);
    call.done = sink.position();
    result
}

/// Makes one attempt to send data to the address `to`, or to the connected peer if `to` is null.
///
/// # Safety
/// The entries of `list` are readable buffers that do not change during the attempt, or null; `to` is null or
/// points to `to_len` readable bytes.
unsafe fn send(
    call: &mut Call,
    fd: c_int,
    list: &[iovec],
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Result<usize, c_int> {
    let socket = match get_for(call, fd) {
        Err(_) if call.done > 0 => return Ok(call.done),
        found => found?,
    };
    // SAFETY: the caller guarantees that each entry is null or a readable buffer of its length that does not
    // change during this attempt.
    let parts: Result<Vec<_>, c_int> =
        list.iter().map(|part| unsafe { bytes(part.iov_base, part.iov_len) }).collect();
    let to = || match to.is_null() || to_len == 0 {
        true => Ok(None),
        // SAFETY: `to` is not null, so the caller guarantees `to_len` readable bytes.
        false => unsafe { address(to, to_len) }.map(Some),
    };
    let mut source = Source::new(parts?);
    source.skip(call.done);
    if flags & libc::MSG_OOB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let result = socket.send(call, &mut source, &to, flags);
    call.done = source.position();
    result
}

unsafe fn receive_from(
    call: &mut Call,
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    peer: *mut sockaddr,
    peer_len: *mut socklen_t,
) -> Result<usize, c_int> {
    // SAFETY: the program passes null or a buffer of `len` bytes that it does not use during the call.
    let received = unsafe { receive(call, fd, &[iovec { iov_base: to, iov_len: len }], flags) }?;
    let connected = || rsockets::get(fd).and_then(|socket| socket.peer_addr()).ok();
    if !peer.is_null()
        && let Some(address) = received.from.or_else(connected)
    {
        // SAFETY: the program passes null or a buffer for an address, with its length.
        unsafe { write_address(address, peer, peer_len) };
    }
    Ok(received.bytes)
}

unsafe fn receive_message(
    call: &mut Call,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> Result<usize, c_int> {
    // SAFETY: the program passes null or a valid message, whose list, buffers and address buffer have the
    // lengths stated in it and are not used by other threads during the call.
    unsafe {
        let message = message.as_mut().ok_or(libc::EFAULT)?;
        let received = receive(call, fd, parts(message.msg_iov, message.msg_iovlen)?, flags)?;
        match received.from.filter(|_| !message.msg_name.is_null()) {
            Some(from) => write_address(from, message.msg_name.cast(), &mut message.msg_namelen),
            None => message.msg_namelen = 0,
        }
        message.msg_controllen = 0;
        message.msg_flags = if received.is_truncated { libc::MSG_TRUNC } else { 0 };
        Ok(received.bytes)
    }
}

unsafe fn send_to(
    call: &mut Call,
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Result<usize, c_int> {
    let parts = [iovec { iov_base: from.cast_mut(), iov_len: len }];
    // SAFETY: the program passes null or a buffer of `len` bytes that does not change during the call, and
    // null or an address of `to_len` bytes. The buffer is only read, though `iovec` has a mutable pointer.
    unsafe { send(call, fd, &parts, flags, to, to_len) }
}

unsafe fn send_message(
    call: &mut Call,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> Result<usize, c_int> {
    // SAFETY: the program passes null or a valid message, whose list, buffers and address have the
    // lengths stated in it and do not change during the call.
    unsafe {
        let message = message.as_ref().ok_or(libc::EFAULT)?;
        // Control messages (descriptors, credentials) are not supported.
        if message.msg_controllen != 0 {
            return Err(libc::ENOTSUP);
        }
        let parts = parts(message.msg_iov, message.msg_iovlen)?;
        send(call, fd, parts, flags, message.msg_name.cast(), message.msg_namelen)
    }
}

unsafe fn receive_list(call: &mut Call, fd: c_int, list: *const iovec, len: c_int) -> Result<usize, c_int> {
    let len = usize::try_from(len).map_err(|_| libc::EINVAL)?;
    // SAFETY: the program passes `len` valid entries, whose buffers it does not use during the call.
    unsafe { receive(call, fd, parts(list, len)?, 0) }.map(|received| received.bytes)
}

unsafe fn send_list(call: &mut Call, fd: c_int, list: *const iovec, len: c_int) -> Result<usize, c_int> {
    let len = usize::try_from(len).map_err(|_| libc::EINVAL)?;
    // SAFETY: the program passes `len` valid entries, whose buffers do not change during the call; a null
    // address is allowed.
    unsafe { send(call, fd, parts(list, len)?, 0, null(), 0) }
}

/// Returns the time limit of a wait: `None`, which is without limit, for a negative number of milliseconds.
fn time_limit(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

unsafe fn poll(call: &mut Call, fds: *mut pollfd, len: nfds_t, timeout: c_int) -> Result<c_int, c_int> {
    let fds: &mut [pollfd] = match len {
        0 => &mut [],
        _ if fds.is_null() => return Err(libc::EFAULT),
        // SAFETY: `fds` is not null, so the program passes `len` entries, which it does not use during the
        // call.
        len => unsafe { std::slice::from_raw_parts_mut(fds, len as usize) },
    };
    wait_for(call, fds, time_limit(timeout))
}

/// Descriptor sets that the program passes to `select`: for reads, for writes, and for exceptions.
struct Sets([*mut fd_set; 3]);

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
unsafe fn select(call: &mut Call, count: c_int, sets: &Sets, timeout: *mut timeval) -> Result<c_int, c_int> {
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

/// Returns the program's memory for events as a slice.
///
/// # Safety
/// `out` is null or points to `max` writable events that nothing else accesses while the slice is used.
unsafe fn room<'a>(out: *mut epoll_event, max: c_int) -> Result<&'a mut [MaybeUninit<epoll_event>], c_int> {
    match usize::try_from(max) {
        // SAFETY: `out` is not null, so the caller passes `max` events that only this slice accesses.
        Ok(max @ 1..) if !out.is_null() => Ok(unsafe { std::slice::from_raw_parts_mut(out.cast(), max) }),
        _ => Err(libc::EINVAL),
    }
}

unsafe fn set_option(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<(), c_int> {
    let socket = rsockets::get(fd)?;
    // SAFETY: the program passes null or a value of `len` bytes, which does not change during the call.
    let value = unsafe { bytes(value, len as usize) }?;
    rsockets::set_option(socket, level, name, value)
}

unsafe fn get_option(
    fd: c_int,
    level: c_int,
    name: c_int,
    out: *mut c_void,
    len: *mut socklen_t,
) -> Result<(), c_int> {
    let socket = rsockets::get(fd)?;
    if out.is_null() || len.is_null() {
        return Err(libc::EFAULT);
    }
    let value = rsockets::option(socket, level, name)?;
    // SAFETY: both pointers are not null, so the program passes a valid length and as many writable bytes
    // at `out`; no more are copied.
    unsafe {
        let copied = value.len().min(*len as usize);
        std::ptr::copy_nonoverlapping(value.as_ptr(), out.cast::<u8>(), copied);
        *len = copied as socklen_t;
    }
    Ok(())
}

/// Reads or sets flags of a socket or of its descriptor (`rfcntl`). In C, the argument is variadic. On all
/// supported platforms, variadic arguments are passed like named ones; for a command without an argument, it
/// is not read.
unsafe fn control(fd: c_int, command: c_int, argument: c_long) -> Result<c_int, c_int> {
    let socket = rsockets::get(fd)?;
    match command {
        libc::F_GETFL => {
            let nonblocking = socket.options().is_nonblocking;
            Ok(libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 })
        }
        libc::F_SETFL => {
            socket.options().is_nonblocking = argument & c_long::from(libc::O_NONBLOCK) != 0;
            Ok(0)
        }
        // SAFETY: the argument of these commands is a number or ignored, and `fd` is the open descriptor of
        // the socket.
        libc::F_GETFD | libc::F_SETFD => match unsafe { libc::fcntl(fd, command, argument) } {
            -1 => Err(errno::get()),
            result => Ok(result),
        },
        _ => Err(libc::EINVAL),
    }
}

/// Maps memory to `offset`, or to an offset equal to its address if `offset` is -1. With `PROT_WRITE`, the
/// peer may write to the memory; with `PROT_NONE`, it has no access.
unsafe fn map(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    offset: off_t,
) -> Result<off_t, c_int> {
    rsockets::get(fd)?;
    if buffer.is_null() || flags != 0 || protection & !libc::PROT_WRITE != 0 {
        return Err(libc::EINVAL);
    }
    let offset = if offset == -1 { buffer.addr() as off_t } else { offset };
    let at = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
    let stream = stream(rsockets::get(fd)?)?;
    // SAFETY: the program keeps the memory mapped and lets the peer write to it until it unmaps it
    // with `riounmap` or closes the socket.
    stream.with_connection(|conn| unsafe { conn.map(buffer.cast(), len, at, protection != 0) })?;
    Ok(offset)
}

unsafe fn write_at(
    call: &mut Call,
    fd: c_int,
    from: *const c_void,
    len: size_t,
    offset: off_t,
    flags: c_int,
) -> Result<usize, c_int> {
    let socket = get_for(call, fd)?;
    let offset = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
    // SAFETY: the program passes null or a buffer of `len` bytes that does not change during the call.
    let mut source = Source::new(vec![unsafe { bytes(from, len) }?]);
    source.skip(call.done);
    let result = stream(socket)?.write_at(call, &mut source, offset, flags);
    call.done = source.position();
    result
}
