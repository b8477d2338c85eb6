//! The process: detection of fork, signal handlers of the program, threads that leave signals to it, and descriptors
//! that tokio watches.
//!
//! Links and the driver use it; it depends on no other component. Also the macro that defines setters, which
//! every component uses.

pub mod fork;
pub(crate) mod setters;
pub mod signals;
pub mod thread;
#[cfg(feature = "async")]
pub mod watched_fd;
