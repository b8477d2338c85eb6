//! Which names are of RDMA devices, and where those files are instead.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::bundled::warn_of_copy;
use crate::next::{Failed, errno, fail, kept, set_errno};

/// Directories of RDMA devices, and how much of their names goes before the tree's own: it has `class` and `dev`.
const DIRECTORIES: [(&[u8], usize); 3] =
    [(b"/sys/class/infiniband", 4), (b"/sys/class/infiniband_verbs", 4), (b"/dev/infiniband", 0)];

/// The longest name that the kernel takes, with its zero.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// The tree; empty if none is named.
pub fn tree() -> &'static CStr {
    static TREE: AtomicPtr<c_char> = AtomicPtr::new(null_mut());
    let mut tree = TREE.load(Ordering::Acquire);
    if tree.is_null() {
        let own = kept(c"URXE_SYSFS");
        let own = if own.is_null() { c"".as_ptr().cast_mut() } else { own };
        // Of several threads that ask first, the texts of all are the same; the one that counts stays for good.
        tree = match TREE.compare_exchange(null_mut(), own, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => own,
            Err(first) => first,
        };
    }
    // SAFETY: it ends with a zero and stays.
    unsafe { CStr::from_ptr(tree) }
}

/// A name in one of the directories.
struct Known {
    /// It begins with a slash; otherwise it is of such a directory only as seen from the root.
    absolute: bool,
    /// What follows the tree's own name, from its slash on.
    rest: *const c_char,
}

/// Calls with the name of the same file in the tree, if `path` as seen from the directory `from` is of RDMA devices, else
/// with `path` as it is.
///
/// # Safety
/// `path` is null, or ends with a zero.
#[inline]
pub unsafe fn redirect<R: Failed>(
    from: c_int,
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    if path.is_null() {
        return call(path);
    }
    // SAFETY: it ends with a zero.
    match unsafe { known(path) } {
        None => call(path),
        // SAFETY: as above.
        Some(known) => unsafe { in_tree(from, path, known, call) },
    }
}

/// # Safety
/// `path` ends with a zero.
#[inline]
unsafe fn known(path: *const c_char) -> Option<Known> {
    // SAFETY: the first byte is there, and what follows is looked at only while it is that of a name without zeros.
    unsafe {
        let absolute = path.cast::<u8>().read() == b'/';
        let skipped = usize::from(!absolute);
        DIRECTORIES.iter().find_map(|(name, before)| {
            let same =
                name[skipped..].iter().enumerate().all(|(i, byte)| path.cast::<u8>().add(i).read() == *byte);
            let end = path.cast::<u8>().wrapping_add(name.len() - skipped);
            let is_it = same && matches!(end.read(), 0 | b'/');
            // Without its slash, `dev/…` has nothing that could be the tree's.
            is_it.then(|| Known { absolute, rest: path.wrapping_add(before.saturating_sub(skipped)) })
        })
    }
}

/// Apart from the way that all other names go, as this needs much of the stack.
///
/// # Safety
/// `known` is of `path`, which ends with a zero.
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
    // SAFETY: the rest of a path ends where it does.
    let rest = unsafe { CStr::from_ptr(known.rest) }.to_bytes_with_nul();
    let slash: &[u8] = if rest.starts_with(b"/") { b"" } else { b"/" };
    let mut name = [MaybeUninit::<u8>::uninit(); PATH_MAX];
    if tree.len() + slash.len() + rest.len() > name.len() {
        return fail(libc::ENAMETOOLONG);
    }
    let mut end = name.as_mut_ptr().cast::<u8>();
    for part in [tree, slash, rest] {
        // SAFETY: all of them fit, as was just seen.
        unsafe {
            copy_nonoverlapping(part.as_ptr(), end, part.len());
            end = end.add(part.len());
        }
    }
    warn_of_copy(&rest[..rest.len() - 1]);
    call(name.as_ptr().cast())
}

/// Whether names that begin with no slash are of the root directory: programs (hwloc) open that and go on from there.
fn is_root(from: c_int) -> bool {
    let before = errno();
    let look = |from: c_int, path: &CStr, flags: c_int| {
        let mut found = MaybeUninit::<libc::stat64>::uninit();
        // SAFETY: the name ends with a zero, and there is room for the answer.
        let result = unsafe { libc::fstatat64(from, path.as_ptr(), found.as_mut_ptr(), flags) };
        // SAFETY: it was filled in.
        (result == 0).then(|| unsafe { found.assume_init() }).map(|found| (found.st_dev, found.st_ino))
    };
    let here = look(from, c"", libc::AT_EMPTY_PATH);
    let is_root = here.is_some() && here == look(libc::AT_FDCWD, c"/", 0);
    set_errno(before);
    is_root
}
