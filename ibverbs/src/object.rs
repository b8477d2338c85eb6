//! What C has a pointer to: a struct of C's, and behind it what is Rust's.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What C has a pointer to.
///
/// # Safety
/// The type is `#[repr(C)]` and its first field is a `Shown<Self::C>`.
pub unsafe trait Object: Sized {
    /// C's struct.
    type C;

    /// Its own part of C's pointer.
    ///
    /// # Safety
    /// `c` comes from [`give`](Self::give) of this type, and was not taken back.
    unsafe fn of<'a>(c: *mut Self::C) -> &'a Self {
        // SAFETY: C's struct is the first field.
        unsafe { &*c.cast() }
    }

    /// Hands it to C.
    fn give(self) -> *mut Self::C {
        Box::into_raw(Box::new(self)).cast()
    }

    /// Has it back, to be dropped.
    ///
    /// # Safety
    /// As of [`of`](Self::of); and nobody uses it any more.
    unsafe fn take(c: *mut Self::C) -> Box<Self> {
        // SAFETY: it was made by `give`.
        unsafe { Box::from_raw(c.cast()) }
    }
}

/// C's struct: programs read and write it at any time.
#[repr(transparent)]
pub struct Shown<C>(UnsafeCell<C>);

impl<C> Shown<C> {
    pub fn new(c: C) -> Shown<C> {
        Shown(UnsafeCell::new(c))
    }

    pub fn get(&self) -> *mut C {
        self.0.get()
    }
}

// SAFETY: what is in it belongs to the program, which minds its own threads; this library writes it only where libibverbs
// does.
unsafe impl<C> Sync for Shown<C> {}
// SAFETY: the same.
unsafe impl<C> Send for Shown<C> {}

/// How many objects are made of one, which therefore has to stay. One that was imported has a user more until it is
/// unimported, which programs may do before they destroy what they have made of it: then it goes with its last user.
#[derive(Default)]
pub struct Users {
    count: AtomicUsize,
    is_imported: bool,
}

impl Users {
    pub fn of_import() -> Users {
        Users { count: AtomicUsize::new(1), is_imported: true }
    }

    pub fn add(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// One less; whether the object is to go, which nobody else finds then.
    pub fn remove(&self) -> bool {
        // Looked at first: where it is not the last, the object may be gone.
        let is_imported = self.is_imported;
        self.count.fetch_sub(1, Ordering::AcqRel) == 1 && is_imported
    }

    pub fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > usize::from(self.is_imported)
    }
}
