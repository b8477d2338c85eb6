//! Directories for socket files: one per user and network namespace, accessible only to that user.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FlockOperation, accessat, flock};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SocketAddrUnix, connect};

use super::{datagram_socket, socket_table};

/// Name of the lock file in each directory.
const LOCK: &str = "lock";

/// Lock on a directory, held until dropped.
pub struct DirLock(File);

impl DirLock {
    /// Waits for the directory's lock. Fails with `NotFound` if the directory was removed in the meantime.
    pub fn of(directory: &Path) -> io::Result<DirLock> {
        loop {
            if let Some(lock) = DirLock::acquire(directory, FlockOperation::LockExclusive)? {
                return Ok(lock);
            }
        }
    }

    /// Acquires the directory's lock; returns `None` if [`remove_unused`] has removed the file meanwhile.
    fn acquire(directory: &Path, operation: FlockOperation) -> io::Result<Option<DirLock>> {
        let path = directory.join(LOCK);
        let file = File::create(&path)?;
        retry_on_intr(|| flock(&file, operation))?;
        let id = |of: io::Result<fs::Metadata>| of.map(|m| (m.dev(), m.ino())).ok();
        let is_present = id(file.metadata()).is_some_and(|open| id(fs::symlink_metadata(path)) == Some(open));
        Ok(is_present.then_some(DirLock(file)))
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Unlocks explicitly: after a mere close, a child that was forked meanwhile would still hold the
        // lock.
        let _ = self.0.unlock();
    }
}

/// Returns the directory for this user's sockets in this thread's network namespace: the one that sockets of
/// urxe are in, as the kernel's table of sockets says, so that all processes agree on it whatever other users
/// create; otherwise the first candidate, which is created if necessary.
pub fn own() -> io::Result<PathBuf> {
    let (user, candidates) = (nix::unistd::geteuid().as_raw(), candidates());
    let is_candidate =
        |directory: &PathBuf| candidates.contains(directory) && is_private(directory, user, 0o077);
    let table = socket_table::read().unwrap_or_default();
    let in_use = socket_table::names(&table).filter_map(|(directory, ..)| directory.map(PathBuf::from));
    match in_use.filter(is_candidate).min_by_key(|directory| candidates.iter().position(|of| of == directory))
    {
        Some(directory) => Ok(directory),
        None => create(&candidates),
    }
}

/// Number of entries of `/tmp` among which [`remove_unused`] searches, as anybody can create many.
const MAX_ENTRIES: usize = 4096;

/// Removes the socket files that killed processes have left in the directory, and the directory itself if it
/// is then empty. Does the same with the user's directories for other network namespaces, which may no longer
/// exist.
pub fn remove_unused(own: &Path) {
    if let Ok(lock) = DirLock::of(own) {
        remove_if_unused(own, &lock);
    }
    let Some(parent) = own.parent() else { return };
    let user = nix::unistd::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().take(MAX_ENTRIES).flatten() {
        let path = entry.path();
        if path != own
            && entry.file_name().to_str().is_some_and(is_directory_name)
            && is_private(&path, user, 0o077)
        {
            try_remove(&path);
        }
    }
}

/// Removes what killed processes have left in a directory, as [`remove_unused`] does, unless another process holds its lock.
pub fn try_remove(directory: &Path) {
    if let Ok(Some(lock)) = DirLock::acquire(directory, FlockOperation::NonBlockingLockExclusive) {
        remove_if_unused(directory, &lock);
    }
}

/// Returns the socket directories of this user for all network namespaces, and those of all users if this user is root, each with its
/// owner.
#[cfg(feature = "live")]
pub fn all() -> Vec<(PathBuf, u32)> {
    let own = nix::unistd::geteuid().as_raw();
    let session = PathBuf::from(format!("/run/user/{own}"));
    let mut directories = Vec::new();
    for parent in [Path::new("/run"), Path::new("/tmp"), &session] {
        for entry in fs::read_dir(parent).into_iter().flatten().take(MAX_ENTRIES).flatten() {
            let Ok(user) = entry.metadata().map(|metadata| metadata.uid()) else { continue };
            let path = entry.path();
            if entry.file_name().to_str().is_some_and(is_directory_name)
                && (own == 0 || user == own)
                && is_private(&path, user, 0o077)
            {
                directories.push((path, user));
            }
        }
    }
    directories
}

/// Removes dead sockets, then the directory if only its lock file is left. A process waiting for the lock
/// then finds that the directory is gone.
fn remove_if_unused(directory: &Path, _lock: &DirLock) {
    let entries = || fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries() {
        if entry.file_type().is_ok_and(|kind| kind.is_socket())
            && let Ok(address) = SocketAddrUnix::new(entry.path())
            && is_dead(&address).unwrap_or(false)
        {
            // If that fails, the next owner of the name removes the file.
            let _ = fs::remove_file(entry.path());
        }
    }
    if entries().all(|entry| entry.file_name() == LOCK) {
        // If that fails, the directory stays for the next broker.
        let _ = fs::remove_file(directory.join(LOCK)).and_then(|()| fs::remove_dir(directory));
    }
}

