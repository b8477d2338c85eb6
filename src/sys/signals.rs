//! Queries about the program's signal handlers.

use std::mem::MaybeUninit;
use std::ptr;

/// Reports whether a call interrupted by a signal should be restarted, as far as can be determined: the
/// kernel never restarts `poll` and similar calls, and they do not report which signal it was. Returns true
/// if there are handlers and all were installed with `SA_RESTART`. Without any handler, returns false,
/// because a handler without the flag may have removed itself.
pub fn signals_restart_calls() -> bool {
    /// Signals that only a thread's own instructions raise, and therefore never a waiting thread.
    const SYNCHRONOUS_SIGNALS: [libc::c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];
    let mut any = false;
    let all = (1..=libc::SIGRTMAX()).filter(|signal| !SYNCHRONOUS_SIGNALS.contains(signal)).all(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: with a null new action the call only writes the current action to `action`, which has
        // room for it and is initialised: with zeros, then by the call.
        let action = unsafe {
            // The C library reserves a few signals for itself.
            if libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) != 0 {
                return true;
            }
            action.assume_init()
        };
        let is_handled = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        any |= is_handled;
        !is_handled || action.sa_flags & libc::SA_RESTART != 0
    });
    any && all
}
