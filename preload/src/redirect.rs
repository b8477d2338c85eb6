//! Redirection of RDMA device file names to the directory tree given by `URXE_SYSFS`.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::bundled::warn_of_copy;
use crate::next::{Failed, fail, is_invalid, with_saved_errno};

/// Redirected names: `name` itself, and all names in which the byte `next` follows it.
struct Directory {
    name: &'static [u8],
    next: u8,
    /// Length of the prefix that is replaced by the name of the tree, which contains `class`, `devices`,
    /// `bus`, `kernel` and `dev`.
    prefix_len: usize,
    /// Whether the machine may have such names too. Those that exist there are not redirected.
    is_shared: bool,
}

impl Directory {
    const fn own(name: &'static [u8], prefix_len: usize) -> Directory {
        Directory { name, next: b'/', prefix_len, is_shared: false }
    }

    const fn shared(name: &'static [u8], next: u8) -> Directory {
        Directory { name, next, prefix_len: 4, is_shared: true }
    }
}

/// Directories of RDMA devices, and those in which PCI functions and congestion control of these devices
/// appear beside others.
const DIRECTORIES: [Directory; 8] = [
    Directory::own(b"/sys/class/infiniband", 4),
    Directory::own(b"/sys/class/infiniband_verbs", 4),
    Directory::own(b"/dev/infiniband", 0),
    Directory::shared(b"/sys/devices/pci0000", b':'),
    Directory::shared(b"/sys/bus/pci/devices", b'/'),
    Directory::shared(b"/sys/class/pci_bus", b'/'),
    Directory::shared(b"/sys/class/net", b'/'),
    Directory::shared(b"/sys/kernel/debug/mlx5", b'/'),
];

/// Longest file name that the kernel accepts, including the terminating zero.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Returns the path of the tree (`URXE_SYSFS`), or an empty string if the variable is not set.
pub fn tree() -> &'static CStr {
    static TREE: AtomicPtr<c_char> = AtomicPtr::new(null_mut());
    let mut tree = TREE.load(Ordering::Acquire);
    if tree.is_null() {
        // A copy, because programs overwrite their environment.
        // SAFETY: `getenv` returns null or a zero-terminated string, which is copied at once.
        let copy = unsafe {
            let value = libc::getenv(c"URXE_SYSFS".as_ptr());
            if value.is_null() { null_mut() } else { libc::strdup(value) }
        };
        let copy = if copy.is_null() { c"".as_ptr().cast_mut() } else { copy };
        // Several threads may execute this at the same time, all with copies of the same text; the stored one
        // is never freed.
        tree = match TREE.compare_exchange(null_mut(), copy, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => copy,
            Err(first) => first,
        };
    }
    // SAFETY: the pointer is to a zero-terminated string that is never freed: a literal or the copy.
    unsafe { CStr::from_ptr(tree) }
}

/// Whether the program has named a directory of the tree, or started in one, so that names may be relative to
/// such a directory. Until then, relative names cost no system call.
static HAS_NAMED_DIRECTORY: AtomicBool = AtomicBool::new(false);

/// Finds out whether the program starts in the tree.
pub fn find_start() {
    if !tree().is_empty() && with_saved_errno(|| is_in_tree(libc::AT_FDCWD, c".")) {
        HAS_NAMED_DIRECTORY.store(true, Ordering::Relaxed);
    }
}

/// File name that the [`DIRECTORIES`] include.
struct DeviceName {
    /// Whether the name begins with a slash. Otherwise, it names a device only if it is relative to the root
    /// directory.
    absolute: bool,
    /// Part of the name after the replaced prefix, to be appended to the path of the tree.
    rest: *const c_char,
    /// See [`Directory::is_shared`].
    is_shared: bool,
}

