//! Warning about a copy of libibverbs that a program bundles under another name, as auditwheel does in Python
//! wheels. `urxe run` preloads urxe's library, whose symbols normally take precedence. A program still uses
//! its copy if it looks the functions up in the copy alone (`dlsym` with the copy's handle, RTLD_DEEPBIND).

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::next::{errno, set_errno};

/// End of the name of the file that libibverbs reads when it looks for devices.
const ABI_VERSION_FILE: &[u8] = b"/class/infiniband_verbs/abi_version";

/// Warns, at most once, if the program opens [`ABI_VERSION_FILE`] and has loaded a renamed copy of
/// libibverbs.
pub fn warn_of_copy(name: &[u8]) {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !name.ends_with(ABI_VERSION_FILE) || DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    let saved_errno = errno();
    // SAFETY: `warn_if_copy` has the signature that `dl_iterate_phdr` expects, and ignores the null data
    // pointer.
    unsafe { libc::dl_iterate_phdr(Some(warn_if_copy), null_mut()) };
    set_errno(saved_errno);
}

unsafe extern "C" fn warn_if_copy(info: *mut libc::dl_phdr_info, _len: usize, _data: *mut c_void) -> c_int {
    // SAFETY: `dl_iterate_phdr` passes a pointer to the loader's description of an object, valid during the
    // call.
    let name = unsafe { (*info).dlpi_name };
    if name.is_null() {
        return 0;
    }
    // SAFETY: the name is not null, and the loader's names are zero-terminated and stay valid during the
    // call.
    let path = unsafe { CStr::from_ptr(name) }.to_bytes();
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    if !file.starts_with(b"libibverbs-") {
        return 0;
    }
    let parts: [&[u8]; 3] = [
        b"urxe: warning: the program uses ",
        path,
        b", a bundled copy of libibverbs, through dlsym or RTLD_DEEPBIND, and finds no urxe device in it: remove this file, \
          or replace it by a link to libibverbs.so.1\n",
    ];
    let text =
        parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: the vectors point to the bytes of `parts`, which outlive the call, and the count is that of
    // `text`.
    unsafe { libc::writev(libc::STDERR_FILENO, text.as_ptr(), text.len() as c_int) };
    1
}
