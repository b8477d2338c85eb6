//! The C library's functions that take a file's name.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{AT_FDCWD, DIR, FILE, mode_t, size_t, ssize_t};

use crate::next::{Next, fail};
use crate::redirect::redirect;

/// Each line is a function: what comes before the name, what comes behind it, what it returns, and the directory in which a
/// name without a slash in front is looked up.
macro_rules! interpose {
    ($($name:ident($($before:ident: $b:ty),* ; $($after:ident: $a:ty),*) -> $ret:ty, $from:expr;)*) => {
        $(
            mod $name {
                pub static NEXT: super::Next = super::Next::new(concat!(stringify!($name), "\0"));
            }

            /// # Safety
            /// As of the C library's.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($before: $b,)* path: *const c_char, $($after: $a),*) -> $ret {
                let next = $name::NEXT.get();
                if next.is_null() {
                    return fail(libc::ENOSYS);
                }
                type Function = unsafe extern "C" fn($($b,)* *const c_char, $($a),*) -> $ret;
                // SAFETY: the function of this name takes these.
                let next: Function = unsafe { std::mem::transmute(next) };
                // SAFETY: the caller's arguments, for the function that they are meant for.
                unsafe { redirect($from, path, |path| next($($before,)* path, $($after),*)) }
            }
        )*

        /// Finds all that they are in front of.
        pub fn resolve_all() {
            $($name::NEXT.get();)*
        }
    };
}

/// What is passed on without a look.
type Pointer = *mut c_void;

// `open` and its like take a mode only if they make a file, as variadic arguments. Those are passed as named ones are, on
// all machines that this is built for, and one that was not given is not looked at.
interpose! {
    open(; flags: c_int, mode: mode_t) -> c_int, AT_FDCWD;
    open64(; flags: c_int, mode: mode_t) -> c_int, AT_FDCWD;
    __open_2(; flags: c_int) -> c_int, AT_FDCWD;
    __open64_2(; flags: c_int) -> c_int, AT_FDCWD;
    openat(dir: c_int; flags: c_int, mode: mode_t) -> c_int, dir;
    openat64(dir: c_int; flags: c_int, mode: mode_t) -> c_int, dir;
    __openat_2(dir: c_int; flags: c_int) -> c_int, dir;
    __openat64_2(dir: c_int; flags: c_int) -> c_int, dir;
    fopen(; mode: *const c_char) -> *mut FILE, AT_FDCWD;
    fopen64(; mode: *const c_char) -> *mut FILE, AT_FDCWD;
    freopen(; mode: *const c_char, file: *mut FILE) -> *mut FILE, AT_FDCWD;
    freopen64(; mode: *const c_char, file: *mut FILE) -> *mut FILE, AT_FDCWD;

    opendir(;) -> *mut DIR, AT_FDCWD;
    scandir(; list: Pointer, filter: Pointer, compare: Pointer) -> c_int, AT_FDCWD;
    scandir64(; list: Pointer, filter: Pointer, compare: Pointer) -> c_int, AT_FDCWD;
    scandirat(dir: c_int; list: Pointer, filter: Pointer, compare: Pointer) -> c_int, dir;
    scandirat64(dir: c_int; list: Pointer, filter: Pointer, compare: Pointer) -> c_int, dir;
    chdir(;) -> c_int, AT_FDCWD;

    access(; mode: c_int) -> c_int, AT_FDCWD;
    eaccess(; mode: c_int) -> c_int, AT_FDCWD;
    euidaccess(; mode: c_int) -> c_int, AT_FDCWD;
    faccessat(dir: c_int; mode: c_int, flags: c_int) -> c_int, dir;

    stat(; out: Pointer) -> c_int, AT_FDCWD;
    stat64(; out: Pointer) -> c_int, AT_FDCWD;
    lstat(; out: Pointer) -> c_int, AT_FDCWD;
    lstat64(; out: Pointer) -> c_int, AT_FDCWD;
    fstatat(dir: c_int; out: Pointer, flags: c_int) -> c_int, dir;
    fstatat64(dir: c_int; out: Pointer, flags: c_int) -> c_int, dir;
    statx(dir: c_int; flags: c_int, mask: c_uint, out: Pointer) -> c_int, dir;
    // What the above were before 2.33, in programs that were built then.
    __xstat(version: c_int; out: Pointer) -> c_int, AT_FDCWD;
    __xstat64(version: c_int; out: Pointer) -> c_int, AT_FDCWD;
    __lxstat(version: c_int; out: Pointer) -> c_int, AT_FDCWD;
    __lxstat64(version: c_int; out: Pointer) -> c_int, AT_FDCWD;
    __fxstatat(version: c_int, dir: c_int; out: Pointer, flags: c_int) -> c_int, dir;
    __fxstatat64(version: c_int, dir: c_int; out: Pointer, flags: c_int) -> c_int, dir;
    statfs(; out: Pointer) -> c_int, AT_FDCWD;
    statfs64(; out: Pointer) -> c_int, AT_FDCWD;
    getxattr(; name: *const c_char, value: Pointer, size: size_t) -> ssize_t, AT_FDCWD;
    lgetxattr(; name: *const c_char, value: Pointer, size: size_t) -> ssize_t, AT_FDCWD;

    readlink(; out: *mut c_char, size: size_t) -> ssize_t, AT_FDCWD;
    __readlink_chk(; out: *mut c_char, size: size_t, room: size_t) -> ssize_t, AT_FDCWD;
    readlinkat(dir: c_int; out: *mut c_char, size: size_t) -> ssize_t, dir;
    __readlinkat_chk(dir: c_int; out: *mut c_char, size: size_t, room: size_t) -> ssize_t, dir;
    realpath(; out: *mut c_char) -> *mut c_char, AT_FDCWD;
    __realpath_chk(; out: *mut c_char, room: size_t) -> *mut c_char, AT_FDCWD;
    canonicalize_file_name(;) -> *mut c_char, AT_FDCWD;
}
