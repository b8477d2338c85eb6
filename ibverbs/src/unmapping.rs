//! Reports of the preload library about memory that the program unmaps.

use std::fs;
use std::sync::Once;

use urxe::memory::page_size;
use urxe::sys::pinned::{is_registered, mark_unmapped};

/// Asks the preload library for reports, if it is there. Without it, a part of a region that the program has
/// unmapped is noticed when the library maps something there, or at an access while nothing is.
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the name is zero-terminated.
        let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"urxe_report_unmapping".as_ptr()) };
        if !function.is_null() {
            type Subscribe = extern "C" fn(extern "C" fn(usize, usize, bool));
            // SAFETY: the function of this name is that of the preload library, which has this type.
            let subscribe: Subscribe = unsafe { std::mem::transmute(function) };
            subscribe(on_report);
        }
    });
}

/// Handles the report that the program loses the pages of `len` bytes at `addr`, or those in private mappings
/// only: madvise(2) takes none from a shared mapping.
extern "C" fn on_report(addr: usize, len: usize, private_only: bool) {
    let page = page_size();
    let Some(end) = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)) else { return };
    // The kernel fails the call then.
    if !addr.is_multiple_of(page) {
        return;
    }
    if !private_only {
        return mark_unmapped(addr, end - addr);
    }
    if !is_registered(addr, end - addr) {
        return;
    }
    for line in fs::read_to_string("/proc/self/maps").unwrap_or_default().lines() {
        if let Some((from, to)) = private_mapping(line) {
            let (from, to) = (from.max(addr), to.min(end));
            mark_unmapped(from, to.saturating_sub(from));
        }
    }
}

/// Returns the range of a line of `/proc/self/maps` if it is a private mapping (proc_pid_maps(5)).
fn private_mapping(line: &str) -> Option<(usize, usize)> {
    let (range, permissions) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let parse = |number| usize::from_str_radix(number, 16).ok();
    if permissions.as_bytes().get(3) == Some(&b'p') { Some((parse(from)?, parse(to)?)) } else { None }
}