/// Reports whether `name` has the form of the directory names that [`candidates`] returns: `urxe-`, two or
/// three hexadecimal numbers, and possibly a further number.
fn is_directory_name(name: &str) -> bool {
    let is_number = |field: &str| !field.is_empty() && field.bytes().all(|b| b.is_ascii_hexdigit());
    let fields = name.strip_prefix("urxe-").unwrap_or_default().split(['-', '.']);
    (2..=4).contains(&fields.clone().count()) && fields.into_iter().all(is_number)
}

/// Reports whether no process in any network namespace has the socket at `address` open.
pub fn is_dead(address: &SocketAddrUnix) -> io::Result<bool> {
    // A listening socket refuses a datagram socket for its type, so its owner is not disturbed.
    Ok(connect(datagram_socket()?, address) == Err(Errno::CONNREFUSED))
}

/// Number of further names that a user tries in `/tmp` if another user has taken the first.
const FURTHER_NAMES: usize = 8;

/// Returns the candidates for this user's socket directory, in order of preference. All processes of a user
/// must choose the same directory, so no candidate depends on environment variables, and `/run/user/UID`,
/// which exists only during login sessions, comes after `/tmp`.
fn candidates() -> Vec<PathBuf> {
    let user = nix::unistd::geteuid().as_raw();
    let inode = |of: &str| fs::metadata(format!("/proc/thread-self/ns/{of}")).map_or(0, |at| at.ino());
    // Two network namespaces may have the same address. In another user namespace, the same number is another
    // user.
    let namespaces = format!("{:x}-{:x}", inode("user"), inode("net"));
    let session = PathBuf::from(format!("/run/user/{user}"));
    let private = |directory: &Path| {
        is_private(directory, user, 0o022).then(|| directory.join(format!("urxe-{namespaces}")))
    };
    let in_tmp = format!("/tmp/urxe-{user}-{namespaces}");
    let further = (1..=FURTHER_NAMES).map(|n| format!("{in_tmp}.{n}").into());
    private(Path::new("/run"))
        .into_iter()
        .chain([in_tmp.clone().into()])
        .chain(private(&session))
        .chain(further)
        .collect()
}

/// Returns the first candidate that already belongs to this user or that can be created, creating it if
/// necessary.
pub fn create(candidates: &[PathBuf]) -> io::Result<PathBuf> {
    let user = nix::unistd::geteuid().as_raw();
    let mut result = Err(io::Error::from_raw_os_error(libc::ENOENT));
    for candidate in candidates {
        match create_private(candidate, user) {
            Ok(()) => return Ok(candidate.clone()),
            Err(e) => {
                let hint = match e.kind() {
                    io::ErrorKind::PermissionDenied => " (another user may have created it)",
                    _ => "",
                };
                let text = format!("{}: {e}{hint}", candidate.display());
                result = Err(io::Error::new(e.kind(), text));
            }
        }
    }
    result
}

/// Creates a directory that only `user` can access, or accepts an existing one.
fn create_private(directory: &Path, user: u32) -> io::Result<()> {
    loop {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ if is_private(directory, user, 0o077) => {
                match accessat(CWD, directory, Access::WRITE_OK, AtFlags::EACCESS) {
                    // Removed in the meantime.
                    Err(Errno::NOENT) => {}
                    // An error on a file system that is read-only.
                    result => return Ok(result?),
                }
            }
            // A broker that exits in another network namespace has just removed it. Another directory would
            // not do, because the other processes on the address use this one.
            _ if fs::symlink_metadata(directory).is_err() => {}
            _ => return Err(io::Error::from_raw_os_error(libc::EPERM)),
        }
    }
}

