//! The functions that this library's are in front of.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next library's function of a name: the C library's, or another's that is preloaded too.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub const fn new(name: &'static str) -> Next {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { panic!("a name ends with a zero") };
        Next { name, found: AtomicPtr::new(null_mut()) }
    }

    /// Where it is; null if there is none.
    pub fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.find() } else { found }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        let errno = errno();
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        set_errno(errno);
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

pub fn errno() -> c_int {
    // SAFETY: each thread has its own, always.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(value: c_int) {
    // SAFETY: each thread has its own, always.
    unsafe { *libc::__errno_location() = value }
}

/// What a function returns that failed.
pub trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: c_int = -1;
}

impl Failed for isize {
    const FAILED: isize = -1;
}

impl<T> Failed for *mut T {
    const FAILED: *mut T = null_mut();
}

/// What the C library would have done with a name that is this long.
pub fn fail<R: Failed>(errno: c_int) -> R {
    set_errno(errno);
    R::FAILED
}

/// A text of the environment's, kept: programs write over theirs.
pub fn kept(name: &CStr) -> *mut c_char {
    // SAFETY: the name ends with a zero, and so does what is copied.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() { null_mut() } else { libc::strdup(value) }
    }
}
