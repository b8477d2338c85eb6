use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow};

/// A thread that takes none of the program's signals, which are for the program's own threads.
pub(crate) fn spawn<T: Send + 'static>(
    name: String,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A thread inherits the mask.
    let programs = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let spawned = Builder::new().name(name).spawn(run);
    programs.thread_set_mask()?;
    spawned
}