/// Runs `call` with the name of the corresponding file in the tree if the [`DIRECTORIES`] include `path`,
/// relative to the directory `from`, and with `path` unchanged otherwise. If the call opens a file, `flags`
/// returns the flags of `open`.
///
/// # Safety
/// `path` is null or zero-terminated.
#[inline]
pub unsafe fn redirect<R: Failed>(
    from: c_int,
    path: *const c_char,
    flags: impl FnOnce() -> c_int,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    if is_invalid(path) {
        return call(path);
    }
    // SAFETY: `path` is valid here, so the caller guarantees that it is zero-terminated.
    match unsafe { device_name(path) } {
        // SAFETY: as above.
        None => match unsafe { relative_refusal(from, path, flags) } {
            Some(errno) => fail(errno),
            None => call(path),
        },
        // SAFETY: `device_name` was derived from `path`, which is zero-terminated.
        Some(device_name) => unsafe { call_in_tree(from, path, device_name, flags, call) },
    }
}

/// # Safety
/// `path` is zero-terminated.
#[inline]
unsafe fn device_name(path: *const c_char) -> Option<DeviceName> {
    // SAFETY: the comparison stops at the first difference, and the compared names contain no zeros; the byte
    // behind the name is read only if all of it matches. So no byte beyond the terminating zero is read.
    unsafe {
        let absolute = path.cast::<u8>().read() == b'/';
        let offset = usize::from(!absolute);
        DIRECTORIES.iter().find_map(|Directory { name, next, prefix_len, is_shared }| {
            let same =
                name[offset..].iter().enumerate().all(|(i, byte)| path.cast::<u8>().add(i).read() == *byte);
            let end = path.cast::<u8>().wrapping_add(name.len() - offset);
            let matches = same && [0, *next].contains(&end.read());
            // A name without its leading slash (`dev/...`) has no slash that could precede it in the tree's
            // name.
            matches.then(|| DeviceName {
                absolute,
                rest: path.wrapping_add(prefix_len.saturating_sub(offset)),
                is_shared: *is_shared,
            })
        })
    }
}

/// Runs `call` with the name in the tree. This is a separate function so that calls with other names do not
/// use its large stack frame.
///
/// # Safety
/// `device_name` was derived from `path`, which is zero-terminated.
#[cold]
#[inline(never)]
unsafe fn call_in_tree<R: Failed>(
    from: c_int,
    path: *const c_char,
    device_name: DeviceName,
    flags: impl FnOnce() -> c_int,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    let tree = tree().to_bytes();
    // The C library's functions would redirect the name.
    // SAFETY: `path` is zero-terminated.
    let exists = || unsafe { libc::syscall(libc::SYS_faccessat, from, path, libc::F_OK) } == 0;
    if tree.is_empty()
        || !device_name.absolute && !is_root(from)
        || device_name.is_shared && with_saved_errno(exists)
    {
        return call(path);
    }
    // SAFETY: `device_name.rest` points into `path`, which is zero-terminated.
    let rest = unsafe { CStr::from_ptr(device_name.rest) }.to_bytes_with_nul();
    let slash: &[u8] = if rest.starts_with(b"/") { b"" } else { b"/" };
    let mut name = [MaybeUninit::<u8>::uninit(); PATH_MAX];
    if tree.len() + slash.len() + rest.len() > name.len() {
        return fail(libc::ENAMETOOLONG);
    }
    let mut end = name.as_mut_ptr().cast::<u8>();
    for part in [tree, slash, rest] {
        // SAFETY: the check above ensures that all parts fit into `name`, which they do not overlap.
        unsafe {
            copy_nonoverlapping(part.as_ptr(), end, part.len());
            end = end.add(part.len());
        }
    }
    warn_of_copy(&rest[..rest.len() - 1]);
    // SAFETY: the last part that was copied ends with a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr().cast()) };
    let refusal = with_saved_errno(|| {
        let is_known = HAS_NAMED_DIRECTORY.load(Ordering::Relaxed);
        let status = || status_of(libc::AT_FDCWD, name, 0);
        if !is_known && status().is_some_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFDIR) {
            HAS_NAMED_DIRECTORY.store(true, Ordering::Relaxed);
        }
        refusal(libc::AT_FDCWD, name, flags())
    });
    match refusal {
        Some(errno) => fail(errno),
        None => call(name.as_ptr()),
    }
}

