use super::recv_queue::{Receive, RecvCaps, RecvQueue};
use super::{AsyncEvent, Output, PostError, RecvWr};
use crate::memory::PdId;

/// A shared receive queue's handle, unique in its NIC: 24 bits, as XRC packets name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SrqId(pub u32);

/// An XRC domain's handle, unique in its NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct XrcdId(pub u32);

/// Receives that several queue pairs share: each message takes the oldest.
#[derive(Debug)]
pub struct SharedReceives {
    id: SrqId,
    pd: PdId,
    /// The XRC domain whose queue pairs use it, by its number.
    domain: Option<XrcdId>,
    queue: RecvQueue,
    /// An event is due, once, when fewer than this are left; 0 for none (IBA 10.2.9.3).
    limit: u32,
}

impl SharedReceives {
    /// An empty queue.
    pub fn new(id: SrqId, pd: PdId, domain: Option<XrcdId>, caps: RecvCaps) -> SharedReceives {
        SharedReceives { id, pd, domain, queue: RecvQueue::new(caps), limit: 0 }
    }

    /// Its handle.
    pub fn id(&self) -> SrqId {
        self.id
    }

    /// Its XRC domain, if it is for XRC.
    pub fn domain(&self) -> Option<XrcdId> {
        self.domain
    }

    /// Its protection domain: that of the keys in its receives.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Its limits.
    pub fn caps(&self) -> RecvCaps {
        self.queue.caps
    }

    /// The limit that is armed, or 0.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Receives that no message has taken.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a receive in.
    ///
    /// # Errors
    /// [`PostError`]; then it was not taken.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.queue.post(wr, 0)
    }

    /// Asks for one event when fewer than `limit` receives are left; it may be due at once.
    pub fn arm(&mut self, limit: u32, out: &mut Vec<Output>) {
        self.limit = limit;
        self.check_limit(out);
    }

    /// Makes room for `max_wr` receives.
    ///
    /// # Errors
    /// How many are in it, if those are more.
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
