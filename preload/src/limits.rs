//! Interposed `getrlimit` and `prlimit`, which report the limit on locked memory (RLIMIT_MEMLOCK) as
//! unlimited. Registration locks no memory, so the limit does not apply, but programs such as GASNet compute
//! from it how much they may register.

use std::ffi::c_int;

use libc::{RLIM_INFINITY, RLIM64_INFINITY, RLIMIT_MEMLOCK, pid_t, rlimit, rlimit64};

use crate::next::next;

/// Type of a resource in the C library's functions.
type Resource = libc::__rlimit_resource_t;

/// Defines interposed functions that store a limit in their last argument.
macro_rules! limits {
    ($($name:ident of $resource:ident($($argument:ident: $type:ty),*) -> $limit:ty = $unlimited:expr;)*) => {
        $(
            /// # Safety
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type,)* limit: *mut $limit) -> c_int {
                type Function = unsafe extern "C" fn($($type,)* *mut $limit) -> c_int;
                let next = next!($name: Function);
                // SAFETY: the caller's arguments satisfy the contract of the function.
                let result = unsafe { next($($argument,)* limit) };
                if result == 0 && $resource == RLIMIT_MEMLOCK && !limit.is_null() {
                    // SAFETY: the function has just stored a limit there.
                    unsafe { ((*limit).rlim_cur, (*limit).rlim_max) = ($unlimited, $unlimited) };
                }
                result
            }
        )*
    };
}

limits! {
    getrlimit of resource(resource: Resource) -> rlimit = RLIM_INFINITY;
    getrlimit64 of resource(resource: Resource) -> rlimit64 = RLIM64_INFINITY;
    prlimit of resource(process: pid_t, resource: Resource, new: *const rlimit) -> rlimit = RLIM_INFINITY;
    prlimit64 of resource(process: pid_t, resource: Resource, new: *const rlimit64) -> rlimit64 = RLIM64_INFINITY;
}
