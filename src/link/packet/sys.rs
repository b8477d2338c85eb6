//! Thin wrappers of system calls for which there is no safe wrapper.

use std::io;
use std::mem::size_of;
use std::os::fd::RawFd;

use libc::{c_int, sock_filter, sock_fprog};

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn checked_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Sets a socket option to a plain value.
pub(super) fn set_option<T: Copy>(fd: RawFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`, which is borrowed for the call; the kernel only
    // reads it.
    check(unsafe { libc::setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), len) })
}

/// Returns the value of an integer socket option.
pub(super) fn get_option(fd: RawFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, and the length to `len`; both live through
    // the call.
    check(unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) })?;
    Ok(value)
}

/// Sets a socket option to a classic BPF program.
pub(super) fn set_program(fd: RawFd, level: c_int, name: c_int, program: &[sock_filter]) -> io::Result<()> {
    // The kernel copies the program during the call and does not write to it.
    let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set_option(fd, level, name, &program)
}

/// Attaches a classic BPF program to a socket as its filter.
pub(super) fn attach_filter(fd: RawFd, program: &[sock_filter]) -> io::Result<()> {
    set_program(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Attaches a filter that drops everything.
pub(super) fn drop_all(fd: RawFd) -> io::Result<()> {
    attach_filter(fd, &[sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }])
}

/// Binds a socket to an interface.
pub(super) fn bind_to_device(fd: RawFd, name: &str) -> io::Result<()> {
    let mut padded = [0u8; libc::IFNAMSIZ];
    let n = name.len().min(libc::IFNAMSIZ - 1);
    padded[..n].copy_from_slice(&name.as_bytes()[..n]);
    set_option(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &padded)
}

pub(super) fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer and the length describe `bytes`, which is borrowed for the call; the kernel only
    // reads it.
    checked_len(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), 0) })
}

pub(super) fn recv(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`, which is borrowed mutably for the
    // call.
    checked_len(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) })
}

/// Returns the MTU of an interface, in bytes.
pub(super) fn interface_mtu(fd: RawFd, name: &str) -> io::Result<usize> {
    // SAFETY: an ifreq consists of integers and a union of plain values, for all of which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.as_bytes().iter().take(libc::IFNAMSIZ - 1);
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name and writes the MTU, both within `request`, which lives through the
    // call.
    check(unsafe { libc::ioctl(fd, libc::SIOCGIFMTU, &mut request) })?;
    // SAFETY: the successful call has just written this member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.max(0) as usize)
}

/// Reports whether an interface with this index (still) exists in the network namespace of the socket, which
/// may differ from that of the thread.
pub(super) fn interface_exists(fd: RawFd, index: u32) -> bool {
    // SAFETY: an ifreq consists of integers and a union of plain values, for all of which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = index as c_int;
    // SAFETY: SIOCGIFNAME reads the index and writes the name, both within `request`, which lives through the
    // call.
    check(unsafe { libc::ioctl(fd, libc::SIOCGIFNAME, &mut request) }).is_ok()
}
