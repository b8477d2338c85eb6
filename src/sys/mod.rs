//! Process-wide facilities: fork detection, queries about signal handlers, background threads that block
//! signals, memory for other processes, and descriptors watched by tokio.
//!
//! Memory, links and the driver use it; it depends on no other component. Also the macro that defines setters, which
//! every component uses.

pub mod fork;
pub(crate) mod memfd;
pub(crate) mod setters;
pub mod signals;
pub mod thread;
#[cfg(feature = "async")]
pub mod watched_fd;
