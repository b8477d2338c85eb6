//! Objects that programs have pointers to, by address: a pointer to one that is gone can be told from a good one without following
//! it.

use std::any::TypeId;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;

struct Objects {
    /// The type of each, and its handle.
    live: BTreeMap<usize, (TypeId, u32)>,
    /// Places of objects that are gone and whose structs stay, for the next ones of this type.
    places: Vec<(TypeId, usize)>,
}

/// A mutex of the C library, which a forking thread holds: its child finds it free and the objects consistent.
struct Known {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    objects: UnsafeCell<Objects>,
}

// SAFETY: the objects are used with the mutex locked.
unsafe impl Sync for Known {}

static KNOWN: Known = Known {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    objects: UnsafeCell::new(Objects { live: BTreeMap::new(), places: Vec::new() }),
};

extern "C" fn lock() {
    // SAFETY: the mutex is static, and no thread locks it twice.
    unsafe { libc::pthread_mutex_lock(KNOWN.lock.get()) };
}

extern "C" fn unlock() {
    // SAFETY: this thread, or in a child of fork the one that it is a copy of, has locked it.
    unsafe { libc::pthread_mutex_unlock(KNOWN.lock.get()) };
}

/// Registers the functions when the library is loaded: a thread that did so at the first use could be in the middle of it when
/// another one forks.
extern "C" fn prepare() {
    // SAFETY: the functions stay: the library is never unloaded.
    unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(unlock)) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;

fn with<R>(f: impl FnOnce(&mut Objects) -> R) -> R {
    lock();
    // SAFETY: the mutex is locked. A panic in here ends the process at the C ABI.
    let result = f(unsafe { &mut *KNOWN.objects.get() });
    unlock();
    result
}

pub fn add(address: usize, kind: TypeId, handle: u32) {
    with(|objects| objects.live.insert(address, (kind, handle)));
}

pub fn remove(address: usize) {
    with(|objects| objects.live.remove(&address));
}

/// The handle of the object of a type at an address.
pub fn find(address: usize, kind: TypeId) -> Option<u32> {
    with(|objects| objects.live.get(&address).filter(|(of, _)| *of == kind).map(|(_, handle)| *handle))
}

/// Keeps the place of an object that was removed.
pub fn keep_place(address: usize, kind: TypeId) {
    with(|objects| objects.places.push((kind, address)));
}

/// A place that was kept.
pub fn take_place(kind: TypeId) -> Option<usize> {
    with(|objects| {
        let at = objects.places.iter().position(|(of, _)| *of == kind)?;
        Some(objects.places.swap_remove(at).1)
    })
}
