//! Background threads of the library, which must not handle the program's signals.

use std::hint::black_box;
use std::io;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Spawns a thread with all signals blocked, which leaves them to the program's own threads. SIGSEGV and
/// SIGBUS stay unblocked: the thread's own instructions may raise them, and a blocked one kills the process
/// even if there is a handler.
///
/// Returns when the thread has its memory arena. Open MPI and UCX patch the code of `munmap` and `madvise` while a
/// program starts, and a thread that is in one of these functions crashes. The C library calls them for a thread's
/// first allocation and at its end, so threads neither start nor end in the background.
pub fn spawn_background<T: Send + 'static>(
    name: String,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A new thread inherits the signal mask of its creator.
    let mut blocked = SigSet::all();
    blocked.remove(Signal::SIGSEGV);
    blocked.remove(Signal::SIGBUS);
    let previous = blocked.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let (ready_tx, ready_rx) = mpsc::sync_channel(1);
    let handle = Builder::new().name(name).spawn(move || {
        drop(black_box(Box::new(0)));
        let _ = ready_tx.send(());
        run()
    });
    previous.thread_set_mask()?;
    let handle = handle?;
    let _ = ready_rx.recv();
    Ok(handle)
}
