//! The connection manager's listeners for service IDs.

use crate::wire::mad::ServiceId;

/// A listener for one service ID or a range of service IDs.
#[derive(Debug)]
pub(super) struct Listener {
    pub service: ServiceId,
    /// Mask of the service ID bits compared with a request's service ID.
    pub mask: u64,
    pub backlog: usize,
    /// Number of requests in the backlog: the program has neither responded to them nor dequeued them.
    pub waiting: usize,
}

impl Listener {
    /// Reports whether the listener accepts requests for `service`.
    pub fn serves(&self, service: ServiceId) -> bool {
        (self.service.0 ^ service.0) & self.mask == 0
    }
}
