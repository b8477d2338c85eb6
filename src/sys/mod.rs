//! Process-wide facilities: detection of fork, the program's signal handlers, threads that leave signals to
//! the program, and descriptors that tokio watches.
//!
//! Links and the driver use it; it depends on no other component. Also the macro that defines setters, which
//! every component uses.

pub mod fork;
pub(crate) mod setters;
pub mod signals;
pub mod thread;
#[cfg(feature = "async")]
pub mod watched_fd;
