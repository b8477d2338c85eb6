//! Limits on the resources of this process that rings take.
#![forbid(unsafe_code)]

use nix::sys::resource::{Resource, getrlimit};

use crate::sys::cgroup;
use crate::sys::quota::{Quota, Share};

/// Maximum number of connections of this process.
const MAX_CONNECTIONS: u64 = 512;

/// Maximum size of all rings that this process reads, in bytes. A writer that punches holes in its ring after
/// this process has accepted it makes this process allocate the memory again. The kernel kills a process of a
/// cgroup that exceeds its memory limit, so the rings take at most a fraction of that limit.
const MAX_READ_MEMORY: u64 = 256 << 20;
const CGROUP_FRACTION: u64 = 8;

/// Number of connections of this process.
static CONNECTIONS: Quota = Quota::new();

/// Size of all rings that this process reads.
static READ_MEMORY: Quota = Quota::new();

/// Counts a connection. Returns `None` if there are too many: a program needs most of its descriptors for
/// something else.
pub fn connection() -> Option<Share> {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(limit, _)| limit);
    CONNECTIONS.take(1, MAX_CONNECTIONS.min(descriptors / 4))
}

/// Counts a ring of `bytes` that this process reads. Returns `None` if the rings would take too much memory.
pub fn read_memory(bytes: u64) -> Option<Share> {
    READ_MEMORY.take(bytes, MAX_READ_MEMORY.min(cgroup::memory_limit() / CGROUP_FRACTION))
}
