//! Rsockets, sockets over RDMA: this library has none. It says so where one is to be made, and of every other descriptor
//! that it is none; waiting for plain descriptors works, as it does of librdmacm.

use std::ffi::{c_int, c_void};

use libc::{fd_set, nfds_t, off_t, pollfd, ssize_t, timeval};

use crate::errno::{minus_one, set};

export! {
    "RDMACM_1.0":
        rsocket = rsocket,
        rpoll = rpoll,
        rselect = rselect,
        rbind = no_socket,
        rlisten = no_socket,
        raccept = no_socket,
        rconnect = no_socket,
        rshutdown = no_socket,
        rclose = no_socket,
        rgetpeername = no_socket,
        rgetsockname = no_socket,
        rsetsockopt = no_socket,
        rgetsockopt = no_socket,
        rfcntl = no_socket,
        riounmap = no_socket,
        rrecv = no_bytes,
        rrecvfrom = no_bytes,
        rrecvmsg = no_bytes,
        rsend = no_bytes,
        rsendto = no_bytes,
        rsendmsg = no_bytes,
        rread = no_bytes,
        rreadv = no_bytes,
        rwrite = no_bytes,
        rwritev = no_bytes,
        riomap = no_place,
        riowrite = no_bytes;
}

extern "C" fn rsocket(_domain: c_int, _kind: c_int, _protocol: c_int) -> c_int {
    minus_one(libc::ENOSYS)
}

extern "C" fn no_socket(_fd: c_int) -> c_int {
    minus_one(libc::EBADF)
}

extern "C" fn no_bytes(_fd: c_int) -> ssize_t {
    set(libc::EBADF);
    -1
}

extern "C" fn no_place(_fd: c_int, _buffer: *mut c_void) -> off_t {
    set(libc::EBADF);
    -1
}

unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { libc::poll(fds, count, timeout) }
}

unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { libc::select(count, read, write, except, timeout) }
}
