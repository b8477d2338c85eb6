//! Record of what faults on objects have changed, from which the failure of a queue pair is explained.

use parking_lot::Mutex;

use crate::transport::Instant;
use crate::wire::{Qpn, RKey};

/// Objects that a fault has changed in one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
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

/// Changes by one fault: each shard applies it once.
#[derive(Default, Debug)]
pub(super) struct Changes(Mutex<Vec<(Instant, Changed)>>);

impl Changes {
    pub fn add(&self, now: Instant, changed: Changed) {
        self.0.lock().push((now, changed));
    }

    /// Returns the time of the last change that `filter` accepts.
    pub fn last(&self, filter: impl Fn(Instant, &Changed) -> bool) -> Option<Instant> {
        let changes = self.0.lock();
        changes.iter().rev().find(|(at, changed)| filter(*at, changed)).map(|(at, _)| *at)
    }
}
