//! Interposed `sigaction`, `signal`, and the calls that set the signal mask. The urxe library handles SIGSEGV
//! and SIGBUS raised by its own accesses to the program's memory, and forwards others to the program's
//! handlers. With these functions, the program sets and queries its own handlers, not the library's. A thread
//! that blocks all signals does not block these two, because the kernel ends the process at a fault in a
//! thread that does.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    SA_NODEFER, SA_RESETHAND, SA_RESTART, SIG_ERR, SIG_UNBLOCK, SIGBUS, SIGSEGV, sighandler_t, sigset_t,
};

use crate::next::{Next, fail, next};

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

static NEXT: Next = Next::new("sigaction\0");
/// The urxe library's `sigaction` for SIGSEGV and SIGBUS, which manages the program's actions for them. Null
/// until the library handles these signals.
static ROUTE: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Registers the urxe library's `sigaction` for SIGSEGV and SIGBUS.
#[unsafe(no_mangle)]
extern "C" fn urxe_route_fault_signals(to: Sigaction) {
    ROUTE.store(to as *mut (), Ordering::Release);
}

pub fn resolve() {
    NEXT.get();
}

/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let route: *mut () =
        if matches!(signal, SIGSEGV | SIGBUS) { ROUTE.load(Ordering::Acquire) } else { null_mut() };
    let function = if route.is_null() { NEXT.get().cast() } else { route };
    if function.is_null() {
        return fail(libc::ENOSYS);
    }
    // SAFETY: `function` is not null and is a `sigaction`, the library's or the next one; the caller's
    // arguments satisfy its contract.
    unsafe { std::mem::transmute::<*mut (), Sigaction>(function)(signal, new, old) }
}

/// Implements `signal` with `sigaction` and the given flags.
unsafe fn set_action(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: zeros are a valid `sigaction` with an empty mask, and both pointers are to live local
    // variables.
    unsafe {
        let mut new: libc::sigaction = MaybeUninit::zeroed().assume_init();
        let mut old: libc::sigaction = MaybeUninit::zeroed().assume_init();
        (new.sa_sigaction, new.sa_flags) = (handler, flags);
        // BSD semantics: the signal itself is blocked while its handler runs.
        if flags & SA_NODEFER == 0 && libc::sigaddset(&mut new.sa_mask, signal) != 0 {
            return SIG_ERR;
        }
        if sigaction(signal, &new, &mut old) == 0 { old.sa_sigaction } else { SIG_ERR }
    }
}

/// Defines the functions of the `signal` family. They handle SIGSEGV and SIGBUS with `sigaction`, and leave
/// all other signals to the C library, which takes `siginterrupt` into account.
macro_rules! signals {
    ($($name:ident: $flags:expr;)*) => {
        $(
            /// # Safety
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
                static NEXT: Next = Next::new(concat!(stringify!($name), "\0"));
                let next = NEXT.get();
                if matches!(signal, SIGSEGV | SIGBUS) && !ROUTE.load(Ordering::Acquire).is_null() || next.is_null() {
                    // SAFETY: the caller's arguments satisfy the contract of `signal`.
                    return unsafe { set_action(signal, handler, $flags) };
                }
                type Signal = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
                // SAFETY: the next library's function of this name has this signature, and the caller's
                // arguments satisfy its contract.
                unsafe { std::mem::transmute::<*mut std::ffi::c_void, Signal>(next)(signal, handler) }
            }
        )*
    };
}

signals! {
    signal: SA_RESTART;
    bsd_signal: SA_RESTART;
    ssignal: SA_RESTART;
    sysv_signal: SA_RESETHAND | SA_NODEFER;
    __sysv_signal: SA_RESETHAND | SA_NODEFER;
}

/// Defines the functions that change the signal mask of the calling thread; SIGSEGV and SIGBUS stay
/// unblocked.
macro_rules! masks {
    ($($name:ident,)*) => {
        $(
            /// # Safety
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
                type Mask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;
                let next = next!($name: Mask);
                // SAFETY: the caller's arguments satisfy the contract of the function: `new` is null or
                // readable.
                unsafe {
                    if new.is_null() || how == SIG_UNBLOCK {
                        return next(how, new, old);
                    }
                    let mut allowed = *new;
                    libc::sigdelset(&mut allowed, SIGSEGV);
                    libc::sigdelset(&mut allowed, SIGBUS);
                    next(how, &allowed, old)
                }
            }
        )*
    };
}

masks! {
    pthread_sigmask,
    sigprocmask,
}
