//! Interposed functions of the C library that take a file name.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{AT_FDCWD, DIR, FILE, mode_t, size_t, ssize_t};

use crate::next::{Next, next};
use crate::redirect::{flags_of_mode, redirect};

/// Defines one interposed function per line: its arguments before the file name, its arguments after the file
/// name, its return type, the directory against which a relative name is resolved, and, if it opens a file,
/// the flags of `open`.
macro_rules! interpose {
    ($($name:ident($($before:ident: $b:ty),* ; $($after:ident: $a:ty),*) -> $ret:ty, $from:expr $(, $flags:expr)?;)*) => {
        $(
            mod $name {
                pub static NEXT: super::Next = super::Next::new(concat!(stringify!($name), "\0"));
            }

            /// # Safety
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($before: $b,)* path: *const c_char, $($after: $a),*) -> $ret {
                type Function = unsafe extern "C" fn($($b,)* *const c_char, $($a),*) -> $ret;
                let next = next!($name::NEXT => Function);
                // SAFETY: the caller's arguments satisfy the contract of the C library's function, to which
                // they are passed with a valid name.
                unsafe { redirect($from, path, || 0 $(| $flags)?, |path| next($($before,)* path, $($after),*)) }
            }
        )*

        /// Looks up the interposed functions in the next library.
        pub fn resolve_all() {
            $($name::NEXT.get();)*
        }
    };
}

/// A pointer argument that is passed on unchanged.
type Pointer = *mut c_void;

// `open` and similar functions take a mode only if they create a file, as a variadic argument. On all
// architectures that this is built for, a variadic argument is passed like a named one, and the function
// ignores a mode that was not given.
interpose! {
    open(; flags: c_int, mode: mode_t) -> c_int, AT_FDCWD, flags;
    open64(; flags: c_int, mode: mode_t) -> c_int, AT_FDCWD, flags;
    __open_2(; flags: c_int) -> c_int, AT_FDCWD, flags;
    __open64_2(; flags: c_int) -> c_int, AT_FDCWD, flags;
    openat(dir: c_int; flags: c_int, mode: mode_t) -> c_int, dir, flags;
    openat64(dir: c_int; flags: c_int, mode: mode_t) -> c_int, dir, flags;
    __openat_2(dir: c_int; flags: c_int) -> c_int, dir, flags;
    __openat64_2(dir: c_int; flags: c_int) -> c_int, dir, flags;
    creat(; mode: mode_t) -> c_int, AT_FDCWD, libc::O_CREAT | libc::O_WRONLY;
    creat64(; mode: mode_t) -> c_int, AT_FDCWD, libc::O_CREAT | libc::O_WRONLY;
    fopen(; mode: *const c_char) -> *mut FILE, AT_FDCWD, flags_of_mode(mode);
    fopen64(; mode: *const c_char) -> *mut FILE, AT_FDCWD, flags_of_mode(mode);
    freopen(; mode: *const c_char, file: *mut FILE) -> *mut FILE, AT_FDCWD, flags_of_mode(mode);
    freopen64(; mode: *const c_char, file: *mut FILE) -> *mut FILE, AT_FDCWD, flags_of_mode(mode);

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
    // Names of the above in programs that were built with glibc before 2.33.
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
