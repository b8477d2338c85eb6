//! Background threads of the library.

use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Spawns a thread with all signals blocked, so that the program's own threads handle them. SIGSEGV and
/// SIGBUS stay unblocked: the thread's own instructions raise them, and the kernel kills a process whose
/// thread blocks them, even if there is a handler.
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
