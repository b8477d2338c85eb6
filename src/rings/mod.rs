//! Rings in shared memory, through which processes of one host exchange packets instead of through sockets.
//!
//! | module | contents |
//! | --- | --- |
//! | `link_rings` | the rings of a link: connections, routes, full rings |
//! | `routes` | which packets of a link take a ring, and which the socket |
//! | `messages` | messages over the connection of a ring |
//! | `limits` | limits on the resources that rings take |
//! | `memory` | one ring: its memory, writer, reader, and payloads outside of it |
//! | `shared_memory` | the user's choice |

mod limits;
mod link_rings;
mod memory;
mod messages;
mod routes;
mod shared_memory;

pub(crate) use link_rings::{Rings, can_have_rings};
pub use memory::CAPACITY;
#[cfg(feature = "unstable-internals")]
pub use memory::{RingError, RingReader, RingWriter};
pub(crate) use routes::Route;
pub use shared_memory::SharedMemory;
