//! Process-wide facilities: fork detection, queries about signal handlers, background threads that block
//! signals, registered memory, limits of the process, and memory for other processes.
//!
//! Memory, links and the driver use it; it depends on no other component. Also macros that define setters,
//! options, counters and enums with names, which every component uses, and the generator of reproducible
//! random numbers.

pub(crate) mod cgroup;
pub(crate) mod counters;
pub mod fork;
pub(crate) mod mapping;
pub(crate) mod memfd;
pub(crate) mod named;
pub(crate) mod options;
pub mod pinned;
pub(crate) mod quota;
pub mod rng;
pub(crate) mod setters;
pub(crate) mod shared_words;
pub mod signals;
pub mod tally;
pub mod thread;
