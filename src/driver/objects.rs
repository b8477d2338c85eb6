//! Creation and destruction of a shard's objects that complete to completion queues or raise events.

use std::sync::Arc;

use super::shard::ShardState;
use super::{CompletionQueue, EventSubject};
use crate::memory::PdId;
use crate::nic::{CqHandle, Nic};
use crate::transport::{AsyncEvent, CqId, Instant, RecvCaps, SrqId, XrcdId};
use crate::wire::Qpn;

impl ShardState {
    /// Delivers the NIC's outputs to the completion queues and the event hub.
    #[inline]
    pub fn deliver(&mut self, now: Instant) {
        self.outputs.deliver(&mut self.nic, now);
    }

    /// Creates a queue pair that completes to the given completion queues by calling `create`.
    ///
    /// # Errors
    /// Those of `create`.
    pub fn create_qp<E>(
        &mut self,
        send_cq: &Arc<CompletionQueue>,
        recv_cq: &Arc<CompletionQueue>,
        create: impl FnOnce(&mut Nic, CqHandle, CqHandle) -> Result<Qpn, E>,
    ) -> Result<Qpn, E> {
        let cqs = self.outputs.queues.acquire_both(send_cq, recv_cq);
        let made = create(&mut self.nic, cqs.0, cqs.1);
        match made {
            Ok(qpn) => {
                if let Some(polled) = self.nic.qp(qpn).and_then(|qp| qp.polled_sends()) {
                    send_cq.count_polled_sends(qpn, polled.clone());
                }
            }
            Err(_) => self.outputs.queues.release_both(cqs),
        }
        made
    }

    /// Destroys a queue pair, detaching it from its multicast groups and dropping its queued events.
    pub fn destroy_qp(&mut self, qpn: Qpn) {
        self.leave_groups(qpn);
        if let Some(cqs) = self.nic.destroy_qp(qpn) {
            if let Some(send_cq) = self.outputs.queues.get(cqs.0) {
                send_cq.forget_polled_sends(qpn);
            }
            self.outputs.queues.release_both(cqs);
        }
        self.outputs.events.forget(EventSubject::Qp(qpn));
    }

    /// Creates an XRC shared receive queue whose receives complete to `cq`. Returns `None` if the device's
    /// limit on shared receive queues is reached.
    pub fn create_xrc_srq(
        &mut self,
        pd: PdId,
        domain: XrcdId,
        cq: &Arc<CompletionQueue>,
        caps: RecvCaps,
    ) -> Option<SrqId> {
        let cq = self.outputs.queues.acquire(cq);
        let made = self.nic.create_xrc_srq(pd, domain, cq, caps);
        if made.is_none() {
            self.outputs.queues.release(cq);
        }
        made
    }

    /// Destroys a shared receive queue that no queue pair uses, and drops its queued events.
    pub fn destroy_srq(&mut self, id: SrqId) {
        if let Some(cq) = self.nic.destroy_srq(id) {
            self.outputs.queues.release(cq);
        }
        self.outputs.events.forget(EventSubject::Srq(id));
    }

    /// Makes a completion queue of the shard overflow, as if a completion had been lost. Returns whether it is
    /// the queue's first overflow, which raises the event, and the queue pairs that complete to the queue.
    pub(super) fn overrun_cq(&mut self, cq: &CompletionQueue) -> (bool, Vec<Qpn>) {
        let is_first = cq.mark_overflow();
        if is_first {
            self.outputs.events.raise(AsyncEvent::CqError(cq.id()));
        }
        let handle = self.outputs.queues.find(cq.id());
        (is_first, handle.map_or_else(Vec::new, |handle| self.nic.inject_cq_error(handle)))
    }

    /// Simulates a completion queue error: raises the event, and fails the queue pairs that complete to the
    /// queue. Returns these queue pairs; without any, does nothing.
    pub fn inject_cq_error(&mut self, id: CqId) -> Vec<Qpn> {
        let handle = self.outputs.queues.find(id);
        let qpns = handle.map_or_else(Vec::new, |handle| self.nic.inject_cq_error(handle));
        if !qpns.is_empty() {
            self.outputs.events.raise(AsyncEvent::CqError(id));
        }
        qpns
    }
}
