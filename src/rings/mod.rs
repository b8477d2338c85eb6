//! Rings in shared memory, through which processes of one host exchange packets instead of through sockets.
//!
//! | module | contents |
//! | --- | --- |
//! | `link_rings` | `Rings`, all rings of a link: offers, connections, writing and reading |
//! | `routes` | routes of a link's packets: a ring or the UDP socket |
//! | `messages` | messages over the connection of a ring |
//! | `limits` | limits on the descriptors and the memory that rings take |
//! | `memory` | one ring: its memory, its writer and reader, payloads that stay outside of it |
//! | `shared_memory` | `SharedMemory`, the option with which programs forbid or require rings |
//!
//! `broker::client::shared_link` sends through rings and the socket of its lease.

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
