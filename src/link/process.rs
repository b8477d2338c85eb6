//! Which process this is: a child of fork has a copy of all that its parent had, but none of its threads, and none of its
//! [`OwnFd`]s. And what its signals do.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Forks between the process that the program began as and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A process, among those that have a copy of the same memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process(u32);

impl Process {
    /// This one.
    pub fn current() -> Process {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the handler does nothing but count, and close. Where there is no room for it, children pass for their parents.
            unsafe { libc::pthread_atfork(None, None, Some(count)) };
        });
        Process(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is this one. As cheap as can be: asked with every turn of a NIC.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for slot in &OWN {
        let fd = slot.load(Ordering::Relaxed);
        if fd != NONE {
            slot.store(NONE, Ordering::Relaxed);
            // SAFETY: this process's copy of a descriptor, which its owner leaves alone where it is a copy.
            unsafe { libc::close(fd) };
        }
    }
}

/// Descriptors that children of fork are to have no copies of. Without a lock, which a thread could have while another one
/// forks.
static OWN: [AtomicI32; 4096] = [const { AtomicI32::new(NONE) }; 4096];

const NONE: i32 = -1;

/// A descriptor that a child of fork has no copy of; what else is closed with the last copy ends with this one. Should there be
/// too many, children have copies as of any.
#[derive(Debug)]
pub(crate) struct OwnFd {
    fd: ManuallyDrop<OwnedFd>,
    slot: Option<&'static AtomicI32>,
    process: Process,
}

impl OwnFd {
    pub fn new(fd: OwnedFd) -> OwnFd {
        let (process, number) = (Process::current(), fd.as_raw_fd());
        let takes = |slot: &&AtomicI32| {
            slot.compare_exchange(NONE, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        OwnFd { fd: ManuallyDrop::new(fd), slot: OWN.iter().find(takes), process }
    }
}

impl AsFd for OwnFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            // In a child it is closed, and the number may be another's.
            if !self.process.is_current() {
                return;
            }
            slot.store(NONE, Ordering::Relaxed);
        }
        // SAFETY: it is dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

/// Whether a call that a signal has interrupted is to go on, as far as can be told: `poll` and its like never do, and do not
/// say which signal it was. So it is if all that this process handles are handled so that calls go on afterwards
/// (`SA_RESTART`), and any is: whoever handled it otherwise may have taken itself away.
pub fn signals_restart_calls() -> bool {
    /// They come of what a thread does itself, which does not wait meanwhile.
    const OWN_DOING: [libc::c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];
    let mut any = false;
    let all = (1..=libc::SIGRTMAX()).filter(|signal| !OWN_DOING.contains(signal)).all(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only asks; the struct has room for what is there.
        let action = unsafe {
            // The C library keeps a few for itself.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process() {
        let parent = Process::current();
        // SAFETY: the child does nothing but compare and end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = Process::current();
            // SAFETY: it ends here, without what a test's process does at its end.
            unsafe { libc::_exit(i32::from(parent.is_current() || !own.is_current())) };
        }
        let mut status = -1;
        // SAFETY: the call writes to `status`.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(parent.is_current());
    }
}
