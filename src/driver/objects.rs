//! Creation and destruction of a shard's objects that complete to completion queues or raise events.

use std::sync::Arc;

use super::object_faults::Changed;
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

    /// Calls `create` to create a queue pair that completes to the given completion queues.
    ///
    /// # Errors
    /// Those of `create`.
    pub fn create_qp<E>(
        &mut self,
        send_cq: &Arc<CompletionQueue>,
        recv_cq: &Arc<CompletionQueue>,
        create: impl FnOnce(&mut Nic, CqHandle, CqHandle) -> Result<Qpn, E>,
    ) -> Result<Qpn, E> {
        let cqs = [send_cq, recv_cq].map(|cq| self.outputs.queues.acquire(cq));
        let made = create(&mut self.nic, cqs[0], cqs[1]);
        match made {
            Ok(qpn) => {
                if let Some(polled) = self.nic.qp(qpn).and_then(|qp| qp.polled_sends()) {
                    send_cq.count_polled_sends(qpn, polled.clone());
                }
            }
            Err(_) => cqs.into_iter().for_each(|cq| self.outputs.queues.release(cq)),
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
            [cqs.0, cqs.1].into_iter().for_each(|cq| self.outputs.queues.release(cq));
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

    /// Makes a completion queue of the shard overflow, as if a completion had been lost. Returns whether it
    /// is the queue's first overflow, which raises the event, and the queue pairs that complete to the
    /// queue.
    pub(super) fn overrun_cq(&mut self, cq: &CompletionQueue) -> (bool, Vec<Qpn>) {
        let is_first = cq.mark_overflow();
        if is_first {
            self.outputs.events.raise(AsyncEvent::CqError(cq.id()));
        }
        (is_first, self.fail_qps_of(cq.id()))
    }

    /// Fails the queue pairs that complete to a queue, and returns them.
    fn fail_qps_of(&mut self, cq: CqId) -> Vec<Qpn> {
        let handle = self.outputs.queues.find(cq);
        handle.map(|handle| self.nic.inject_cq_error(handle)).unwrap_or_default()
    }

    /// Simulates an event: raises it and, if it is an error of an object, fails the queue pairs of the
    /// object. Returns the queue pairs that have failed; `None` if this shard does not have the object, or if
    /// no queue pair completes to the completion queue.
    pub(super) fn inject_event(&mut self, now: Instant, event: AsyncEvent) -> Option<Changed> {
        match event {
            AsyncEvent::CqError(id) => {
                let qpns = self.fail_qps_of(id);
                if qpns.is_empty() {
                    return None;
                }
                self.outputs.events.raise(event);
                Some(Changed::Cq(qpns))
            }
            _ if !self.nic.inject_event(now, event, &self.memory, &mut self.tx) => None,
            AsyncEvent::QpFatal(qpn) | AsyncEvent::QpRequestError(qpn) | AsyncEvent::QpAccessError(qpn) => {
                Some(Changed::Qps(vec![qpn]))
            }
            _ => Some(Changed::Qps(Vec::new())),
        }
    }
}
