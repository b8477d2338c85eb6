//! Registered memory of the process, and the parts of it that were unmapped after the registration.
//!
//! A device pins the pages of a region, so later mappings at their addresses are out of its reach. This NIC
//! accesses memory by address, so it must not access an unmapped part again, even if a new mapping has its
//! address. The preload library reports the ranges that the program unmaps. The library reports each mapping
//! of its own: the kernel maps at unused addresses, so memory that was registered there has been unmapped.
//! Thus no key gives access to the library's mappings.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::atomic::AtomicCell;
use parking_lot::Mutex;

use super::fork::ForkGeneration;

/// Maximum number of unmapped parts of a registration, beyond which all of it counts as unmapped.
const MAX_PARTS: usize = 1024;

static REGISTERED: Mutex<Registered> =
    Mutex::new(Registered { ranges: BTreeMap::new(), longest: 0, last: 0 });

/// Number of registered ranges, to be read without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Number of registered ranges with unmapped parts.
static WITH_UNMAPPED: AtomicUsize = AtomicUsize::new(0);

/// Process that made the last registration. A forked child does not take the lock, which a thread of its
/// parent may have held.
static OWNER: AtomicCell<Option<ForkGeneration>> = AtomicCell::new(None);

thread_local! {
    /// Whether this thread holds the lock. An allocation under the lock may map memory, which is reported here.
    static HAS_LOCK: Cell<bool> = const { Cell::new(false) };
}

struct Registered {
    /// Registered ranges, by their first address and a number.
    ranges: BTreeMap<(usize, u64), Registration>,
    /// Upper bound of the lengths of all ranges.
    longest: usize,
    /// Number of the last registration.
    last: u64,
}

struct Registration {
    end: usize,
    unmapped: Vec<Range<usize>>,
}

/// Calls a function with the lock held, unless the thread holds it already.
fn with_registered<R>(call: impl FnOnce(&mut Registered) -> R) -> Option<R> {
    if HAS_LOCK.replace(true) {
        return None;
    }
    let result = call(&mut REGISTERED.lock());
    HAS_LOCK.set(false);
    Some(result)
}

/// A registered range. Its registration ends with the drop.
#[derive(Debug)]
pub(crate) struct Pinned {
    key: (usize, u64),
}

impl Pinned {
    pub fn new(addr: usize, len: usize) -> Pinned {
        OWNER.store(Some(ForkGeneration::current()));
        let register = |registered: &mut Registered| {
            registered.last += 1;
            registered.longest = registered.longest.max(len);
            let registration = Registration { end: addr.saturating_add(len), unmapped: Vec::new() };
            registered.ranges.insert((addr, registered.last), registration);
            COUNT.store(registered.ranges.len(), Ordering::Relaxed);
            registered.last
        };
        Pinned { key: (addr, with_registered(register).unwrap_or_default()) }
    }

    /// Reports whether any of the `len` bytes at `addr` were unmapped after the registration.
    #[cold]
    pub fn is_unmapped(&self, addr: usize, len: usize) -> bool {
        let overlaps = |r: &Range<usize>| r.start < addr.saturating_add(len) && addr < r.end;
        let find = |registered: &mut Registered| {
            Some(registered.ranges.get(&self.key)?.unmapped.iter().any(overlaps))
        };
        with_registered(find).flatten().unwrap_or_default()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        with_registered(|registered| {
            let registration = registered.ranges.remove(&self.key);
            if registered.ranges.is_empty() {
                registered.longest = 0;
            }
            COUNT.store(registered.ranges.len(), Ordering::Relaxed);
            if registration.is_some_and(|r| !r.unmapped.is_empty()) {
                WITH_UNMAPPED.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }
}

/// Reports whether any registered memory has been unmapped. Must be cheap, because every access by a key
/// calls it.
#[inline]
pub(crate) fn is_any_unmapped() -> bool {
    WITH_UNMAPPED.load(Ordering::Relaxed) != 0
}

/// Reports whether any of the `len` bytes at `addr` are registered.
#[cfg_attr(
    not(feature = "unstable-internals"),
    allow(dead_code, reason = "for tests and the other packages")
)]
pub fn is_registered(addr: usize, len: usize) -> bool {
    let mut is_found = false;
    for_each(addr, len, |_, _| is_found = true);
    is_found
}

/// Marks the `len` bytes at `addr` as unmapped in all registrations that contain any of them.
pub fn mark_unmapped(addr: usize, len: usize) {
    for_each(addr, len, |registration, part| {
        let parts = &mut registration.unmapped;
        if parts.is_empty() {
            WITH_UNMAPPED.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(last) = parts.last_mut().filter(|last| last.end == part.start) {
            last.end = part.end;
        } else if parts.len() == MAX_PARTS {
            parts.clear();
            parts.push(0..usize::MAX);
        } else if !parts.contains(&part) {
            parts.push(part);
        }
    });
}

/// Calls a function for each registration that contains any of the `len` bytes at `addr`, with the common
/// part.
fn for_each(addr: usize, len: usize, mut call: impl FnMut(&mut Registration, Range<usize>)) {
    if COUNT.load(Ordering::Relaxed) == 0 || !OWNER.load().is_some_and(ForkGeneration::is_current) {
        return;
    }
    let end = addr.saturating_add(len);
    with_registered(|registered| {
        let first = (addr.saturating_sub(registered.longest), 0);
        for ((start, _), registration) in registered.ranges.range_mut(first..(end, 0)) {
            let part = addr.max(*start)..end.min(registration.end);
            if !part.is_empty() {
                call(registration, part);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses that nothing in the process has.
    const AT: usize = usize::MAX / 2;

    #[test]
    fn parts_of_a_registration_are_unmapped_until_it_ends() {
        let (before, long) = (Pinned::new(AT - 100, 50), Pinned::new(AT, 1000));
        mark_unmapped(AT + 100, 100);
        mark_unmapped(AT + 200, 50);
        assert!(is_any_unmapped() && is_registered(AT + 999, 1) && !is_registered(AT + 1000, 100));
        let unmapped =
            [(0, 100), (99, 2), (249, 1), (250, 750)].map(|(at, len)| long.is_unmapped(AT + at, len));
        assert_eq!(unmapped, [false, true, true, false]);
        // A new registration of the same addresses is of what is mapped there now.
        let new = Pinned::new(AT + 100, 100);
        assert!(!new.is_unmapped(AT + 100, 100) && !before.is_unmapped(AT - 100, 50));
        mark_unmapped(AT - 1000, 2000);
        assert!(new.is_unmapped(AT + 199, 1) && before.is_unmapped(AT - 51, 1) && long.is_unmapped(AT, 1));
        drop((before, new, long));
        assert!(!is_registered(AT - 1000, 2000));
    }

    #[test]
    fn registration_with_too_many_unmapped_parts_is_unmapped_as_a_whole() {
        let at = AT + (1 << 30);
        let pinned = Pinned::new(at, 10 * MAX_PARTS);
        (0..MAX_PARTS).for_each(|i| mark_unmapped(at + 4 * i, 1));
        assert!(!pinned.is_unmapped(at + 1, 3) && pinned.is_unmapped(at, 1));
        mark_unmapped(at + 9 * MAX_PARTS, 1);
        assert!(pinned.is_unmapped(at + 1, 3));
    }
}
