//! What C has a pointer to: a struct of C's, and behind it what is Rust's.

use std::any::TypeId;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::known;

/// What C has a pointer to.
///
/// # Safety
/// The type is `#[repr(C)]` and its first field is a `Shown<Self::C>`.
pub unsafe trait Object: Sized + 'static {
    /// C's struct.
    type C;

    /// The handle in C's struct, 0 where the struct has none. `None` for objects that are not recorded ([`known`]).
    fn handle(_: &Self::C) -> Option<u32> {
        None
    }

    /// Whether a program's pointer is to one of these that was given out and not taken back, with its handle as it was. The
    /// pointer may be any.
    fn is_known(c: *mut Self::C) -> bool {
        let found = known::find(c.addr(), TypeId::of::<Self>());
        // SAFETY: an object of this type is there.
        found.is_some_and(|handle| Self::handle(unsafe { &*c }) == Some(handle))
    }

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
        let c: *mut Self::C = Box::into_raw(Box::new(self)).cast();
        // SAFETY: it was just made.
        if let Some(handle) = Self::handle(unsafe { &*c }) {
            known::add(c.addr(), TypeId::of::<Self>(), handle);
        }
        c
    }

    /// Has it back, to be dropped.
    ///
    /// # Safety
    /// As of [`of`](Self::of); and nobody uses it any more.
    unsafe fn take(c: *mut Self::C) -> Box<Self> {
        known::remove(c.addr());
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
