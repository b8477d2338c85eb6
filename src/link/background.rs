use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// A thread that takes none of the program's signals, which are for the program's own threads, but for those that come of what
/// the thread itself does: a blocked one ends the process though there is a handler for it.
pub(crate) fn spawn<T: Send + 'static>(
    name: String,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A thread inherits the mask.
    let mut others = SigSet::all();
    others.remove(Signal::SIGSEGV);
    others.remove(Signal::SIGBUS);
    let programs = others.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let spawned = Builder::new().name(name).spawn(run);
    programs.thread_set_mask()?;
    spawned
}
