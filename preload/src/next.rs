//! Lookup of the interposed functions in the next library.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Function that this library interposes, as defined by the next library in symbol lookup order: the C
/// library or another preloaded library.
pub struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub const fn new(name: &'static str) -> Next {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            panic!("the function name must end with a zero byte")
        };
        Next { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Returns the address of the function, or null if no library defines it.
    pub fn get(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.find() } else { address }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: `new` has checked that the name is zero-terminated.
        let address = with_saved_errno(|| unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) });
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Returns the next definition of a function, by its [`Next`] or its name, with its type. Where it is used,
/// the function fails with ENOSYS, by default with its [`Failed`] value, if there is no definition.
macro_rules! next {
    ($name:ident: $function:ty $(, $failed:expr)?) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new(concat!(stringify!($name), "\0"));
        $crate::next::next!(NEXT => $function $(, $failed)?)
    }};
    ($next:expr => $function:ty) => { $crate::next::next!($next => $function, $crate::next::Failed::FAILED) };
    ($next:expr => $function:ty, $failed:expr) => {{
        let next = $next.get();
        if next.is_null() {
            $crate::next::set_errno(libc::ENOSYS);
            return $failed;
        }
        // SAFETY: `next` is not null and is the next definition of this function, whose type it has.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, $function>(next) }
    }};
}
pub(crate) use next;

/// Reports whether a pointer is null or points into the first page, which is never mapped. The kernel fails a
/// call with such a pointer with EFAULT, so the library must not read its target.
pub fn is_invalid<T>(pointer: *const T) -> bool {
    pointer.addr() < 4096
}

/// Runs `f` and restores errno.
pub fn with_saved_errno<R>(f: impl FnOnce() -> R) -> R {
    let saved_errno = errno();
    let result = f();
    set_errno(saved_errno);
    result
}

/// Prints a warning that consists of three parts.
pub fn warn(parts: [&[u8]; 3]) {
    let text =
        parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: the vectors point to the bytes of `parts`, which outlive the call, and the count is the length
    // of `text`.
    unsafe { libc::writev(libc::STDERR_FILENO, text.as_ptr(), text.len() as c_int) };
}

fn errno() -> c_int {
    // SAFETY: `__errno_location` returns a valid pointer to the calling thread's own variable.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(value: c_int) {
    // SAFETY: `__errno_location` returns a valid pointer to the calling thread's own variable.
    unsafe { *libc::__errno_location() = value }
}

/// Return value that reports the failure of a C function.
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

/// Fails a call as the C library would: sets errno and returns the failure value.
pub fn fail<R: Failed>(errno: c_int) -> R {
    set_errno(errno);
    R::FAILED
}
