//! Sockets that are created by the system call, not by the C library's function, which a preloaded library may
//! override: nix calls that function.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType};

/// Creates a socket of the family's default protocol, closed on exec.
pub(crate) fn socket(family: AddressFamily, kind: SockType, flags: SockFlag) -> io::Result<OwnedFd> {
    let kind = kind as libc::c_int | (flags | SockFlag::SOCK_CLOEXEC).bits();
    // SAFETY: the call takes no pointers.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_socket, family as libc::c_int, kind, 0) })?;
    // SAFETY: the call has just returned this valid descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
