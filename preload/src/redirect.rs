//! Redirection of the file names of RDMA devices to a tree of files.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::bundled::warn_of_copy;
use crate::next::{Failed, errno, fail, kept, set_errno};

/// Directories of RDMA devices, and the length of the prefix that is replaced by the tree's name: the tree
/// has `class` and `dev`.
const DIRECTORIES: [(&[u8], usize); 3] =
    [(b"/sys/class/infiniband", 4), (b"/sys/class/infiniband_verbs", 4), (b"/dev/infiniband", 0)];

/// Longest file name that the kernel accepts, including the terminating zero.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Returns the name of the tree, or an empty string if `URXE_SYSFS` is not set.
pub fn tree() -> &'static CStr {
    static TREE: AtomicPtr<c_char> = AtomicPtr::new(null_mut());
    let mut tree = TREE.load(Ordering::Acquire);
    if tree.is_null() {
        let own = kept(c"URXE_SYSFS");
        let own = if own.is_null() { c"".as_ptr().cast_mut() } else { own };
        // Several threads may get here first, all with copies of the same text; the stored one is never
        // freed.
        tree = match TREE.compare_exchange(null_mut(), own, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => own,
            Err(first) => first,
        };
    }
    // SAFETY: the pointer is to a zero-terminated string that is never freed: a literal or a copy from
    // `kept`.
    unsafe { CStr::from_ptr(tree) }
}

/// A file name in one of the directories.
struct Known {
    /// Whether the name begins with a slash. A name without one is in such a directory only if it is relative
    /// to the root.
    absolute: bool,
    /// The part after the prefix, from its slash on, which is appended to the name of the tree.
    rest: *const c_char,
}

/// Runs `call` with the name of the same file in the tree if `path`, relative to the directory `from`, names
/// an RDMA device; otherwise with `path` unchanged.
///
/// # Safety
/// `path` is null or zero-terminated.
#[inline]
pub unsafe fn redirect<R: Failed>(
    from: c_int,
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    if path.is_null() {
        return call(path);
    }
    // SAFETY: `path` is not null here, so the caller guarantees that it is zero-terminated.
    match unsafe { known(path) } {
        None => call(path),
        // SAFETY: `known` was derived from `path`, which is zero-terminated.
        Some(known) => unsafe { in_tree(from, path, known, call) },
    }
}

/// # Safety
/// `path` is zero-terminated.
#[inline]
unsafe fn known(path: *const c_char) -> Option<Known> {
    // SAFETY: the comparison stops at the first difference, and the compared names contain no zeros; the byte
    // behind the name is read only if all of it matches. So no byte beyond the terminating zero is read.
    unsafe {
        let absolute = path.cast::<u8>().read() == b'/';
        let skipped = usize::from(!absolute);
        DIRECTORIES.iter().find_map(|(name, before)| {
            let same =
                name[skipped..].iter().enumerate().all(|(i, byte)| path.cast::<u8>().add(i).read() == *byte);
            let end = path.cast::<u8>().wrapping_add(name.len() - skipped);
            let is_it = same && matches!(end.read(), 0 | b'/');
            // A name without its leading slash (`dev/...`) has no slash that could precede it in the tree's
            // name.
            is_it.then(|| Known { absolute, rest: path.wrapping_add(before.saturating_sub(skipped)) })
        })
    }
}

/// Separate from the path of all other names, because this function needs much stack space.
///
/// # Safety
/// `known` was derived from `path`, which is zero-terminated.
#[cold]
#[inline(never)]
unsafe fn in_tree<R: Failed>(
    from: c_int,
    path: *const c_char,
    known: Known,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    let tree = tree().to_bytes();
    if tree.is_empty() || !known.absolute && !is_root(from) {
        return call(path);
    }
    // SAFETY: `known.rest` points into `path`, which is zero-terminated.
    let rest = unsafe { CStr::from_ptr(known.rest) }.to_bytes_with_nul();
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
    call(name.as_ptr().cast())
}

/// Reports whether relative names are resolved against the root directory: some programs (hwloc) open it and
/// continue from there.
fn is_root(from: c_int) -> bool {
    let before = errno();
    let look = |from: c_int, path: &CStr, flags: c_int| {
        let mut found = MaybeUninit::<libc::stat64>::uninit();
        // SAFETY: the name is zero-terminated, and `found` has room for the result.
        let result = unsafe { libc::fstatat64(from, path.as_ptr(), found.as_mut_ptr(), flags) };
        // SAFETY: the call succeeded, so it has filled in `found`.
        (result == 0).then(|| unsafe { found.assume_init() }).map(|found| (found.st_dev, found.st_ino))
    };
    let here = look(from, c"", libc::AT_EMPTY_PATH);
    let is_root = here.is_some() && here == look(libc::AT_FDCWD, c"/", 0);
    set_errno(before);
    is_root
}
