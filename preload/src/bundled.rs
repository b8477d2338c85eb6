//! Warning about a libibverbs of the program's own that finds no device: one linked into the program
//! statically, or a bundled copy under another name, as auditwheel adds it to Python wheels. `urxe run`
//! preloads urxe's library, whose symbols normally take precedence over a copy's. A program still uses a copy
//! whose functions it calls without the loader's help, or looks up through an object linked with the copy
//! (`dlsym`).

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::next::{warn, with_saved_errno};

/// End of the name of the file that libibverbs reads when it looks for devices.
static ABI_VERSION_FILE: [u8; 35] = *b"/class/infiniband_verbs/abi_version";

/// Warns, at most once, if the program opens [`ABI_VERSION_FILE`] and has loaded a libibverbs other than
/// urxe's, which opens no such file.
pub fn warn_of_copy(name: &[u8]) {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !name.ends_with(&ABI_VERSION_FILE) || DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: `warn_if_copy` has the signature that `dl_iterate_phdr` expects, and ignores the null data
    // pointer.
    with_saved_errno(|| unsafe { libc::dl_iterate_phdr(Some(warn_if_copy), null_mut()) });
}

unsafe extern "C" fn warn_if_copy(info: *mut libc::dl_phdr_info, _len: usize, _data: *mut c_void) -> c_int {
    // SAFETY: `dl_iterate_phdr` passes a pointer to the loader's description of an object, valid during the
    // call.
    let (info, name) = unsafe { (&*info, (*info).dlpi_name) };
    // SAFETY: the argument satisfies the contract.
    if name.is_null() || !unsafe { is_libibverbs(info) } {
        return 0;
    }
    // SAFETY: the name is not null, and the loader's names are zero-terminated and stay valid during the
    // call.
    let path = unsafe { CStr::from_ptr(name) }.to_bytes();
    warn(match path {
        b"" => [
            b"",
            b"urxe: warning: the program contains a statically linked libibverbs, which finds no urxe device: link it \
              with libibverbs.so.1 instead\n",
            b"",
        ],
        path => [
            b"urxe: warning: the program uses ",
            path,
            b", a bundled copy of libibverbs, through dlsym, and finds no urxe device in it: remove \
              this file, or replace it by a link to libibverbs.so.1\n",
        ],
    });
    1
}

/// Reports whether an object other than this library contains the name of [`ABI_VERSION_FILE`] in its
/// constants, as libibverbs does.
///
/// # Safety
/// The description is the loader's, and valid during the call.
unsafe fn is_libibverbs(info: &libc::dl_phdr_info) -> bool {
    // libibverbs keeps the leading slash with the directory.
    let name = &ABI_VERSION_FILE[1..];
    // SAFETY: the loader's description names `dlpi_phnum` program headers.
    let segments = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let constants = segments.iter().filter(|segment| {
        segment.p_type == libc::PT_LOAD && segment.p_flags & (libc::PF_R | libc::PF_W) == libc::PF_R
    });
    constants.into_iter().any(|segment| {
        let start = (info.dlpi_addr + segment.p_vaddr) as usize;
        let len = segment.p_filesz as usize;
        if (start..start + len).contains(&(name.as_ptr() as usize)) {
            return false;
        }
        // SAFETY: a loadable segment with read permission is mapped from `start` on, and `dl_iterate_phdr`
        // keeps the object loaded during the call.
        let bytes =
            unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(start), len) };
        // Not memmem or memcmp, in which AddressSanitizer finds accesses to the padding of the program's
        // constants.
        bytes.windows(name.len()).any(|window| window.iter().eq(name))
    })
}
