//! Pending listeners: requests for a service whose listener is expected shortly are queued for a grace
//! period.
//!
//! Programs announce a port to their clients before they listen on it, or close a listener and listen on the
//! same port again. The request of a faster client would be rejected; instead, it waits for the listener.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::transport::{AddressVector, Instant};
use crate::wire::Gid;
use crate::wire::mad::{CommId, Mad, Message, ServiceId};

/// Grace period within which a service is expected to get a listener; requests still queued when it ends are
/// rejected.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Maximum number of services in their grace period, and of queued requests. Further requests are rejected
/// like those for an unknown service.
const MAX_PENDING: usize = 256;

/// Services in their grace period, and the requests queued for them.
#[derive(Debug, Default)]
pub(super) struct PendingListeners {
    until: BTreeMap<ServiceId, Instant>,
    queued: VecDeque<QueuedRequest>,
}

#[derive(Debug)]
pub(super) struct QueuedRequest {
    pub until: Instant,
    pub service: ServiceId,
    pub source: AddressVector,
    pub mad: Mad,
}

impl PendingListeners {
    pub fn start_grace_period(&mut self, now: Instant, service: ServiceId) {
        if self.until.len() >= MAX_PENDING {
            self.until.retain(|_, until| *until > now);
        }
        if self.until.len() < MAX_PENDING {
            self.until.insert(service, now + GRACE_PERIOD);
        }
    }

    /// Ends the grace period of a service, which now has a listener or a peer-to-peer request; its queued
    /// requests become due.
    pub fn end_grace_period(&mut self, service: ServiceId) {
        self.until.remove(&service);
        self.queued.iter_mut().filter(|w| w.service == service).for_each(|w| w.until = Instant(0));
    }

    /// Queues a request unless it is a retransmission of a queued one. Returns `false` if the service is not
    /// in its grace period or the queue is full.
    pub fn enqueue(&mut self, now: Instant, service: ServiceId, source: &AddressVector, mad: &Mad) -> bool {
        let Some(until) = self.until.get(&service).copied().filter(|until| *until > now) else {
            return false;
        };
        let is_duplicate = |w: &QueuedRequest| w.mad == *mad && w.source == *source;
        if self.queued.iter().any(is_duplicate) {
            return true;
        }
        let has_room = self.queued.len() < MAX_PENDING;
        if has_room {
            self.queued.push_back(QueuedRequest { until, service, source: *source, mad: *mad });
        }
        has_room
    }

    /// Drops a queued request whose client has given up.
    pub fn remove_request(&mut self, from: Gid, id: CommId) {
        let is_request = |mad: &Mad| matches!(&mad.message, Message::Req(req) if req.local == id);
        self.queued.retain(|w| w.source.dgid != from || !is_request(&w.mad));
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.queued.iter().map(|w| w.until).min()
    }

    /// Removes and returns the requests that need not wait any longer, in order of arrival.
    pub fn take_due(&mut self, now: Instant) -> Vec<QueuedRequest> {
        let (due, rest) = std::mem::take(&mut self.queued).into_iter().partition(|w| w.until <= now);
        self.queued = rest;
        Vec::from(due)
    }
}
