//! A ring in shared memory, which carries bursts from one process to another on the same host.
//!
//! A ring has one writer and one reader. The writer creates the memory, a sealed memfd, and passes its
//! descriptor to the reader (`link_rings`). Neither trusts the other: positions are checked against the
//! capacity, record headers are copied before they are checked, and the seals rule out that the memory
//! shrinks while it is mapped. A [`RingError`] ends the use of a ring.
//!
//! ```text
//!   file:     control block │ data
//!   mapping:  control block │ data │ data again, so that every record is contiguous
//! ```
//!
//! A record contains the packets of a burst. Payloads of requests in memory that the writer shares with the
//! reader are left out: descriptors behind the packets refer to them (`payloads`).

mod error;
mod mapping;
mod payloads;
mod ring;
#[cfg(test)]
mod tests;

pub use error::RingError;
pub use mapping::CAPACITY;
pub(crate) use payloads::Change;
pub use ring::{RingReader, RingWriter};
