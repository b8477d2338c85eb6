//! Ownership of a NIC's objects that survives `fork`.

use std::ops::Deref;

use urxe::verbs::Context;

/// An object of a NIC, with its context. Dropping it in a child of `fork` leaks both, because their locks may
/// be held by threads that do not exist in the child: Python destroys inherited objects when the child exits.
pub(crate) struct Held<T>(Option<(T, Context)>);

impl<T> Held<T> {
    pub fn new(value: T, context: &Context) -> Held<T> {
        Held(Some((value, context.clone())))
    }

    /// Returns the context to which the object belongs.
    pub fn context(&self) -> &Context {
        &self.parts().1
    }

    fn parts(&self) -> &(T, Context) {
        self.0.as_ref().expect("only `drop` takes the parts")
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.parts().0
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        if let Some(parts) = self.0.take_if(|(_, context)| context.is_inherited()) {
            std::mem::forget(parts);
        }
    }
}
