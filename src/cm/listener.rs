//! Listeners of the connection manager.

use crate::wire::mad::ServiceId;

/// A listener for a service ID or a range of them.
#[derive(Debug)]
pub(super) struct Listener {
    pub service: ServiceId,
    /// Mask of the service ID bits that must match.
    pub mask: u64,
    pub backlog: usize,
    /// Number of requests that no program has responded to or dequeued yet.
    pub waiting: usize,
}

impl Listener {
    /// Reports whether the listener accepts requests for a service.
    pub fn serves(&self, service: ServiceId) -> bool {
        (self.service.0 ^ service.0) & self.mask == 0
    }
}
