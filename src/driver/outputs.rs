//! Delivery of a NIC's outputs: completions to completion queues, events to the event hub; and the creation
//! and destruction of the objects that refer to completion queues.

use std::collections::HashMap;
use std::sync::Arc;

use super::shard::ShardState;
use super::{CompletionQueue, EventSubject, Events, Pushed};
use crate::memory::PdId;
use crate::nic::{CqHandle, Nic, NicOutput, TooManyQps};
use crate::transport::{AsyncEvent, CqId, Instant, QpInit, RecvCaps, SrqId, XrcdId};
use crate::wire::Qpn;

/// Receivers of the outputs of one shard's NIC.
#[derive(Debug)]
pub(crate) struct Outputs {
    queues: CqTable,
    /// Event hub of the device, which all shards share.
    events: Events,
}

impl Outputs {
    pub fn new(events: Events) -> Outputs {
        Outputs { queues: CqTable::default(), events }
    }

    /// Takes all outputs of the NIC, which arose at `now`, and passes them on. A queue pair whose completion
    /// was lost fails at its next turn: afterwards the NIC wants to transmit.
    #[inline]
    pub fn deliver(&self, nic: &mut Nic, now: Instant) {
        if nic.has_outputs() {
            self.deliver_all(nic, now);
        }
    }

    fn deliver_all(&self, nic: &mut Nic, now: Instant) {
        while let Some(output) = nic.poll_output() {
            match output {
                NicOutput::Completion { cq, completion } => {
                    let Some(queue) = self.queues.get(cq) else {
                        debug_assert!(false, "{completion:?} for {cq:?}, which is not in use");
                        continue;
                    };
                    if let Pushed::Overflow { first } = queue.push(now, completion) {
                        if first {
                            self.events.raise(AsyncEvent::CqError(queue.id()));
                        }
                        nic.on_cq_overflow(completion.qpn);
                    }
                }
                NicOutput::Event(event) => self.events.raise(event),
            }
        }
    }
}

/// Completion queues of a shard by handle. Each is in the table while a queue pair or an XRC shared receive
/// queue of the shard completes to it.
#[derive(Debug, Default)]
struct CqTable {
    slots: Vec<Option<Slot>>,
    free: Vec<CqHandle>,
    /// Handles by address of the completion queue.
    by_address: HashMap<usize, CqHandle>,
}

#[derive(Debug)]
struct Slot {
    queue: Arc<CompletionQueue>,
    /// Number of work queues that complete to the queue.
    users: u32,
}

impl CqTable {
    #[inline]
    fn get(&self, cq: CqHandle) -> Option<&CompletionQueue> {
        Some(&self.slots.get(cq.0 as usize)?.as_ref()?.queue)
    }

    /// Counts one more user of a completion queue and returns its handle.
    fn acquire(&mut self, queue: &Arc<CompletionQueue>) -> CqHandle {
        let address = address(queue);
        if let Some(cq) = self.by_address.get(&address)
            && let Some(slot) = &mut self.slots[cq.0 as usize]
        {
            slot.users += 1;
            return *cq;
        }
        let slot = Some(Slot { queue: queue.clone(), users: 1 });
        let cq = match self.free.pop() {
            Some(cq) => {
                self.slots[cq.0 as usize] = slot;
                cq
            }
            None => {
                self.slots.push(slot);
                CqHandle(self.slots.len() as u32 - 1)
            }
        };
        self.by_address.insert(address, cq);
        cq
    }

    fn acquire_both(
        &mut self,
        send: &Arc<CompletionQueue>,
        recv: &Arc<CompletionQueue>,
    ) -> (CqHandle, CqHandle) {
        (self.acquire(send), self.acquire(recv))
    }

    /// Counts one user less. Without users, the handle may be given to another completion queue.
    fn release(&mut self, cq: CqHandle) {
        let slot = &mut self.slots[cq.0 as usize];
        let Some(Slot { queue, users }) = slot else {
            debug_assert!(false, "{cq:?} is not in use");
            return;
        };
        *users -= 1;
        if *users == 0 {
            self.by_address.remove(&address(queue));
            *slot = None;
            self.free.push(cq);
        }
    }

    fn release_both(&mut self, (send, recv): (CqHandle, CqHandle)) {
        self.release(send);
        self.release(recv);
    }