/// Reports whether the path is a directory that `user` owns and that grants none of the permission bits in
/// `others`.
fn is_private(directory: &Path, user: u32, others: u32) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|m| m.is_dir() && m.uid() == user && m.mode() & others == 0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::thread;
    use std::time::{Duration, Instant};

    use nix::sched::{CloneFlags, unshare};
    use rustix::net::bind;

    use super::*;
    use crate::host::unix_sockets::datagram_socket;

    /// Returns a datagram socket bound to `path`.
    fn bound(path: &Path) -> OwnedFd {
        let socket = datagram_socket().unwrap();
        bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    #[test]
    fn directory_is_removed_with_the_last_of_its_unused_socket_files() {
        let dir = tempfile::tempdir().unwrap();
        let own = create(&[dir.path().join("urxe-1-2")]).unwrap();
        let [one, other] = ["one", "other"].map(|name| own.join(name));
        let sockets = [&one, &other].map(|path| bound(path));
        drop(DirLock::of(&own).unwrap());
        let [first, second] = sockets;
        drop(first);
        remove_unused(&own);
        assert!(!one.exists() && other.exists() && own.join(LOCK).exists());
        drop(second);
        remove_unused(&own);
        assert!(!own.exists());
    }

    #[test]
    fn create_returns_the_same_directory_although_another_process_removes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("urxe-1-2");
        thread::scope(|scope| {
            let creating =
                scope.spawn(|| (0..2000).all(|_| create(std::slice::from_ref(&path)).unwrap() == path));
            while !creating.is_finished() {
                let _ = fs::remove_dir(&path);
            }
            assert!(creating.join().unwrap());
        });
    }

    #[test]
    fn only_unused_directories_of_other_namespaces_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in [
            "urxe-1-2",
            "urxe-a-b",
            "urxe-c-d",
            "urxe-e-f",
            "urxe-0-a-b.9",
            "urxe-notes",
            "urxe-a",
            "other-1-2",
        ] {
            create(&[path(name)]).unwrap();
        }
        drop(bound(&path("urxe-a-b").join("dead")));
        let open = bound(&path("urxe-c-d").join("open"));
        fs::set_permissions(path("urxe-e-f"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("/", path("urxe-2-3")).unwrap();
        remove_unused(&path("urxe-1-2"));
        let mut left: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort_unstable();
        assert_eq!(left, ["other-1-2", "urxe-2-3", "urxe-a", "urxe-c-d", "urxe-e-f", "urxe-notes"]);
        drop(open);
        remove_unused(&path("urxe-1-2"));
        assert!(!path("urxe-c-d").exists());
    }

    #[test]
    fn locked_directory_is_kept_and_waiting_for_the_lock_of_a_removed_directory_fails() {
        loop {
            let dir = tempfile::tempdir().unwrap();
            let own = create(&[dir.path().join("urxe-1-2")]).unwrap();
            let locked = DirLock::of(&own).unwrap();
            remove_unused(&dir.path().join("urxe-3-4"));
            assert!(own.exists());
            let waiter = thread::spawn({
                let own = own.clone();
                move || DirLock::of(&own).map(drop)
            });
            // With or without the waiter in place, it finds no directory afterwards, unless it creates the
            // lock file between the removals of that file and of the directory: then the directory stays.
            remove_if_unused(&own, &locked);
            let is_removed = !own.exists();
            drop(locked);
            let waited = waiter.join().unwrap();
            assert_eq!(waited.is_err(), is_removed, "{waited:?}");
            if let Err(e) = waited {
                assert_eq!(e.kind(), io::ErrorKind::NotFound);
                return;
            }
        }
    }

    #[test]
    fn socket_of_a_process_in_another_network_namespace_counts_as_live() {
        if !nix::unistd::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "needs root to create a network namespace");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let socket = thread::spawn({
            let path = path.clone();
            move || {
                unshare(CloneFlags::CLONE_NEWNET).unwrap();
                bound(&path)
            }
        });
        let socket = socket.join().unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        assert!(!is_dead(&address).unwrap());
        drop(socket);
        assert!(is_dead(&address).unwrap());
    }

    /// Another user may have created something else at the candidate's path: a directory that anyone can
    /// access, a symbolic link, or a file.
    #[test]
    fn processes_agree_on_another_directory_if_the_first_is_squatted() {
        let squats: [fn(&Path); 3] = [
            |candidate| {
                fs::create_dir(candidate).unwrap();
                fs::set_permissions(candidate, fs::Permissions::from_mode(0o777)).unwrap();
            },
            |candidate| symlink("/", candidate).unwrap(),
            |candidate| fs::write(candidate, "").unwrap(),
        ];
        for squat in squats {
            let dir = tempfile::tempdir().unwrap();
            let candidates = ["urxe-0", "urxe-0.1"].map(|name| dir.path().join(name));
            squat(&candidates[0]);
            let own = create(&candidates).unwrap();
            assert_eq!(own, candidates[1]);
            assert!(is_private(&own, nix::unistd::geteuid().as_raw(), 0o077));
            assert_eq!(create(&candidates).unwrap(), own);
            let error = create(&candidates[..1]).unwrap_err().to_string();
            assert!(error.contains("urxe-0: ") && error.contains("another user"), "{error}");
        }
    }

    /// Another user may give up the first name while processes use the second.
    #[test]
    fn directory_in_use_is_chosen_although_an_earlier_candidate_is_free() {
        if !crate::netns::is_available() {
            return;
        }
        crate::netns::Netns::new().run(|| {
            let candidates = candidates();
            let last = candidates.last().unwrap();
            create(std::slice::from_ref(last)).unwrap();
            let socket = bound(&last.join("urxe-broker-127.0.0.1"));
            assert_eq!(&own().unwrap(), last);
            drop(socket);
            // A child that another thread is starting has a copy of the socket until it executes its program.
            let deadline = Instant::now() + Duration::from_secs(60);
            while &own().unwrap() == last && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(own().unwrap(), candidates[0]);
            remove_unused(last);
            remove_unused(&candidates[0]);
            assert!(!last.exists() && !candidates[0].exists());
        });
    }

    #[test]
    fn two_network_namespaces_have_different_directories() {
        if !crate::netns::is_available() {
            return;
        }
        let own = candidates();
        let other = crate::netns::Netns::new().run(candidates);
        assert!(other.iter().all(|candidate| !own.contains(candidate)), "{other:?}");
    }
}
