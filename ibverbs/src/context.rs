//! Contexts (`ibv_context`): open devices. This file depends on none of the verbs, all of which import it;
//! `ops` contains the function table of the C struct, and `open` creates contexts.

use std::mem::offset_of;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::abi::{ibv_context, verbs_context};
use crate::object::FfiCell;
use crate::shared_context::SharedContext;

/// An open device with its C struct. It is not an [`FfiObject`](crate::object::FfiObject), as programs hold a
/// pointer to the last field of the struct and not to the first.
#[repr(C)]
pub(crate) struct Context {
    /// The extended C struct; programs hold a pointer to its last field, `context`.
    c: FfiCell<verbs_context>,
    shared: Arc<SharedContext>,
    /// The descriptor behind `cmd_fd`, which identifies the context to `ibv_import_device`.
    _file: OwnedFd,
}

/// Offset of the `ibv_context` to which programs hold a pointer.
const C_OFFSET: usize = offset_of!(Context, c) + offset_of!(verbs_context, context);

// Programs read fields of `verbs_context` at negative offsets from their pointer, and no fields behind it.
const _: () = assert!(C_OFFSET + size_of::<ibv_context>() == size_of::<verbs_context>());

impl Deref for Context {
    type Target = SharedContext;
    fn deref(&self) -> &SharedContext {
        &self.shared
    }
}

impl Context {
    /// Moves a context to the heap and returns a pointer to its C struct, for the program to hold. `c` is the
    /// content of the struct, and `file` the descriptor in its field `cmd_fd`.
    pub(crate) fn new_raw(c: verbs_context, shared: Arc<SharedContext>, file: OwnedFd) -> *mut ibv_context {
        let context = Box::into_raw(Box::new(Context { c: FfiCell::new(c), shared, _file: file }));
        // SAFETY: `C_OFFSET` is the offset of a field, so the result is inside the allocation of the box.
        unsafe { context.byte_add(C_OFFSET).cast() }
    }

    /// Returns the context behind the pointer that a program holds.
    ///
    /// # Safety
    /// `c` comes from [`new_raw`](Self::new_raw), and is not passed to [`from_raw`](Self::from_raw) during
    /// `'a`.
    pub(crate) unsafe fn from_raw_ref<'a>(c: *mut ibv_context) -> &'a Context {
        // SAFETY: `new_raw` has added the same offset to the address of a boxed `Context`, so the subtraction
        // stays inside that allocation and yields its start. Only shared references are made until
        // `from_raw`, and the C struct lies in an `UnsafeCell`.
        unsafe { &*c.byte_sub(C_OFFSET).cast() }
    }

    /// Converts a pointer that the program gives back into the owned context.
    ///
    /// # Safety
    /// The requirements of [`from_raw_ref`](Self::from_raw_ref), and no other thread uses the context any
    /// more.
    pub(crate) unsafe fn from_raw(c: *mut ibv_context) -> Box<Context> {
        // SAFETY: `new_raw` added the offset to the pointer of a box, and the caller passes the only
        // remaining pointer.
        unsafe { Box::from_raw(c.byte_sub(C_OFFSET).cast()) }
    }
}

/// Reports whether a context was opened by the parent of this process, before the fork. Objects of such a
/// context are left as they are, and destroying one in the child does nothing and succeeds: a thread that
/// does not exist in the child may hold their locks for ever.
///
/// # Safety
/// `context` was opened by this process or by a parent of it, and is not closed.
pub(crate) unsafe fn is_inherited(context: *mut ibv_context) -> bool {
    // SAFETY: the caller passes a context that is not closed; after a fork, the child has a copy of its
    // memory.
    unsafe { Context::from_raw_ref(context) }.nic.is_inherited()
}
