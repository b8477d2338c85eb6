//! Signal handlers of the program.

use std::mem::MaybeUninit;
use std::ptr;

/// Reports whether a call that a signal has interrupted should be restarted, as far as that can be
/// determined. `poll` and similar calls are never restarted by the kernel and do not report the signal. The
/// call is therefore restarted if at least one signal has a handler and all handlers are installed with
/// `SA_RESTART`; without any handler it is not, because a handler without the flag may have removed itself.
pub fn signals_restart_calls() -> bool {
    /// Signals that a thread raises by its own actions; a waiting thread does not raise them.
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
