//! Socket system calls without a wrapper in nix: options, classic BPF programs and ioctls.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use libc::{c_int, sock_filter, sock_fprog};
use nix::errno::Errno;
use rustix::net::netdevice::index_to_name;

use super::bpf::ret;

/// Sets a socket option to an integer or a C struct.
pub(crate) fn set_option<T: Copy>(socket: impl AsFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the pointer and the length describe `value`, which is borrowed for the call; the kernel only
    // reads it.
    let result = unsafe { libc::setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), len) };
    Ok(Errno::result(result).map(drop)?)
}

/// Option types for which every bit pattern is a valid value.
pub(crate) trait Plain: Default {}
impl Plain for c_int {}
impl Plain for [u32; 9] {}

/// Returns the value of a socket option.
pub(crate) fn get_option<T: Plain>(socket: impl AsFd, level: c_int, name: c_int) -> io::Result<T> {
    let (fd, mut value) = (socket.as_fd().as_raw_fd(), T::default());
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `T`, to `value`, and the length to `len`;
    // both live through the call, and every bit pattern is a valid `T` (see `Plain`).
    let result = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) };
    Ok(Errno::result(result).map(|_| value)?)
}

/// Sets a socket option whose value is a classic BPF program.
pub(crate) fn set_program(
    socket: impl AsFd,
    level: c_int,
    name: c_int,
    program: &[sock_filter],
) -> io::Result<()> {
    // The kernel copies the program during the call and does not write to it.
    let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set_option(socket, level, name, &program)
}

/// Returns the size of the data in a socket's send buffer, in bytes; 0 if the kernel does not report it. For
/// a Unix socket, this is the data that the receivers have not read.
pub(crate) fn unsent_bytes(socket: impl AsFd) -> usize {
    let mut bytes: c_int = 0;
    // SAFETY: TIOCOUTQ writes one int, and `bytes` is an int that outlives the call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Attaches a classic BPF program to a socket as its filter.
pub(crate) fn attach_filter(socket: impl AsFd, program: &[sock_filter]) -> io::Result<()> {
    set_program(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Attaches a socket filter that drops every packet.
pub(crate) fn drop_all(socket: impl AsFd) -> io::Result<()> {
    attach_filter(socket, &[ret(0)])
}

/// Returns the MTU of an interface, in bytes. Queries it through a socket, because /sys may show another
/// network namespace.
pub(crate) fn interface_mtu(socket: impl AsFd, name: &str) -> io::Result<usize> {
    // SAFETY: an ifreq consists of integers and a union of plain values, for all of which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.as_bytes().iter().take(libc::IFNAMSIZ - 1);
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name, which ends with a zero, and writes the MTU, both within `request`,
    // which lives through the call.
    Errno::result(unsafe {
        libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request)
    })?;
    // SAFETY: the successful call has just written this member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.max(0) as usize)
}

/// Reports whether an interface with the given index (still) exists in the socket's network namespace, which
/// may differ from the calling thread's.
pub(crate) fn interface_exists(socket: impl AsFd, index: u32) -> bool {
    // Other errors, as for a name that is not UTF-8, do not mean that there is no interface.
    !matches!(index_to_name(socket, index), Err(rustix::io::Errno::NODEV | rustix::io::Errno::NXIO))
}

/// Sets the size of the receive buffer to `requested` bytes, or to the maximum that the kernel allows.
/// Returns the size that the kernel reports, in bytes.
pub(crate) fn set_receive_buffer(socket: impl AsFd, requested: usize) -> io::Result<usize> {
    set_buffer_size(socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, requested)
}

/// Sets the size of the send buffer, as [`set_receive_buffer`] does.
pub(crate) fn set_send_buffer(socket: impl AsFd, requested: usize) -> io::Result<usize> {
    set_buffer_size(socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, requested)
}

fn set_buffer_size(socket: impl AsFd, force: c_int, plain: c_int, requested: usize) -> io::Result<usize> {
    let value = c_int::try_from(requested).unwrap_or(c_int::MAX / 2);
    // Exceeding the system's limit needs CAP_NET_ADMIN.
    if set_option(&socket, libc::SOL_SOCKET, force, &value).is_err() {
        // Never fails: the kernel clamps the value to rmem_max or wmem_max.
        set_option(&socket, libc::SOL_SOCKET, plain, &value)?;
    }
    get_option::<c_int>(socket, libc::SOL_SOCKET, plain).map(|bytes| bytes as usize)
}

/// Returns the socket's memory information (`SK_MEMINFO_*`), all zeros if the kernel does not report it.
pub(crate) fn memory_info(socket: impl AsFd) -> [u32; 9] {
    get_option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO).unwrap_or_default()
}
