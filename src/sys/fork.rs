//! Fork detection. A forked child has a copy of its parent's memory, but none of its threads and none of its
//! descriptors of type `CloseOnForkFd`.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Number of forks between the program's original process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Identity of a process among those that have copies of the same memory as a result of `fork`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForkGeneration(u32);

impl ForkGeneration {
    /// Returns the identity of the current process.
    pub fn current() -> ForkGeneration {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: `after_fork_in_child` has the required signature, lives as long as the program, does
            // not unwind, and calls only atomic operations and `close`, which are allowed in a child of fork.
            // If there is no memory to register it, a child is mistaken for its parent.
            unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        });
        ForkGeneration(FORKS.load(Ordering::Relaxed))
    }

    /// Reports whether this is the current process. Must be cheap, because a NIC calls it in every turn.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

extern "C" fn after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for slot in &CLOSE_ON_FORK {
        let fd = slot.load(Ordering::Relaxed);
        if fd != NONE {
            slot.store(NONE, Ordering::Relaxed);
            // SAFETY: `fd` is this process's copy of a descriptor that a `CloseOnForkFd` owns; that
            // `CloseOnForkFd` does not close it in another process than its own, so the descriptor is closed
            // once.
            unsafe { libc::close(fd) };
        }
    }
}

/// Descriptors to close in forked children. The table is lock-free, because another thread could be holding a
/// lock at the time of the fork.
static CLOSE_ON_FORK: [AtomicI32; 4096] = [const { AtomicI32::new(NONE) }; 4096];

const NONE: i32 = -1;

/// A descriptor that is closed in forked children, so that the underlying file or socket closes as soon as
/// the parent drops it. If the table is full, children keep a copy, as they do of any other descriptor.
#[derive(Debug)]
pub(crate) struct CloseOnForkFd {
    fd: ManuallyDrop<OwnedFd>,
    slot: Option<&'static AtomicI32>,
    generation: ForkGeneration,
}

impl CloseOnForkFd {
    pub fn new(fd: OwnedFd) -> CloseOnForkFd {
        let (generation, number) = (ForkGeneration::current(), fd.as_raw_fd());
        let try_reserve = |slot: &&AtomicI32| {
            slot.compare_exchange(NONE, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        CloseOnForkFd { fd: ManuallyDrop::new(fd), slot: CLOSE_ON_FORK.iter().find(try_reserve), generation }
    }

    /// Reports whether this process created the descriptor, and not its parent.
    pub fn is_of_this_process(&self) -> bool {
        self.generation.is_current()
    }
}

impl AsFd for CloseOnForkFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for CloseOnForkFd {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            // In a child the descriptor is closed already, and its number may be in use for another one.
            if !self.generation.is_current() {
                return;
            }
            slot.store(NONE, Ordering::Relaxed);
        }
        // SAFETY: `drop` runs once, nothing else drops `self.fd`, and it is not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_child_is_recognised_as_another_process() {
        let parent = ForkGeneration::current();
        // SAFETY: the child only compares and exits; it touches no lock or allocator.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = ForkGeneration::current();
            // SAFETY: `_exit` takes no pointers and skips the exit handlers of the test process.
            unsafe { libc::_exit(i32::from(parent.is_current() || !own.is_current())) };
        }
        let mut status = -1;
        // SAFETY: the pointer is to `status`, a live integer, which the call writes.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(parent.is_current());
    }
}
