//! Contexts (`ibv_context`): open devices. This module depends on none of the verbs modules, all of which
//! import it. The function table of the C struct is in `ops`, and `open` creates contexts.

use std::mem::offset_of;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use urxe::verbs::lid_of;

use crate::abi::{ibv_context, verbs_context};
use crate::object::FfiCell;
use crate::shared_context::SharedContext;

/// An open device with its C struct. It is not an [`FfiObject`](crate::object::FfiObject), because programs
/// hold a pointer to the last field of the struct instead of the first.
#[repr(C)]
pub(crate) struct Context {
    /// The extended C struct; programs hold a pointer to its last field, `context`.
    c: FfiCell<verbs_context>,
    shared: Arc<SharedContext>,
    /// Owner of the descriptor in `cmd_fd`, which `ibv_import_device` uses to find the context.
    _file: OwnedFd,
}

/// Offset in [`Context`] of the `ibv_context` that programs hold a pointer to.
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
    /// Returns the LID of the port with `--lid-routing`, otherwise `None`.
    pub(crate) fn substitute_lid(&self) -> Option<u16> {
        let gid = || self.nic.query_gid(self.nic.main_gid()?.into());
        self.device.settings.lid_routing.then(|| gid().map_or(0, lid_of))
    }

    /// Moves a context to the heap, and returns the pointer to its C struct that the program holds. `c` is
    /// the content of the struct, and `file` owns the descriptor in its field `cmd_fd`.
    pub(crate) fn new_raw(c: verbs_context, shared: Arc<SharedContext>, file: OwnedFd) -> *mut ibv_context {
        let context = Box::into_raw(Box::new(Context { c: FfiCell::new(c), shared, _file: file }));
        // SAFETY: `C_OFFSET` is the offset of a field, so the result is inside the allocation of the box.
        unsafe { context.byte_add(C_OFFSET).cast() }
    }

    /// Returns the context that a program's pointer refers to.
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

    /// Converts a pointer that the program gives up back into the owned context.
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

/// Reports whether a context was opened by this process's parent before the fork. The child leaves such a
/// context's objects as they are, and destroying one succeeds without effect, because their locks may be held
/// forever by a thread that does not exist in the child.
///
/// # Safety
/// `context` was opened by this process or by a parent of it, and is not closed.
pub(crate) unsafe fn is_inherited(context: *mut ibv_context) -> bool {
    // SAFETY: the caller passes a context that is not closed; after a fork, the child has a copy of its
    // memory.
    unsafe { Context::from_raw_ref(context) }.nic.is_inherited()
}
