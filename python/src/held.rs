//! Ownership of a NIC's objects that survives `fork`.

use std::ops::Deref;

use urxe::verbs::Context;

/// A NIC on a fabric.
#[derive(Clone)]
pub(crate) struct Device {
    pub context: Context,
    /// Whether the fabric is in virtual time.
    pub is_virtual: bool,
}

/// An object of a NIC, with its device. Dropping it in a child of `fork` leaks both, because their locks may be held
/// by threads that do not exist in the child: Python destroys inherited objects when the child exits.
pub(crate) struct Held<T>(Option<(T, Device)>);

impl<T> Held<T> {
    pub fn new(value: T, device: &Device) -> Held<T> {
        Held(Some((value, device.clone())))
    }

    /// Returns the device to which the object belongs.
    pub fn device(&self) -> &Device {
        &self.parts().1
    }

    fn parts(&self) -> &(T, Device) {
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
        if let Some(parts) = self.0.take_if(|(_, device)| device.context.is_inherited()) {
            std::mem::forget(parts);
        }
    }
}