    /// Returns the handle of the completion queue that events refer to by `id`.
    fn find(&self, id: CqId) -> Option<CqHandle> {
        let is_it = |slot: &Option<Slot>| slot.as_ref().is_some_and(|slot| slot.queue.id() == id);
        self.slots.iter().position(is_it).map(|index| CqHandle(index as u32))
    }
}

/// Returns the address that identifies a completion queue while the table holds it.
fn address(queue: &Arc<CompletionQueue>) -> usize {
    Arc::as_ptr(queue).addr()
}

impl ShardState {
    /// Delivers the outputs of the NIC.
    #[inline]
    pub fn deliver(&mut self, now: Instant) {
        self.outputs.deliver(&mut self.nic, now);
    }

    /// Creates a queue pair that completes to these completion queues.
    ///
    /// # Errors
    /// [`TooManyQps`].
    pub fn create_qp(
        &mut self,
        init: &QpInit,
        send_cq: &Arc<CompletionQueue>,
        recv_cq: &Arc<CompletionQueue>,
    ) -> Result<Qpn, TooManyQps> {
        let cqs = self.outputs.queues.acquire_both(send_cq, recv_cq);
        self.nic.create_qp(init, cqs.0, cqs.1).inspect_err(|_| self.outputs.queues.release_both(cqs))
    }

    /// Creates QP1. `None` if it exists already.
    pub fn create_gsi(
        &mut self,
        init: &QpInit,
        send_cq: &Arc<CompletionQueue>,
        recv_cq: &Arc<CompletionQueue>,
    ) -> Option<Qpn> {
        let cqs = self.outputs.queues.acquire_both(send_cq, recv_cq);
        let made = self.nic.create_gsi(init, cqs.0, cqs.1);
        if made.is_none() {
            self.outputs.queues.release_both(cqs);
        }
        made
    }

    /// Destroys a queue pair: detaches it from its multicast groups and drops its events.
    pub fn destroy_qp(&mut self, qpn: Qpn) {
        self.leave_groups(qpn);
        if let Some(cqs) = self.nic.destroy_qp(qpn) {
            self.outputs.queues.release_both(cqs);
        }
        self.outputs.events.forget(EventSubject::Qp(qpn));
    }

    /// Creates an XRC shared receive queue whose receives complete to `cq`. `None` if the device has no more
    /// shared receive queues.
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

    /// Destroys a shared receive queue that no queue pair uses, and drops its events.
    pub fn destroy_srq(&mut self, id: SrqId) {
        if let Some(cq) = self.nic.destroy_srq(id) {
            self.outputs.queues.release(cq);
        }
        self.outputs.events.forget(EventSubject::Srq(id));
    }

    /// Raises the error of a completion queue as if it had occurred: the queue pairs that complete to it
    /// fail. Returns false, and raises nothing, if there is none.
    pub fn inject_cq_error(&mut self, id: CqId) -> bool {
        let is_used = self.outputs.queues.find(id).is_some_and(|cq| self.nic.inject_cq_error(cq));
        if is_used {
            self.outputs.events.raise(AsyncEvent::CqError(id));
        }
        is_used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_stays_until_the_last_user_releases_it_and_is_then_reused() {
        let [a, b, c] = [1, 2, 3].map(|id| Arc::new(CompletionQueue::new(CqId(id), 1)));
        let mut table = CqTable::default();
        let first = table.acquire_both(&a, &a);
        assert_eq!(first.0, first.1);
        let second = table.acquire(&b);
        assert_ne!(first.0, second);
        assert_eq!([1, 2, 3].map(|id| table.find(CqId(id))), [Some(first.0), Some(second), None]);
        table.release(first.0);
        assert_eq!(table.get(first.0).map(CompletionQueue::id), Some(CqId(1)));
        table.release(first.0);
        assert!(table.get(first.0).is_none() && table.find(CqId(1)).is_none());
        assert_eq!(Arc::strong_count(&a), 1);
        assert_eq!(table.acquire(&c), first.0);
        assert_eq!(table.get(first.0).map(CompletionQueue::id), Some(CqId(3)));
        let third = table.acquire(&a);
        assert!(third != first.0 && third != second);
    }
}
