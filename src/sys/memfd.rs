//! Memory that other processes can map: sealable memfds, whose pages are allocated at once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::resource::{Resource, getrlimit};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::io::Errno;

/// Creates a memfd of `len` zero bytes, without seals.
///
/// # Errors
/// If there is no memory or descriptor left, or `len` exceeds the limit on file sizes.
pub fn create(name: &str, len: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Hosts may require the additional flag (vm.memfd_noexec), which Linux before 6.3 does not know.
    let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    };
    allocate(&fd, len)?;
    Ok(fd)
}

/// Allocates the first `len` bytes. Without this, an access for which there is no memory would end the
/// process, as would an allocation beyond the limit on file sizes (SIGXFSZ).
///
/// # Errors
/// As for [`create`].
pub fn allocate(fd: impl AsFd, len: usize) -> rustix::io::Result<()> {
    if getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(limit, _)| limit < len as u64) {
        return Err(Errno::FBIG);
    }
    fallocate(fd, FallocateFlags::empty(), 0, len as u64)
}
