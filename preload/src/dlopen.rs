//! Interposed `dlopen` and `dlmopen`. A program that opens a libibverbs or librdmacm of its own, by a path or
//! under the name that auditwheel gives to a bundled copy, gets urxe's library. RTLD_DEEPBIND is ignored: an
//! object opened with it would prefer its own copy to the preloaded libraries, and the C library to this
//! library's functions.
//!
//! The C library takes the search path from the object that contains the return address. These functions
//! therefore jump to the next ones, which requires assembly, instead of calling them.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr::null_mut;

use crate::next::Next;

/// DT_SONAME of urxe's preloaded library, which implements librdmacm too.
const LIBRARY: &CStr = c"libibverbs.so.1";

static DLOPEN: Next = Next::new("dlopen\0");
static DLMOPEN: Next = Next::new("dlmopen\0");

pub fn resolve() {
    DLOPEN.get();
    DLMOPEN.get();
}

/// Reports whether a file name, without directories, names a libibverbs or librdmacm: `libibverbs.so`,
/// `libibverbs.so.1`, `libibverbs-1de1263b.so.1.14.48.0`.
fn is_replaced(file: &[u8]) -> bool {
    let suffix = file.strip_prefix(b"libibverbs").or_else(|| file.strip_prefix(b"librdmacm"));
    suffix.is_some_and(|suffix| {
        suffix.starts_with(b".so")
            || suffix.starts_with(b"-") && suffix.windows(3).any(|three| three == b".so")
    })
}

/// Returns the name of the library to open in place of `name`.
unsafe extern "C" fn replace(name: *const c_char) -> *const c_char {
    if name.is_null() {
        return name;
    }
    // SAFETY: `dlopen` requires a name that is null or zero-terminated.
    let path = unsafe { CStr::from_ptr(name) }.to_bytes();
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    if is_replaced(file) { LIBRARY.as_ptr() } else { name }
}

/// Fails in place of a `dlopen` or `dlmopen` that no library defines.
extern "C" fn unavailable() -> *mut c_void {
    null_mut()
}

fn address(next: &Next) -> *mut c_void {
    let address = next.get();
    if address.is_null() { unavailable as *mut c_void } else { address }
}

extern "C" fn next_dlopen() -> *mut c_void {
    address(&DLOPEN)
}

extern "C" fn next_dlmopen() -> *mut c_void {
    address(&DLMOPEN)
}

/// # Safety
/// As for the C library's function.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    // The three words keep the arguments, and align the stack for the calls.
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {replace}",
        "mov [rsp + 16], rax",
        "call {next}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "and esi, {keep}",
        "jmp rax",
        replace = sym replace,
        next = sym next_dlopen,
        keep = const !libc::RTLD_DEEPBIND,
    )
}

/// # Safety
/// As for the C library's function.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlmopen(namespace: c_long, name: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rdi, rsi",
        "call {replace}",
        "mov [rsp + 8], rax",
        "call {next}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        replace = sym replace,
        next = sym next_dlmopen,
    )
}
