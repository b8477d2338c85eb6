//! Names of the Unix sockets of the broker and its processes.
//!
//! The sockets of one user's processes are files in a directory that only this user can enter, so no other
//! user can bind a name or receive the datagrams sent to it. Where processes of any user share an address,
//! all of them are trusted, and the names are abstract: every user can bind one.

use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with};

/// A namespace of sockets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super) enum Names {
    /// Socket files for the processes of one user, in this directory.
    Private(Arc<Path>),
    /// Abstract sockets for any process of the network namespace.
    Shared,
}

impl Names {
    /// Returns the names of this user in this thread's network namespace.
    pub fn private() -> io::Result<Names> {
        Ok(Names::Private(directory(&directory_candidates())?.into()))
    }

    /// Returns the names used by a broker that serves any user, or only its own user.
    pub fn of(any_user: bool) -> io::Result<Names> {
        if any_user { Ok(Names::Shared) } else { Names::private() }
    }

    /// Reports whether processes of any user can bind the names.
    pub fn are_shared(&self) -> bool {
        *self == Names::Shared
    }

    /// Returns the address of the socket with this name.
    pub fn address(&self, name: &str) -> Result<SocketAddrUnix, Errno> {
        match self {
            Names::Private(directory) => SocketAddrUnix::new(path(directory, name)),
            Names::Shared => SocketAddrUnix::new_abstract_name(name.as_bytes()),
        }
    }

    /// Binds a socket to a name; `AddrInUse` if an open socket has it. The name is free again once no process
    /// has the socket open any more.
    pub fn bind(&self, socket: &OwnedFd, name: &str) -> io::Result<()> {
        let address = self.address(name)?;
        let Names::Private(directory) = self else { return Ok(bind(socket, &address)?) };
        // A file outlives its socket. The lock keeps two processes from replacing the same file.
        let _lock = Lock::of(directory)?;
        match bind(socket, &address) {
            Err(Errno::ADDRINUSE) if is_dead(&address)? => {
                fs::remove_file(path(directory, name))?;
                Ok(bind(socket, &address)?)
            }
            bound => Ok(bound?),
        }
    }

    /// Removes the file of a name if no process has its socket open.
    pub fn remove_if_stale(&self, name: &str) {
        if let Names::Private(directory) = self
            && let Ok(address) = self.address(name)
            && let Ok(_lock) = Lock::of(directory)
            && is_dead(&address).unwrap_or(false)
        {
            // If that fails, the next owner of the name removes the file.
            let _ = fs::remove_file(path(directory, name));
        }
    }

    /// Removes the socket files in the directory that no process has open: killed processes leave other.
    pub fn remove_stale(&self) {
        let Names::Private(directory) = self else { return };
        let Ok(_lock) = Lock::of(directory) else { return };
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_socket())
                && let Ok(address) = SocketAddrUnix::new(entry.path())
                && is_dead(&address).unwrap_or(false)
            {
                // If that fails, the next owner of the name removes the file.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Lock of a directory, held until dropped.
struct Lock(File);

impl Lock {
    fn of(directory: &Path) -> io::Result<Lock> {
        let file = File::create(directory.join("lock"))?;
        loop {
            match file.lock() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                locked => return locked.map(|()| Lock(file)),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlocks explicitly: after a mere close, a child that was forked meanwhile would still hold the
        // lock.
        let _ = self.0.unlock();
    }
}

/// Size of `sun_path` in bytes, including the terminating zero.
const SUN_PATH: usize = 108;

/// Returns the file of a name; its hash (FNV-1a) where the name is too long for a socket address.
fn path(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name.replace('/', "-"));
    if path.as_os_str().len() < SUN_PATH {
        return path;
    }
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    directory.join(format!("{:016x}", name.bytes().fold(0xcbf2_9ce4_8422_2325, step)))
}

/// Reports whether no process has the socket of this address open.
fn is_dead(address: &SocketAddrUnix) -> io::Result<bool> {
    // A listening socket refuses a datagram socket for its type, so its owner is not disturbed.
    let probe = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(connect(&probe, address) == Err(Errno::CONNREFUSED))
}

/// Returns the candidates for the directory of this user's sockets, the preferred one first. All processes of
/// a user must choose the same one at any time, so none depends on the environment, and `/run/user/UID`,
/// which exists only during login sessions, is not among them.
fn directory_candidates() -> Vec<PathBuf> {
    let user = nix::unistd::geteuid().as_raw();
    let inode = |of: &str| fs::metadata(format!("/proc/thread-self/ns/{of}")).map_or(0, |at| at.ino());
    // Two network namespaces may have the same address. In another user namespace, the same number is another
    // user.
    let namespaces = format!("{:x}-{:x}", inode("user"), inode("net"));
    let mut candidates = Vec::new();
    let run = Path::new("/run");
    if is_private(run, user, 0o022) {
        candidates.push(run.join(format!("urxe-{namespaces}")));
    }
    candidates.push(PathBuf::from(format!("/tmp/urxe-{user}-{namespaces}")));
    candidates
}

/// Returns the first of these directories that exists or can be created as this user's own.
fn directory(candidates: &[PathBuf]) -> io::Result<PathBuf> {
    let user = nix::unistd::geteuid().as_raw();
    for candidate in candidates {
        if create_private(candidate, user).is_ok() {
            return Ok(candidate.clone());
        }
    }
    // Another user has created the last candidate. Falls back to a directory with a random suffix,
    // which its owner finds by searching.
    let Some((parent, name)) =
        candidates.last().and_then(|last| Some((last.parent()?, last.file_name()?.to_str()?)))
    else {
        return Err(io::Error::from_raw_os_error(libc::ENOENT));
    };
    let prefix = format!("{name}.");
    let own = || -> io::Result<Option<PathBuf>> {
        let entries = fs::read_dir(parent)?.flatten();
        let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
        Ok(named.map(|entry| entry.path()).filter(|path| is_private(path, user, 0o077)).min())
    };
    if let Some(own) = own()? {
        return Ok(own);
    }
    let random = RandomState::new().hash_one(std::process::id());
    create_private(&parent.join(format!("{prefix}{random:016x}")), user)?;
    own()?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

/// Creates a directory that only this user can access.
fn create_private(directory: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ if is_private(directory, user, 0o077) => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EPERM)),
    }
}

