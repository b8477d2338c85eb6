//! Faults on a NIC's objects: what they change, and when.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use crate::nic::PortSpeed;
use crate::sys::tally::Tally;
use crate::transport::{AsyncEvent, Counters, CqId, Instant};
use crate::wire::{Gid, Qpn, RKey};

/// Change of an object that a fault makes. `None` in place of an object's number stands for all objects of
/// its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ObjectChange {
    /// The queue pair enters ERR and raises `QpFatal`.
    QpError(Option<Qpn>),
    /// The completion queue overflows: it raises `CqError`, the queue pairs that complete to it enter ERR,
    /// and polling it fails once it is empty.
    CqOverrun(Option<CqId>),
    /// The port goes up or down, with `PortActive` or `PortError`. While it is down, all packets are lost.
    Port {
        /// Whether the port is up afterwards.
        up: bool,
    },
    /// An entry of the GID table is replaced, or removed (`None`), with `GidChange`. The link keeps its
    /// addresses.
    Gid {
        /// Index of the entry.
        index: usize,
        /// The new GID.
        gid: Option<Gid>,
    },
    /// The port reports another speed, after going down and up, with `PortError` and `PortActive`. The rate
    /// at which packets are sent is unaffected.
    Speed(PortSpeed),
    /// The device fails: all queue pairs enter ERR, and `DeviceFatal` is raised.
    DeviceFatal,
    /// Accesses to the memory region, local and remote, fail from now on, and its memory windows are unbound.
    RevokeMr(Option<RKey>),
    /// An event is raised, with its effect on a queue pair or completion queue.
    Event(AsyncEvent),
}

/// Time of a fault on an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Trigger {
    /// Time since the device was opened or the fault was added, on the NIC's clock.
    After(Duration),
    /// Number of packets that the shard has sent and received, counted from the same moment.
    Packets(u64),
}

/// A fault on an object of a NIC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectFault {
    pub(crate) change: ObjectChange,
    pub(crate) trigger: Trigger,
    /// The textual form.
    pub(crate) text: String,
}

impl ObjectFault {
    /// Returns what the fault changes.
    pub fn change(&self) -> ObjectChange {
        self.change
    }

    /// Returns when the fault happens.
    pub fn trigger(&self) -> Trigger {
        self.trigger
    }
}

impl fmt::Display for ObjectFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Objects that a fault has changed in one shard.
#[derive(Debug)]
pub(super) enum Changed {
    /// These queue pairs.
    Qps(Vec<Qpn>),
    /// A completion queue to which these queue pairs complete.
    Cq(Vec<Qpn>),
    /// The regions with these keys.
    Regions(Vec<RKey>),
    /// The port.
    Port,
    /// The device.
    Device,
}

/// A fault with its counters, which the shards of a device share.
#[derive(Debug)]
pub(crate) struct ActiveObjectFault {
    pub fault: ObjectFault,
    tally: Tally,
    /// Changes by the fault, with their times, from which the failure of a queue pair is explained.
    changes: Mutex<Vec<(Instant, Changed)>>,
}

impl ActiveObjectFault {
    pub fn new(fault: ObjectFault) -> ActiveObjectFault {
        let tally = Tally::new(&fault.text, "object");
        ActiveObjectFault { fault, tally, changes: Mutex::default() }
    }

    /// Returns the number of objects found, and of those changed.
    pub fn counts(&self) -> (u64, u64) {
        (self.tally.matched().load(Ordering::Relaxed), self.tally.struck().load(Ordering::Relaxed))
    }

    /// Counts an object that was found, and whether it was changed.
    pub fn count(&self, is_changed: bool) {
        self.tally.matched().fetch_add(1, Ordering::Relaxed);
        self.tally.struck().fetch_add(is_changed.into(), Ordering::Relaxed);
    }

    /// Records what the fault has changed.
    pub(super) fn record(&self, now: Instant, changed: Changed) {
        self.changes.lock().push((now, changed));
    }

    /// Returns the time of the last change that `filter` accepts.
    pub(super) fn last_change(&self, filter: impl Fn(Instant, &Changed) -> bool) -> Option<Instant> {
        let changes = self.changes.lock();
        changes.iter().rev().find(|(at, changed)| filter(*at, changed)).map(|(at, _)| *at)
    }
}

/// Moment at which a fault is due in a shard.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    At(Instant),
    /// Sum of the shard's counters of packets.
    Packets(u64),
}

/// A shard's faults on objects.
#[derive(Debug, Default)]
pub(super) struct ObjectFaults {
    pub pending: Vec<(Due, Arc<ActiveObjectFault>)>,
    /// Whether a fault has taken the port down.
    pub port_is_down: bool,
}

/// Returns the number of packets that a shard has sent and received.
pub(super) fn packets(counters: &Counters) -> u64 {
    counters.sent_pkts + counters.rcvd_pkts
}

impl ObjectFaults {
    /// Returns the index of the fault to apply next, and the time at which it is due: `now` for a fault whose
    /// number of packets has been reached. Faults that are due at a time come first, in the order of their
    /// times, then those due after a number of packets, in the order of these numbers.
    pub fn next(&self, now: Instant, counters: &Counters) -> Option<(usize, Instant)> {
        let moment = |(index, (due, _)): (usize, &(Due, _))| match *due {
            Due::At(at) => Some(((at, 0), index)),
            Due::Packets(count) => (count <= packets(counters)).then_some(((now, count), index)),
        };
        let ((at, _), index) = self.pending.iter().enumerate().filter_map(moment).min()?;
        Some((index, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_are_due_in_one_turn_are_applied_in_the_order_of_their_moments() {
        let times = [30, 50, 10, 20, 10].map(|at| Due::At(Instant(at)));
        let numbers = [7, 3, 8].map(Due::Packets);
        let fault = ObjectFault {
            change: ObjectChange::DeviceFatal,
            trigger: Trigger::Packets(0),
            text: String::new(),
        };
        let active = Arc::new(ActiveObjectFault::new(fault));
        let pending =
            [&numbers[..], &times[..]].concat().into_iter().map(|due| (due, active.clone())).collect();
        let mut faults = ObjectFaults { pending, port_is_down: false };
        let counters = Counters { sent_pkts: 3, rcvd_pkts: 4, ..Counters::default() };
        let mut applied = Vec::new();
        let now = Instant(30);
        while let Some((index, _)) = faults.next(now, &counters).filter(|(_, at)| *at <= now) {
            applied.push(match faults.pending.remove(index).0 {
                Due::At(at) => at.0,
                Due::Packets(count) => 1000 + count,
            });
        }
        assert_eq!(applied, [10, 10, 20, 30, 1003, 1007]);
        assert_eq!(faults.next(now, &counters).map(|(_, at)| at), Some(Instant(50)));
    }
}
