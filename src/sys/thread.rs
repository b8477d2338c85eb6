//! Background threads of the library, which must not handle the program's signals.

use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Spawns a thread with all signals blocked, which leaves them to the program's own threads. SIGSEGV and
/// SIGBUS stay unblocked: the thread's own instructions may raise them, and a blocked one kills the process
/// even if there is a handler.
pub fn spawn_background<T: Send + 'static>(
    name: String,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A new thread inherits the signal mask of its creator.
    let mut blocked = SigSet::all();
    blocked.remove(Signal::SIGSEGV);
    blocked.remove(Signal::SIGBUS);
    let previous = blocked.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let handle = Builder::new().name(name).spawn(run);
    previous.thread_set_mask()?;
    handle
}
