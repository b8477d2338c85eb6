//! Background threads of the library.

use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Spawns a thread that leaves the program's signals to the program's own threads. SIGSEGV and SIGBUS stay
/// unblocked: the thread's own actions raise them, and a blocked one would end the process even though there
/// is a handler.
pub(crate) fn spawn<T: Send + 'static>(
    name: String,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A new thread inherits the signal mask of its creator.
    let mut others = SigSet::all();
    others.remove(Signal::SIGSEGV);
    others.remove(Signal::SIGBUS);
    let programs = others.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let spawned = Builder::new().name(name).spawn(run);
    programs.thread_set_mask()?;
    spawned
}