/// Returns the [`refusal`] of a name that is not redirected, but may be relative to a directory of the tree.
///
/// # Safety
/// `path` is zero-terminated.
#[inline]
unsafe fn relative_refusal(from: c_int, path: *const c_char, flags: impl FnOnce() -> c_int) -> Option<c_int> {
    if !HAS_NAMED_DIRECTORY.load(Ordering::Relaxed) {
        return None;
    }
    let flags = flags();
    if flags & (libc::O_CREAT | libc::O_ACCMODE) == 0 {
        return None;
    }
    // SAFETY: the caller guarantees that `path` is zero-terminated.
    let name = unsafe { CStr::from_ptr(path) };
    if name.to_bytes().starts_with(b"/") { None } else { with_saved_errno(|| refusal(from, name, flags)) }
}

/// Returns the error of an `open` in the tree that the kernel would refuse root too: no files can be created
/// in sysfs, and a file that has no store function, which nobody may write to, cannot be opened for writing.
#[cold]
#[inline(never)]
fn refusal(from: c_int, name: &CStr, flags: c_int) -> Option<c_int> {
    let (creates, writes) = (flags & libc::O_CREAT != 0, flags & libc::O_ACCMODE != libc::O_RDONLY);
    if !creates && !writes {
        return None;
    }
    let error = match status_of(from, name, 0) {
        _ if flags & libc::O_TMPFILE == libc::O_TMPFILE => Some(libc::EOPNOTSUPP),
        // The call itself fails with EEXIST.
        Some(_) if creates && flags & libc::O_EXCL != 0 => None,
        Some(status) => (writes && status.st_mode & 0o222 == 0).then_some(libc::EACCES),
        // Without a directory for the file, the call fails with ENOENT.
        None => creates.then_some(libc::EACCES),
    };
    error.filter(|_| is_in_tree(from, name))
}

/// Reports whether the directory of a file exists and is the tree or below it.
fn is_in_tree(from: c_int, name: &CStr) -> bool {
    let root = inode_of(libc::AT_FDCWD, tree(), 0);
    let name = name.to_bytes();
    let mut len = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (mut path, mut below) = ([0; PATH_MAX], None);
    if len < path.len() {
        path[..len].copy_from_slice(&name[..len]);
    }
    // Goes up to the tree, or to the root directory, whose parent is itself.
    while len + 4 <= path.len() {
        path[len] = b'.';
        let found = CStr::from_bytes_until_nul(&path).ok().and_then(|path| inode_of(from, path, 0));
        if found.is_none() || found == root || found == below {
            return found.is_some() && found == root;
        }
        path[len..len + 3].copy_from_slice(b"../");
        (len, below) = (len + 3, found);
    }
    false
}

/// Returns the flags of `open` that correspond to a mode of `fopen`.
///
/// # Safety
/// `mode` is null or zero-terminated.
pub unsafe fn flags_of_mode(mode: *const c_char) -> c_int {
    if is_invalid(mode) {
        return libc::O_RDONLY;
    }
    // SAFETY: `mode` is valid here, so the caller guarantees that it is zero-terminated.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    match mode.first() {
        Some(b'w' | b'a') => libc::O_WRONLY | libc::O_CREAT,
        _ if mode.contains(&b'+') => libc::O_RDWR,
        _ => libc::O_RDONLY,
    }
}

/// Reports whether `from` is the root directory. Some programs (hwloc) open it and use names relative to it.
fn is_root(from: c_int) -> bool {
    with_saved_errno(|| {
        let inode = inode_of(from, c"", libc::AT_EMPTY_PATH);
        inode.is_some() && inode == inode_of(libc::AT_FDCWD, c"/", 0)
    })
}

/// Returns the device and inode numbers of a file, or `None` if it does not exist.
fn inode_of(from: c_int, path: &CStr, flags: c_int) -> Option<(libc::dev_t, libc::ino64_t)> {
    status_of(from, path, flags).map(|found| (found.st_dev, found.st_ino))
}

/// Returns the status of a file, or `None` if it does not exist.
fn status_of(from: c_int, path: &CStr, flags: c_int) -> Option<libc::stat64> {
    let mut found = MaybeUninit::<libc::stat64>::uninit();
    // SAFETY: the name is zero-terminated, and `found` has room for the result.
    let result = unsafe { libc::fstatat64(from, path.as_ptr(), found.as_mut_ptr(), flags) };
    // SAFETY: the call succeeded, so it has filled in `found`.
    (result == 0).then(|| unsafe { found.assume_init() })
}
