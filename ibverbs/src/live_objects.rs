//! Registry of the objects to which programs hold pointers, by address. It distinguishes a pointer to a
//! destroyed object from a valid one without dereferencing it.

use std::any::TypeId;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;

/// The fields of a C struct by which the kernel finds an object: the context, that is, the file to which a
/// system call goes, and the handle. Programs can overwrite both.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Address of the `ibv_context`, or 0 for a struct without one.
    pub context: usize,
    /// The `handle` field, or 0 for a struct without one.
    pub handle: u32,
}

/// Content of the registry.
struct Registry {
    /// Type and identity of each live object, by address.
    live: BTreeMap<usize, (TypeId, Identity)>,
    /// Addresses of destroyed memory windows whose memory is kept, for reuse by the next window.
    free_memory: Vec<usize>,
}

/// The registry, protected by a pthread mutex that a forking thread holds across `fork`: in the child, the
/// mutex is unlocked and the registry is consistent.
struct LiveObjects {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    registry: UnsafeCell<Registry>,
}

// SAFETY: `registry` is only accessed by `with`, with the mutex locked.
unsafe impl Sync for LiveObjects {}

static LIVE_OBJECTS: LiveObjects = LiveObjects {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    registry: UnsafeCell::new(Registry { live: BTreeMap::new(), free_memory: Vec::new() }),
};

extern "C" fn lock() {
    // SAFETY: the mutex is static and statically initialised, and no thread locks it twice: `with` runs no
    // code that locks it again.
    unsafe { libc::pthread_mutex_lock(LIVE_OBJECTS.lock.get()) };
}

extern "C" fn unlock() {
    // SAFETY: the mutex was locked by this thread, or, in the child of a fork, by the parent's thread of
    // which this one is a copy.
    unsafe { libc::pthread_mutex_unlock(LIVE_OBJECTS.lock.get()) };
}

/// Registers the fork handlers. It runs when the library is loaded, because later another thread might fork
/// during the registration.
extern "C" fn register_fork_handlers() {
    // SAFETY: the handlers remain valid until the process ends, because the library is never unloaded (`-z
    // nodelete`).
    unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(unlock)) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER_FORK_HANDLERS: extern "C" fn() = register_fork_handlers;

/// Runs `f` with the registry locked.
fn with<R>(f: impl FnOnce(&mut Registry) -> R) -> R {
    lock();
    // SAFETY: the mutex is locked, so this is the only reference. A panic in `f` cannot leave it locked: it
    // ends the process at the C ABI.
    let result = f(unsafe { &mut *LIVE_OBJECTS.registry.get() });
    unlock();
    result
}

/// Records a live object.
pub(crate) fn add(address: usize, kind: TypeId, identity: Identity) {
    with(|registry| registry.live.insert(address, (kind, identity)));
}

/// Removes an object that is about to be destroyed.
pub(crate) fn remove(address: usize) {
    with(|registry| registry.live.remove(&address));
}

/// Returns the recorded identity of the object of type `kind` at `address`.
pub(crate) fn find(address: usize, kind: TypeId) -> Option<Identity> {
    with(|registry| {
        let entry = registry.live.get(&address).filter(|(entry_kind, _)| *entry_kind == kind);
        entry.map(|(_, identity)| *identity)
    })
}

/// Keeps the memory of a removed memory window for reuse.
pub(crate) fn keep_memory(address: usize) {
    with(|registry| registry.free_memory.push(address));
}

/// Takes kept memory for a memory window, if there is any, and returns its address.
pub(crate) fn take_kept_memory() -> Option<usize> {
    with(|registry| registry.free_memory.pop())
}
