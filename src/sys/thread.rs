//! Background threads of the library, which must not handle the program's signals.

use std::hint::black_box;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use super::pinned::mark_unmapped;

/// Spawns a thread with all signals blocked, which leaves them to the program's own threads. SIGSEGV and
/// SIGBUS stay unblocked: the thread's own instructions may raise them, and a blocked one kills the process
/// even if there is a handler.
///
/// Returns when the thread has its memory arena. Open MPI and UCX patch the code of `munmap` and `madvise`
/// while a program starts, and a thread that is in one of these functions crashes. The C library calls them
/// for a thread's first allocation and at its end, so threads neither start nor end in the background.
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
        report_stack();
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

/// Reports the mapping of the thread's stack to [`pinned`](super::pinned).
fn report_stack() {
    let (mut attributes, mut at, mut len) = (MaybeUninit::uninit(), null_mut(), 0);
    // SAFETY: `pthread_getattr_np` initialises the attributes of the running thread, unless it fails; the
    // other pointers are to local variables.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0 {
            libc::pthread_attr_getstack(attributes.as_ptr(), &mut at, &mut len);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            mark_unmapped(at.addr(), len);
        }
    }
}
