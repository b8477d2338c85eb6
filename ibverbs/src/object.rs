//! Objects of the C interface: a C struct to which the program holds a pointer, followed by Rust state.
//!
//! The `SAFETY` comments of this crate rely on the contract of the C interface (`verbs.h`, `rdma_cma.h`, the
//! man pages). A *live* object is one that a create, open or import call returned and that has not yet been
//! destroyed.
//!
//! - A pointer argument names a live object of the declared type, or is null where the call allows it.
//! - The program does not destroy an object while another call uses it, nor before the objects made from it.
//! - A struct, list or buffer argument is valid for the duration of the call, and no other thread accesses
//!   it.

use std::any::TypeId;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;

use crate::live_objects::{self, Identity};

/// A Rust type that begins with a C struct to which programs hold pointers. Use [`ffi_object!`] to implement
/// it.
///
/// # Safety
/// The type has a `FfiCell<C>` at [`OFFSET`](Self::OFFSET), where `C` is [`Self::C`] or a longer C struct
/// that begins with it.
pub(crate) unsafe trait FfiObject: Sized + 'static {
    /// The C struct that programs see.
    type C;

    /// Offset of the C struct in the object. Each conversion asserts at compile time that it is 0.
    const OFFSET: usize;

    /// Returns the identity of the object, from its C struct. `None` means that objects of this type are not
    /// recorded in [`live_objects`].
    fn identity(_: &Self::C) -> Option<Identity> {
        None
    }

    /// Reports whether `c` points to a live object of this type whose fields `context` and `handle` are
    /// unchanged. The pointer may be dangling.
    fn is_live(c: *mut Self::C) -> bool {
        let found = live_objects::find(c.addr(), TypeId::of::<Self>());
        // SAFETY: `live_objects` has an entry of this type at `c`: `into_raw` allocated the object and
        // `from_raw` has not freed it, so `c` points to an initialised `Self` that begins with a `Self::C`.
        found.is_some_and(|identity| Self::identity(unsafe { &*c }) == Some(identity))
    }

    /// Returns the object that begins with the C struct `c`.
    ///
    /// # Safety
    /// `c` comes from [`into_raw`](Self::into_raw) of this type and is not passed to
    /// [`from_raw`](Self::from_raw) during `'a`.
    unsafe fn from_raw_ref<'a>(c: *mut Self::C) -> &'a Self {
        const { assert!(Self::OFFSET == 0) };
        // SAFETY: `into_raw` obtained `c` from a `Box<Self>`, whose address is that of the C struct, as the
        // assertion says. Only shared references are made until `from_raw`, and the C struct lies in an
        // `UnsafeCell`.
        unsafe { &*c.cast() }
    }

    /// Returns the object that begins with the C struct `c`, which may be dangling.
    ///
    /// # Errors
    /// `EINVAL` if it [is not live](Self::is_live).
    ///
    /// # Safety
    /// A live object is not passed to [`from_raw`](Self::from_raw) during `'a`.
    unsafe fn live<'a>(c: *mut Self::C) -> Result<&'a Self, c_int> {
        // SAFETY: a live object comes from `into_raw`, and the caller guarantees the rest.
        if Self::is_live(c) { Ok(unsafe { Self::from_raw_ref(c) }) } else { Err(libc::EINVAL) }
    }

    /// Moves the object to the heap and returns a pointer to its C struct, for the program to hold.
    fn into_raw(self) -> *mut Self::C {
        self.into_raw_in(Box::new_uninit())
    }

    /// Like [`into_raw`](Self::into_raw), but moves the object to the given memory.
    fn into_raw_in(self, memory: Box<MaybeUninit<Self>>) -> *mut Self::C {
        const { assert!(Self::OFFSET == 0) };
        let c: *mut Self::C = Box::into_raw(Box::write(memory, self)).cast();
        // SAFETY: the object was written on the line above and begins with the C struct, as the assertion
        // says; no other thread has a pointer to it yet.
        if let Some(identity) = Self::identity(unsafe { &*c }) {
            live_objects::add(c.addr(), TypeId::of::<Self>(), identity);
        }
        c
    }

    /// Takes ownership of an object back from the program.
    ///
    /// # Safety
    /// The requirements of [`from_raw_ref`](Self::from_raw_ref), and no other thread uses the object any
    /// more.
    unsafe fn from_raw(c: *mut Self::C) -> Box<Self> {
        const { assert!(Self::OFFSET == 0) };
        live_objects::remove(c.addr());
        // SAFETY: `into_raw` made `c` with `Box::into_raw` of this type, and the caller passes the only
        // remaining pointer to it.
        unsafe { Box::from_raw(c.cast()) }
    }
}

