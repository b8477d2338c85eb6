//! Background threads of the library, which must not handle the program's signals.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder, JoinHandle};

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
    // Not a channel: the thread would free memory that the caller has allocated after it started the thread,
    // which ThreadSanitizer reports as a race, because it does not see the library's atomic operations.
    let is_ready = Arc::new(AtomicBool::new(false));
    let (ready, caller) = (is_ready.clone(), thread::current());
    let handle = Builder::new().name(name).spawn(move || {
        drop(black_box(Box::new(0)));
        ready.store(true, Ordering::Release);
        caller.unpark();
        drop((ready, caller));
        run()
    });
    previous.thread_set_mask()?;
    let handle = handle?;
    while !is_ready.load(Ordering::Acquire) {
        thread::park();
    }
    Ok(handle)
}
