//! Background threads of the library.

use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Spawns a thread that blocks all signals except SIGSEGV and SIGBUS.
pub(crate) fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // The new thread inherits the mask. A blocked fault signal would end the process although it has a handler.
    let mut blocked = SigSet::all();
    blocked.remove(Signal::SIGSEGV);
    blocked.remove(Signal::SIGBUS);
    let previous = blocked.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let spawned = Builder::new().name(name.into()).spawn(f);
    previous.thread_set_mask()?;
    spawned
}