/// Implements [`FfiObject`] for a struct, with the C struct in its field `c`: `Object { c: C }`, or `Object {
/// c: Longer as C }` if programs see the beginning of a longer C struct. A list of the fields that make the
/// [`Identity`] follows for objects that are recorded in [`live_objects`]. A name after the C struct is that
/// of the field with the [`Users`] of an object that others are made from. Compilation fails if `c` is not
/// the first field or has a different type.
macro_rules! ffi_object {
    ($object:ident { c: $c:ident $(, $users:ident)? } $($identity:tt)?) => {
        $crate::object::ffi_object! { $object { c: $c as $c } $($identity)? }

        $(impl $crate::object::Used for $object {
            fn users(&self) -> &$crate::object::Users {
                &self.$users
            }
        })?
    };
    (@context $c:ident) => { 0 };
    (@context $c:ident context) => { $c.context.addr() };
    (@handle $c:ident) => { 0 };
    (@handle $c:ident handle) => { $c.handle };
    ($object:ident { c: $whole:ident as $c:ident } $([$($context:ident $(, $handle:ident)?)?])?) => {
        const _: fn(&$object) -> &$crate::object::FfiCell<$whole> = |object| &object.c;
        const _: () = assert!($whole::LAYOUT.begins_with(&$c::LAYOUT));
        const _: () = assert!(<$object as $crate::object::FfiObject>::OFFSET == 0);

        // SAFETY: `OFFSET` is that of the field `c`, whose type the first constant checks. `$whole` begins with
        // `$c`, as the second constant checks.
        unsafe impl $crate::object::FfiObject for $object {
            type C = $c;
            const OFFSET: usize = std::mem::offset_of!($object, c);
            $(
                fn identity(_c: &$c) -> Option<$crate::live_objects::Identity> {
                    Some($crate::live_objects::Identity {
                        context: $crate::object::ffi_object!(@context _c $($context)?),
                        handle: $crate::object::ffi_object!(@handle _c $($($handle)?)?),
                    })
                }
            )?
        }
    };
}
pub(crate) use ffi_object;

/// A cell for the parts of an [`FfiObject`] that are modified through raw pointers: the C struct, which
/// programs read and write at any time, and state guarded by a lock beside the cell.
#[repr(transparent)]
pub(crate) struct FfiCell<C>(UnsafeCell<C>);

impl<C> FfiCell<C> {
    /// Makes a cell.
    pub(crate) fn new(c: C) -> FfiCell<C> {
        FfiCell(UnsafeCell::new(c))
    }

    /// Returns a pointer to the content, valid until the cell is moved or dropped.
    pub(crate) fn get(&self) -> *mut C {
        self.0.get()
    }
}

// SAFETY: a shared `FfiCell` only returns a raw pointer. Accesses through it are synchronised by the program,
// whose threads follow the rules of libibverbs for C structs (this library writes them only where libibverbs
// does), or by the lock next to the cell.
unsafe impl<C> Sync for FfiCell<C> {}
// SAFETY: a cell that is moved to another thread gives that thread raw pointers only, as a shared one does.
// Moving it uses none of the pointers in the C struct, and nothing in that is bound to a thread.
unsafe impl<C> Send for FfiCell<C> {}

