//! Interposed `munmap`, `mmap`, `mremap` and `madvise`. They report the memory whose pages the process loses.
//! A key must give no access to later mappings at the addresses of its region.
//!
//! UCX, Open MPI and libfabric overwrite the code of these functions, whose address they ask `dlsym` for, to
//! observe the calls of the C library itself. So this library must not define the functions that `dlsym`
//! finds: it gives them the symbol version that programs are linked against, but not as the default one, and
//! `dlsym` ignores such symbols.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{MAP_FAILED, off_t, size_t};

use crate::next::{next, with_saved_errno};

/// Function of the urxe library to which calls are reported: the first address, the number of bytes, and
/// whether only pages of private mappings are lost.
type Report = extern "C" fn(usize, usize, bool);

/// Null until the library has registered memory.
static REPORT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

#[unsafe(no_mangle)]
extern "C" fn urxe_report_unmapping(to: Report) {
    REPORT.store(to as *mut (), Ordering::Release);
}

fn report(address: *mut c_void, len: usize, private_only: bool) {
    let function: *mut () = REPORT.load(Ordering::Acquire);
    if !function.is_null() && len != 0 {
        // SAFETY: `urxe_report_unmapping` stored a function of this type.
        let function = unsafe { std::mem::transmute::<*mut (), Report>(function) };
        with_saved_errno(|| function(address.addr(), len, private_only));
    }
}

/// Exports functions under names of the C library, with their version in it but not as the default one.
macro_rules! export {
    ($($name:ident = $function:path,)*) => {
        $(std::arch::global_asm!(
            ".pushsection .text",
            concat!(".globl urxe_export_", stringify!($name)),
            concat!(".type urxe_export_", stringify!($name), ",@function"),
            concat!("urxe_export_", stringify!($name), ":"),
            ".cfi_startproc",
            concat!(env!("URXE_JUMP"), " {f}"),
            ".cfi_endproc",
            concat!(".symver urxe_export_", stringify!($name), ",", stringify!($name), "@", env!("URXE_GLIBC_NODE")),
            ".popsection",
            f = sym $function,
        );)*
    };
}

export! {
    munmap = munmap,
    mmap = mmap,
    mmap64 = mmap,
    mremap = mremap,
    madvise = madvise,
}

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn munmap(address: *mut c_void, len: size_t) -> c_int {
    let next = next!(munmap: unsafe extern "C" fn(*mut c_void, size_t) -> c_int);
    // Before the call, because another thread may map something at the address at once.
    report(address, len, false);
    // SAFETY: the caller's arguments satisfy the contract of the function.
    unsafe { next(address, len) }
}

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    type Mmap = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
    let next = next!(mmap: Mmap, MAP_FAILED);
    // SAFETY: the caller's arguments satisfy the contract of the function.
    let mapped = unsafe { next(address, len, protection, flags, fd, offset) };
    // This call (MAP_FIXED), or an earlier one that was not reported, has unmapped the previous mapping of
    // the range.
    if mapped != MAP_FAILED {
        report(mapped, len, false);
    }
    mapped
}

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn mremap(
    address: *mut c_void,
    old: size_t,
    new: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    type Mremap = unsafe extern "C" fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void;
    let next = next!(mremap: Mremap, MAP_FAILED);
    // SAFETY: the caller's arguments satisfy the contract of the function; the last one exists only with
    // MREMAP_FIXED, and is then passed in the same register as here.
    let mapped = unsafe { next(address, old, new, flags, to) };
    if mapped == address {
        let kept = old.min(new);
        report(address.wrapping_byte_add(kept), old.max(new) - kept, false);
    } else if mapped != MAP_FAILED {
        // A length of 0 duplicates a mapping.
        report(address, old, false);
        report(mapped, new, false);
    }
    mapped
}

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let next = next!(madvise: unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int);
    if matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE | MADV_DONTNEED_LOCKED) {
        report(address, len, advice != libc::MADV_REMOVE);
    }
    // SAFETY: the caller's arguments satisfy the contract of the function.
    unsafe { next(address, len, advice) }
}

const MADV_DONTNEED_LOCKED: c_int = 24;
