//! The option with which programs forbid or require rings.
#![forbid(unsafe_code)]

use crate::sys::named::named;

named! {
    /// Use of rings in shared memory for packets to other processes of this host.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub enum SharedMemory {
        /// All packets take the socket.
        Off, "off";
        /// Packets of RC and XRC take a ring if the other process, of the same user, listens for rings and one can be created.
        /// All others take the socket, whose receive buffer holds more than a ring.
        #[default]
        Auto, "auto";
        /// Packets to an address of this network namespace take a ring or are dropped, except those to QP1, to multicast
        /// groups and to the sender's own NIC, which take the socket. A link without rings cannot be opened.
        Require, "require";
    }
}

impl SharedMemory {
    /// All values.
    pub const ALL: [SharedMemory; 3] = [SharedMemory::Off, SharedMemory::Auto, SharedMemory::Require];

    /// Returns the value with the given text form.
    pub fn named(name: &str) -> Option<SharedMemory> {
        SharedMemory::ALL.into_iter().find(|value| value.name() == name)
    }
}
