//! The process: detection of fork, signal handlers of the program, and threads that leave signals to it.
//!
//! Links and the driver use it; it depends on no other component.

pub mod fork;
pub mod signals;
pub mod thread;
