//! Shared receive queues.

use super::recv_queue::{Receive, RecvQueue};
use super::{AsyncEvent, Output, PostError, RecvCaps, RecvWr, SrqId, XrcdId};
use crate::memory::PdId;

/// Shared receive queue (SRQ): receives shared by several queue pairs. Each message consumes the oldest one.
#[derive(Debug)]
pub struct SharedReceives {
    /// Handle of the queue.
    pub id: SrqId,
    /// Protection domain to which the keys in the queue's receives belong.
    pub pd: PdId,
    /// XRC domain whose queue pairs use the queue; `None` if it is not an XRC queue.
    pub domain: Option<XrcdId>,
    queue: RecvQueue,
    /// Number of receives below which the limit event is raised once; 0 if it is not armed (IBA 10.2.9.3).
    limit: u32,
}

impl SharedReceives {
    /// Creates an empty queue.
    pub fn new(id: SrqId, pd: PdId, domain: Option<XrcdId>, caps: RecvCaps) -> SharedReceives {
        SharedReceives { id, pd, domain, queue: RecvQueue::new(caps), limit: 0 }
    }

    /// Returns the queue's limits.
    pub fn caps(&self) -> RecvCaps {
        self.queue.caps
    }

    /// Returns the armed limit; 0 if none is armed.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the number of receives not yet consumed.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Reports whether the queue is empty.
    #[cfg(any(test, feature = "unstable-internals"))]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Queues a receive.
    ///
    /// # Errors
    /// [`PostError`]; then the receive is not queued.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.queue.post(wr, 0)
    }

    /// Arms the limit event, which is raised once fewer than `limit` receives are left, possibly immediately.
    pub fn arm(&mut self, limit: u32, out: &mut Vec<Output>) {
        self.limit = limit;
        self.check_limit(out);
    }

    /// Changes the capacity to `max_wr` receives.
    ///
    /// # Errors
    /// Number of queued receives, if it exceeds `max_wr`.
    pub fn resize(&mut self, max_wr: u32) -> Result<(), usize> {
        if self.len() > max_wr as usize {
            return Err(self.len());
        }
        self.queue.caps.max_wr = max_wr;
        Ok(())
    }

    pub(super) fn front_len(&self) -> Option<u64> {
        self.queue.front_len()
    }

    pub(super) fn take(&mut self, into: &mut Receive, out: &mut Vec<Output>) -> bool {
        let taken = self.queue.take(into);
        if taken {
            self.check_limit(out);
        }
        taken
    }

    fn check_limit(&mut self, out: &mut Vec<Output>) {
        if self.len() < self.limit as usize {
            self.limit = 0;
            out.push(Output::Event(AsyncEvent::SrqLimit(self.id)));
        }
    }
}
