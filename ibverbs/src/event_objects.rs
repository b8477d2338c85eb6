//! Objects to which events refer: their addresses by number, and their unacknowledged events.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::{Condvar, Mutex};
use urxe::verbs::{CqId, Qpn, SrqId};

/// Queue pairs, completion queues and shared receive queues, indexed by the number in an event.
#[derive(Default)]
pub(crate) struct EventObjects {
    pub qps: ObjectTable<Qpn>,
    pub cqs: ObjectTable<CqId>,
    pub srqs: ObjectTable<SrqId>,
}

/// Object addresses by number; [`object_at`] turns them back into pointers. A thread that destroys an object
/// removes its number first and then waits for the program to acknowledge its events. A thread that dequeues
/// an event counts it during the lookup, and thus before the number can be removed.
pub(crate) struct ObjectTable<K>(Mutex<HashMap<K, usize>>);

impl<K> Default for ObjectTable<K> {
    fn default() -> ObjectTable<K> {
        ObjectTable(Mutex::default())
    }
}

impl<K: Eq + Hash> ObjectTable<K> {
    /// Registers an object and exposes its address for [`object_at`].
    pub(crate) fn add<C>(&self, number: K, c: *mut C) {
        self.0.lock().insert(number, c.expose_provenance());
    }

    /// Removes an object, and reports whether it was the last one. Waits for a lookup in progress, including
    /// the function that the lookup calls.
    pub(crate) fn remove(&self, number: K) -> bool {
        let mut objects = self.0.lock();
        objects.remove(&number).is_some() && objects.is_empty()
    }

    /// Calls `f` with the address of each object. No number is removed, and hence no object freed, before
    /// this returns.
    pub(crate) fn for_each_address(&self, f: impl FnMut(usize)) {
        self.0.lock().values().copied().for_each(f);
    }

    /// Looks an object up and calls `f` with its address. The number is not removed, and hence the object not
    /// freed, before `f` returns.
    pub(crate) fn look_up(&self, number: K, f: impl FnOnce(usize)) -> Option<usize> {
        let names = self.0.lock();
        let address = names.get(&number).copied();
        address.inspect(|address| f(*address))
    }
}

/// Number of unacknowledged events per queue. Destroying a queue waits until it has none.
#[derive(Default)]
pub(crate) struct UnackedEvents {
    counts: Mutex<HashMap<usize, u32>>,
    changed: Condvar,
}

impl UnackedEvents {
    /// Counts an event that is about to be returned to the program.
    pub(crate) fn count(&self, queue: usize) {
        *self.counts.lock().entry(queue).or_default() += 1;
    }

    /// Counts an acknowledged event.
    pub(crate) fn ack(&self, queue: usize) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&queue) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&queue);
            }
        }
        self.changed.notify_all();
    }

    /// Waits until the program has acknowledged all events of `queue`.
    pub(crate) fn wait(&self, queue: usize) {
        let mut counts = self.counts.lock();
        while counts.contains_key(&queue) {
            self.changed.wait(&mut counts);
        }
    }
}

/// Converts an address from [`ObjectTable`] back to a pointer to the object.
pub(crate) fn object_at<C>(address: usize) -> *mut C {
    std::ptr::with_exposed_provenance_mut(address)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn remove_waits_for_a_running_lookup() {
        let (names, mut queue) = (ObjectTable::default(), 5);
        names.add(SrqId(3), &raw mut queue);
        let (done, rx) = mpsc::channel();
        std::thread::scope(|s| {
            let found = names.look_up(SrqId(3), |_| {
                s.spawn(|| {
                    names.remove(SrqId(3));
                    done.send(()).unwrap();
                });
                assert!(rx.recv_timeout(Duration::from_millis(100)).is_err());
            });
            assert_eq!(found, Some((&raw mut queue).addr()));
            rx.recv_timeout(Duration::from_secs(10)).unwrap();
        });
        assert_eq!(names.look_up(SrqId(3), |_| unreachable!()), None);
    }

    #[test]
    fn wait_returns_once_all_events_of_the_queue_are_acknowledged() {
        let unacked = UnackedEvents::default();
        (0..2).for_each(|_| unacked.count(1));
        unacked.count(2);
        let (done, rx) = mpsc::channel();
        std::thread::scope(|s| {
            s.spawn(|| {
                unacked.wait(1);
                done.send(()).unwrap();
            });
            unacked.ack(1);
            unacked.ack(2);
            assert!(rx.recv_timeout(Duration::from_millis(100)).is_err());
            unacked.ack(1);
            rx.recv_timeout(Duration::from_secs(10)).unwrap();
        });
    }
}
