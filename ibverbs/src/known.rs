//! Objects that programs have pointers to, by address: a pointer to one that is gone can be told from a good one without following
//! it.

use std::any::TypeId;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::Once;

/// The type of each, and its handle.
type Objects = BTreeMap<usize, (TypeId, u32)>;

/// A mutex of the C library, which a forking thread holds: its child finds it free and the objects consistent.
struct Known {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    objects: UnsafeCell<Objects>,
}

// SAFETY: the objects are used with the mutex locked.
unsafe impl Sync for Known {}

static KNOWN: Known = Known {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    objects: UnsafeCell::new(BTreeMap::new()),
};

extern "C" fn lock() {
    // SAFETY: the mutex is static, and no thread locks it twice.
    unsafe { libc::pthread_mutex_lock(KNOWN.lock.get()) };
}

extern "C" fn unlock() {
    // SAFETY: this thread, or in a child of fork the one that it is a copy of, has locked it.
    unsafe { libc::pthread_mutex_unlock(KNOWN.lock.get()) };
}

fn with<R>(f: impl FnOnce(&mut Objects) -> R) -> R {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        // SAFETY: the functions stay: the library is never unloaded.
        unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(unlock)) };
    });
    lock();
    // SAFETY: the mutex is locked. A panic in here ends the process at the C ABI.
    let result = f(unsafe { &mut *KNOWN.objects.get() });
    unlock();
    result
}

pub fn add(address: usize, kind: TypeId, handle: u32) {
    with(|objects| objects.insert(address, (kind, handle)));
}

pub fn remove(address: usize) {
    with(|objects| objects.remove(&address));
}

/// The handle of the object of a type at an address.
pub fn find(address: usize, kind: TypeId) -> Option<u32> {
    with(|objects| objects.get(&address).filter(|(of, _)| *of == kind).map(|(_, handle)| *handle))
}
