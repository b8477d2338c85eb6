//! Limits on what rings take of this process.

use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::resource::{Resource, getrlimit};

/// Maximum number of connections of this process.
const MAX_CONNECTIONS: u64 = 512;

/// Maximum size of all rings that this process reads, in bytes. A writer that punches holes in its ring after this process has
/// accepted it makes this process allocate the memory again.
const MAX_READ_MEMORY: u64 = 256 << 20;

/// Number of connections of this process.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Size of all rings that this process reads.
static READ_MEMORY: AtomicU64 = AtomicU64::new(0);

/// A part of a limited amount, taken until it is dropped.
#[derive(Debug)]
pub struct Taken {
    total: &'static AtomicU64,
    amount: u64,
}

impl Taken {
    fn new(total: &'static AtomicU64, amount: u64, max: u64) -> Option<Taken> {
        let add = |before: u64| before.checked_add(amount).filter(|after| *after <= max);
        total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Taken { total, amount })
    }

    /// Counts a connection. Returns `None` if there are too many: a program needs most of its descriptors for something else.
    pub fn connection() -> Option<Taken> {
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(limit, _)| limit);
        Taken::new(&CONNECTIONS, 1, MAX_CONNECTIONS.min(descriptors / 4))
    }

    /// Counts a ring of `bytes` that this process reads. Returns `None` if they would take too much memory.
    pub fn read_memory(bytes: u64) -> Option<Taken> {
        Taken::new(&READ_MEMORY, bytes, MAX_READ_MEMORY)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.total.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_up_to_the_maximum_are_taken_until_they_are_dropped() {
        static TOTAL: AtomicU64 = AtomicU64::new(0);
        let take = |amount| Taken::new(&TOTAL, amount, 10);
        let (first, second) = (take(6), take(4));
        assert!(first.is_some() && second.is_some() && take(1).is_none() && take(u64::MAX).is_none());
        drop(first);
        assert!(take(7).is_none() && take(6).is_some() && TOTAL.load(Ordering::Relaxed) == 4);
    }
}