/// Reports whether the path is a directory of this user, without the permissions `others` for other users.
fn is_private(directory: &Path, user: u32, others: u32) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|m| m.is_dir() && m.uid() == user && m.mode() & others == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::datagram_socket;
    use super::*;

    fn own(dir: &tempfile::TempDir) -> Names {
        Names::Private(directory(&[dir.path().join("urxe")]).unwrap().into())
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
        names.remove_if_stale("urxe-a/1");
        assert!(dir.path().join("urxe/urxe-a-1").exists());
        drop(copy);
        names.bind(&third, "urxe-a/1").unwrap();
        drop((other, third));
        names.remove_if_stale("urxe-a/1");
        assert!(!dir.path().join("urxe/urxe-a-1").exists());
    }

    #[test]
    fn sweep_removes_sockets_that_no_process_has_open_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let names = own(&dir);
        let [one, other] = [(); 2].map(|()| datagram_socket().unwrap());
        names.bind(&one, "urxe-service/1").unwrap();
        names.bind(&other, "urxe-service/2").unwrap();
        drop(one);
        names.remove_stale();
        let exists = |name: &str| dir.path().join("urxe").join(name).exists();
        assert!(!exists("urxe-service-1") && exists("urxe-service-2") && exists("lock"));
    }

    #[test]
    fn probe_of_listening_socket_leaves_no_connection() {
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
    fn name_that_is_too_long_for_a_socket_is_bound_by_its_hash() {
        let dir = tempfile::tempdir().unwrap();
        let names = own(&dir);
        let [one, other] = [(); 2].map(|()| datagram_socket().unwrap());
        let long = |end: char| format!("urxe-service-{}{end}", "x".repeat(SUN_PATH));
        names.bind(&one, &long('a')).unwrap();
        assert_eq!(names.bind(&other, &long('a')).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        names.bind(&other, &long('b')).unwrap();
    }

    /// Objects that another user may have created in place of the directory: a directory that others may
    /// enter, a link, a file.
    #[test]
    fn squatted_directory_is_avoided_and_all_processes_use_the_same_one() {
        let squat: [fn(&Path); 3] = [
            |candidate| {
                fs::create_dir(candidate).unwrap();
                fs::set_permissions(candidate, fs::Permissions::from_mode(0o777)).unwrap();
            },
            |candidate| symlink("/", candidate).unwrap(),
            |candidate| fs::write(candidate, "").unwrap(),
        ];
        for create in squat {
            let dir = tempfile::tempdir().unwrap();
            let candidate = dir.path().join("urxe-0");
            create(&candidate);
            let directory_candidates = [candidate.clone()];
            let own = directory(&directory_candidates).unwrap();
            assert!(own != candidate && own.parent() == candidate.parent(), "{own:?}");
            assert!(is_private(&own, nix::unistd::geteuid().as_raw(), 0o077));
            assert_eq!(directory(&directory_candidates).unwrap(), own);
        }
    }

    #[test]
    fn two_network_namespaces_have_different_directories() {
        let own = directory_candidates();
        let other = std::thread::spawn(|| {
            use nix::sched::{CloneFlags, unshare};
            if !nix::unistd::geteuid().is_root() {
                return None;
            }
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            Some(directory_candidates())
        });
        match other.join().unwrap() {
            Some(other) => assert!(other.iter().all(|candidate| !own.contains(candidate)), "{other:?}"),
            None => assert!(std::env::var_os("CI").is_none(), "needs root to create a network namespace"),
        }
    }
}