/// State of a sequence of C calls by one thread. The first call locks `lock` and the last call unlocks it. In
/// between, only this thread accesses `state` and the C struct of the object.
pub(crate) struct Session<T> {
    pub lock: RawMutex,
    pub state: FfiCell<T>,
}

impl<T: Default> Default for Session<T> {
    fn default() -> Session<T> {
        Session { lock: RawMutex::INIT, state: FfiCell::new(T::default()) }
    }
}

/// Number of users of an object: the objects created from it, which prevent its destruction. For an imported
/// object, the import itself is one more user. Programs may unimport the object before they destroy the
/// objects created from it; it is then freed with its last user.
#[derive(Default)]
pub(crate) struct Users {
    count: AtomicUsize,
    is_imported: bool,
}

impl Users {
    /// Returns the counter of an imported object, with the import itself as the first user.
    pub(crate) fn imported() -> Users {
        Users { count: AtomicUsize::new(1), is_imported: true }
    }

    /// Counts one more user.
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes one user. Returns true if the object was imported and has no users left: no other thread can
    /// reach it, and the caller must free it.
    pub(crate) fn remove(&self) -> bool {
        // Read before the decrement: after it, the thread that removes the last user may free the object.
        let is_imported = self.is_imported;
        self.count.fetch_sub(1, Ordering::AcqRel) == 1 && is_imported
    }

    /// Reports whether the object has users other than the import itself.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > usize::from(self.is_imported)
    }
}

/// An object that others are made from.
pub(crate) trait Used: FfiObject {
    /// Returns the number of its users.
    fn users(&self) -> &Users;

    /// Removes one user. An imported object, whose import counts as a user, is freed with the last of them.
    ///
    /// # Safety
    /// `c` is live and had that user.
    unsafe fn release(c: *mut Self::C) {
        // SAFETY: the user that is removed kept the object alive until here. If `remove` returns true,
        // neither an import nor another user refers to it any more, so no other thread can reach it.
        unsafe {
            if Self::from_raw_ref(c).users().remove() {
                drop(Self::from_raw(c));
            }
        }
    }
}

/// One of the [`Users`] of an object, which keeps it from being destroyed.
pub(crate) struct Use<T: Used>(*mut T::C);

impl<T: Used> Use<T> {
    /// Counts one more user of an object.
    ///
    /// # Safety
    /// `c` is live, and not destroyed during the call.
    pub(crate) unsafe fn new(c: *mut T::C) -> Use<T> {
        // SAFETY: the caller guarantees that `c` is live.
        unsafe { T::from_raw_ref(c) }.users().add();
        Use(c)
    }

    /// Counts one more user of an object, or returns `None` if `c` is null.
    ///
    /// # Safety
    /// The requirements of [`new`](Self::new), unless `c` is null.
    pub(crate) unsafe fn given(c: *mut T::C) -> Option<Use<T>> {
        // SAFETY: the pointer is not null, so the caller guarantees that it is live.
        (!c.is_null()).then(|| unsafe { Use::new(c) })
    }
}

impl<T: Used> Deref for Use<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this user keeps the object alive.
        unsafe { T::from_raw_ref(self.0) }
    }
}

impl<T: Used> Drop for Use<T> {
    fn drop(&mut self) {
        // SAFETY: this user was counted by `new`, and kept the object alive until here.
        unsafe { T::release(self.0) };
    }
}

/// Destroys an object that has no users.
///
/// # Errors
/// `EBUSY` if it has.
///
/// # Safety
/// `c` is live. The program gives up its pointer.
pub(crate) unsafe fn destroy_unused<T: Used>(c: *mut T::C) -> Result<(), c_int> {
    // SAFETY: the caller passes a live object; without users, no other one refers to it.
    unsafe {
        if T::from_raw_ref(c).users().any() {
            return Err(libc::EBUSY);
        }
        drop(T::from_raw(c));
    }
    Ok(())
}
