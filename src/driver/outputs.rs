//! Delivery of a NIC's outputs: completions to completion queues, and events to the event hub.

use std::collections::HashMap;
use std::sync::Arc;

use super::{CompletionQueue, Events, Pushed, Records};
use crate::nic::{CqHandle, Nic, NicOutput};
use crate::transport::{AsyncEvent, CqId, Failure, Instant, ObservedQp, QpEvent, QueuePair};

/// Destinations of the outputs of one shard's NIC.
pub(crate) struct Outputs {
    pub(super) queues: CqTable,
    /// The device's event hub, shared by all shards.
    pub(super) events: Events,
    /// The device's records of refused requests, shared by all shards.
    pub(super) refusals: Records<Failure>,
}

impl Outputs {
    /// Takes all of the NIC's outputs and passes them on, with `now` as the completions' timestamp. If a
    /// completion is lost, its queue pair fails at its next turn, so the NIC then has something to transmit.
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
                    if let Some(observer) = nic.observer() {
                        // The completion names its queue pair; the observer knows the path from its states.
                        let qp = ObservedQp { qpn: completion.qpn, flow: None, dest_qpn: completion.src_qpn };
                        observer.on_qp_event(Some(now), &qp, &QpEvent::Completed(&completion));
                    }
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
                NicOutput::Refused(qpn) => {
                    if let Some(failure) = nic.qp(qpn).and_then(QueuePair::failure) {
                        self.refusals.add(failure);
                    }
                }
                NicOutput::Event(event) => self.events.raise(event),
            }
        }
    }
}

/// A shard's completion queues by handle. A completion queue is in the table while any queue pair or XRC
/// shared receive queue of the shard completes to it.
#[derive(Default)]
pub(super) struct CqTable {
    slots: Vec<Option<Slot>>,
    free: Vec<CqHandle>,
    by_id: HashMap<CqId, CqHandle>,
}

struct Slot {
    queue: Arc<CompletionQueue>,
    /// Number of the shard's work queues that complete to this completion queue.
    users: u32,
}

impl CqTable {
    #[inline]
    pub fn get(&self, cq: CqHandle) -> Option<&CompletionQueue> {
        Some(&self.slots.get(cq.0 as usize)?.as_ref()?.queue)
    }

    /// Adds a user to a completion queue and returns the queue's handle.
    pub fn acquire(&mut self, queue: &Arc<CompletionQueue>) -> CqHandle {
        if let Some(cq) = self.by_id.get(&queue.id())
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
        self.by_id.insert(queue.id(), cq);
        cq
    }

    /// Removes a user of a completion queue. Once it has no users, its handle may be reused for another
    /// completion queue.
    pub fn release(&mut self, cq: CqHandle) {
        let slot = &mut self.slots[cq.0 as usize];
        let Some(Slot { queue, users }) = slot else {
            debug_assert!(false, "{cq:?} is not in use");
            return;
        };
        *users -= 1;
        if *users == 0 {
            self.by_id.remove(&queue.id());
            *slot = None;
            self.free.push(cq);
        }
    }

    /// Returns the completion queue with the given ID, or all completion queues if it is `None`.
    pub fn matching(&self, id: Option<CqId>) -> Vec<Arc<CompletionQueue>> {
        let queues = self.slots.iter().flatten().map(|slot| &slot.queue);
        queues.filter(|queue| id.is_none_or(|id| queue.id() == id)).cloned().collect()
    }

    /// Returns the handle of the completion queue with the given ID, if any.
    pub fn find(&self, id: CqId) -> Option<CqHandle> {
        self.by_id.get(&id).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_stays_valid_until_its_last_user_releases_it_and_is_then_reused() {
        let [a, b, c] = [1, 2, 3].map(|id| Arc::new(CompletionQueue::new(CqId(id), 1)));
        let mut table = CqTable::default();
        let first = (table.acquire(&a), table.acquire(&a));
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
