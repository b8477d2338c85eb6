//! Unix socket names of the broker and its clients.
//!
//! The sockets of one user's processes are files in a directory that only this user can enter
//! ([`socket_dir`]), so no other user can bind a name or receive the datagrams sent to it. Where processes of
//! any user share an address, all of them are trusted, and the names are abstract: every user can bind one.
//!
//! | name | socket |
//! | --- | --- |
//! | `urxe-broker/ADDRESS` | listening socket of the broker |
//! | `urxe-lease/ADDRESS/PARTITION` | token of a partition, held by its process |
//! | `urxe-ring-2/ADDRESS/PARTITION` | listening socket for rings to a partition, held by its process |
//! | `urxe-nic/PID/NUMBER` | listening socket for readers of a NIC's state, held by its process; never abstract |
//! | `urxe-service/ADDRESS/SERVICE` | forwarded MADs for a service, held by the process that registered it |

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind};

use super::socket_dir::{self, DirLock, is_dead};

/// A namespace of sockets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SocketNames {
    /// Files in the given directory, for the processes of one user.
    Private(Arc<Path>),
    /// Abstract names, for all processes in the network namespace.
    Abstract,
}

impl SocketNames {
    /// Returns the namespace of a broker: the abstract one if it serves all users (`any_user`), otherwise the
    /// one for this user's sockets in this thread's network namespace.
    pub fn of(any_user: bool) -> io::Result<SocketNames> {
        Ok(if any_user { SocketNames::Abstract } else { SocketNames::Private(socket_dir::own()?.into()) })
    }

    /// Returns the address of the socket called `name`.
    pub fn address(&self, name: &str) -> Result<SocketAddrUnix, Errno> {
        match self {
            SocketNames::Private(directory) => SocketAddrUnix::new(path(directory, name)),
            SocketNames::Abstract => SocketAddrUnix::new_abstract_name(name.as_bytes()),
        }
    }

    /// Binds a socket to a name. Fails with `AddrInUse` if an open socket has the name. The name becomes free
    /// once no process has that socket open any longer.
    pub fn bind(&self, socket: &OwnedFd, name: &str) -> io::Result<()> {
        let address = self.address(name)?;
        let SocketNames::Private(directory) = self else { return Ok(bind(socket, &address)?) };
        // A file outlives its socket. The lock keeps two processes from replacing the same file.
        let _lock = DirLock::of(directory)?;
        match bind(socket, &address) {
            Err(Errno::ADDRINUSE) if is_dead(&address)? => {
                fs::remove_file(path(directory, name))?;
                Ok(bind(socket, &address)?)
            }
            bound => Ok(bound?),
        }
    }

    /// Frees the name of a socket that this process still has open. A private name is free even if another
    /// thread is starting a program, which has a copy of the socket until it executes; an abstract name
    /// is not.
    pub fn unbind(&self, name: &str) {
        if let SocketNames::Private(directory) = self
            && let Ok(_lock) = DirLock::of(directory)
        {
            // If that fails, the next owner of the name removes the file.
            let _ = fs::remove_file(path(directory, name));
        }
    }
}

/// Size of `sun_path` in bytes, including the terminating zero.
const SUN_PATH: usize = 108;

/// Returns the path of the socket file for a name. If the path would not fit into a socket address, the file
/// name is the FNV-1a hash of `name`.
fn path(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name.replace('/', "-"));
    if path.as_os_str().len() < SUN_PATH {
        return path;
    }
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    directory.join(format!("{:016x}", name.bytes().fold(0xcbf2_9ce4_8422_2325, step)))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

    use super::*;
    use crate::host::unix_sockets::datagram_socket;

    fn own(dir: &tempfile::TempDir) -> SocketNames {
        SocketNames::Private(socket_dir::create(&[dir.path().join("urxe")]).unwrap().into())
    }

    #[test]
    fn private_name_is_in_use_while_its_socket_is_open_and_free_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let names = own(&dir);
        let [one, other, third] = [(); 3].map(|()| datagram_socket().unwrap());
        names.bind(&one, "urxe-a/1").unwrap();
        assert_eq!(names.bind(&other, "urxe-a/1").unwrap_err().kind(), io::ErrorKind::AddrInUse);
        names.bind(&other, "urxe-a/2").unwrap();
        let copy = one.try_clone().unwrap();
        drop(one);
        assert!(names.bind(&third, "urxe-a/1").is_err(), "a copy of the socket is open");
        drop(copy);
        names.bind(&third, "urxe-a/1").unwrap();
    }

    #[test]
    fn unbound_private_name_is_free_while_a_copy_of_its_socket_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let names = own(&dir);
        let [one, other] = [(); 2].map(|()| datagram_socket().unwrap());
        names.bind(&one, "urxe-a/1").unwrap();
        let _copy = one.try_clone().unwrap();
        names.unbind("urxe-a/1");
        drop(one);
        assert!(!dir.path().join("urxe/urxe-a-1").exists());
        names.bind(&other, "urxe-a/1").unwrap();
    }

    #[test]
    fn probing_a_listening_socket_leaves_no_pending_connection() {
        let dir = tempfile::tempdir().unwrap();
        let names = own(&dir);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let [listener, second] =
            [(); 2].map(|()| socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap());
        names.bind(&listener, "s").unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        assert_eq!(names.bind(&second, "s").unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(rustix::net::accept(&listener).unwrap_err(), Errno::AGAIN);
    }

    #[test]
    fn name_too_long_for_a_socket_address_is_bound_as_its_hash() {
        let dir = tempfile::tempdir().unwrap();
        let names = own(&dir);
        let [one, other] = [(); 2].map(|()| datagram_socket().unwrap());
        let long = |end: char| format!("urxe-service-{}{end}", "x".repeat(SUN_PATH));
        names.bind(&one, &long('a')).unwrap();
        assert_eq!(names.bind(&other, &long('a')).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        names.bind(&other, &long('b')).unwrap();
    }
}
