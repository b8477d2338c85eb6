//! Registry of the objects that programs hold pointers to, by address: tells a pointer to a destroyed object
//! from a valid one without dereferencing it.

use std::any::TypeId;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;

/// Content of the registry.
struct Objects {
    /// Type and handle of each live object, by address.
    live: BTreeMap<usize, (TypeId, u32)>,
    /// Type and address of destroyed objects whose memory is kept, for reuse by the next object of the same
    /// type.
    places: Vec<(TypeId, usize)>,
}

/// The registry behind a mutex of the C library, which a forking thread holds across `fork`: the child finds
/// it unlocked and the registry consistent.
struct Known {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    objects: UnsafeCell<Objects>,
}

// SAFETY: `objects` is only accessed by `with`, with the mutex locked.
unsafe impl Sync for Known {}

static KNOWN: Known = Known {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    objects: UnsafeCell::new(Objects { live: BTreeMap::new(), places: Vec::new() }),
};

extern "C" fn lock() {
    // SAFETY: the mutex is static and statically initialised, and no thread locks it twice: `with` runs no
    // code that takes it again.
    unsafe { libc::pthread_mutex_lock(KNOWN.lock.get()) };
}

extern "C" fn unlock() {
    // SAFETY: the mutex was locked by this thread, or, in the child of a fork, by the parent's thread of
    // which this one is a copy.
    unsafe { libc::pthread_mutex_unlock(KNOWN.lock.get()) };
}

/// Registers the fork handlers when the library is loaded: if that happened at the first use, another thread
/// could fork in the middle of it.
extern "C" fn prepare() {
    // SAFETY: the handlers remain valid until the process ends, because the library is never unloaded (`-z
    // nodelete`).
    unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(unlock)) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;

/// Runs `f` with the registry locked.
fn with<R>(f: impl FnOnce(&mut Objects) -> R) -> R {
    lock();
    // SAFETY: the mutex is locked, so this is the only reference. A panic in `f` cannot leave it locked: it
    // ends the process at the C ABI.
    let result = f(unsafe { &mut *KNOWN.objects.get() });
    unlock();
    result
}

/// Records a live object.
pub fn add(address: usize, kind: TypeId, handle: u32) {
    with(|objects| objects.live.insert(address, (kind, handle)));
}

/// Removes an object that is about to be destroyed.
pub fn remove(address: usize) {
    with(|objects| objects.live.remove(&address));
}

/// Returns the recorded handle of the object of type `kind` at `address`.
pub fn find(address: usize, kind: TypeId) -> Option<u32> {
    with(|objects| objects.live.get(&address).filter(|(of, _)| *of == kind).map(|(_, handle)| *handle))
}

/// Keeps the memory of a removed object for reuse.
pub fn keep_place(address: usize, kind: TypeId) {
    with(|objects| objects.places.push((kind, address)));
}

/// Returns the address of kept memory for an object of type `kind`, if there is any.
pub fn take_place(kind: TypeId) -> Option<usize> {
    with(|objects| {
        let at = objects.places.iter().position(|(of, _)| *of == kind)?;
        Some(objects.places.swap_remove(at).1)
    })
}
