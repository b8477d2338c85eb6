//! Threads that wait for a socket.

use std::cell::RefCell;
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use urxe::sys::fork::ForkGeneration;

/// Eventfd that wakes one waiting thread.
pub(crate) type Waker = Arc<EventFd>;

thread_local! {
    /// This thread's waker, created at its first wait, with the process that created it.
    static THREAD_WAKER: RefCell<Option<(ForkGeneration, Waker)>> = const { RefCell::new(None) };
}

/// Returns this thread's waker. Creates one if the thread has none and `make` is set.
pub(crate) fn thread_waker(make: bool) -> Option<Waker> {
    let get = |cell: &RefCell<Option<(ForkGeneration, Waker)>>| {
        let mut slot = cell.borrow_mut();
        // A forked child shares the eventfd of its parent's waker, so it needs an eventfd of its own. The child
        // does not close the inherited descriptor, because the program may have closed it already and opened
        // another descriptor with the same number.
        std::mem::forget(slot.take_if(|(process, _)| !process.is_current()));
        if slot.is_none() && make {
            let waker = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).ok()?;
            *slot = Some((ForkGeneration::current(), Arc::new(waker)));
        }
        slot.as_ref().map(|(_, waker)| waker.clone())
    };
    // The thread-local is destroyed only while the thread exits.
    THREAD_WAKER.try_with(get).ok().flatten()
}

fn wake(waker: &Waker) {
    // Fails only if the counter is full, and then the thread is awake.
    let _ = waker.write(1);
}

/// Wakers of the threads that wait for a socket.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Vec<Waker>>);

impl Watchers {
    pub(crate) fn add(&self, waker: &Waker) {
        self.0.lock().push(waker.clone());
    }

    pub(crate) fn remove(&self, waker: &Waker) {
        let mut watchers = self.0.lock();
        if let Some(at) = watchers.iter().position(|other| Arc::ptr_eq(other, waker)) {
            watchers.swap_remove(at);
        }
    }

    /// Wakes all waiting threads except the calling one. Called after the socket has changed.
    pub(crate) fn wake(&self) {
        let watchers = self.0.lock();
        if !watchers.is_empty() {
            let own = thread_waker(false);
            let is_own = |waker: &Waker| own.as_ref().is_some_and(|own| Arc::ptr_eq(own, waker));
            watchers.iter().filter(|waker| !is_own(waker)).for_each(wake);
        }
    }

    /// Wakes all waiting threads. Called when the socket has a new descriptor to wait for: a thread that
    /// processes this change in the last look before it sleeps would otherwise sleep without the descriptor.
    pub(crate) fn wake_all(&self) {
        self.0.lock().iter().for_each(wake);
    }

    /// Reports whether no thread waits.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
