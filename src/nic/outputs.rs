//! Output queue of a NIC, which holds completions and asynchronous events until the driver takes them.

use super::cq_handle::CqHandle;
use super::scratch::Scratch;
use super::srq::SrqTable;
use super::table::Entry;
use crate::transport::{AsyncEvent, Completion, Counters, Output, WcStatus};
use crate::wire::Qpn;

/// Completion or event that a call to the NIC produces for the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NicOutput {
    /// A completion to add to a completion queue. If the queue is full, the completion is lost, and the
    /// driver calls [`Nic::on_cq_overflow`](super::Nic::on_cq_overflow).
    Completion {
        /// The completion queue.
        cq: CqHandle,
        /// The completion.
        completion: Completion,
    },
    /// A queue pair has refused a request of its peer, and entered ERR: its record of the failure says why.
    Refused(Qpn),
    /// An asynchronous event.
    Event(AsyncEvent),
}

/// Queue of outputs, in the order in which they were produced.
#[derive(Debug, Default)]
pub(super) struct OutputQueue {
    /// Outputs, up to `next` already taken. The list is cleared only once all are taken, so that later
    /// outputs reuse the same few cache lines.
    outputs: Vec<NicOutput>,
    /// Index of the oldest output not yet taken.
    next: usize,
    /// Completions to release once the link has accepted this turn's packets.
    emitted: Vec<(CqHandle, Completion)>,
}

impl OutputQueue {
    /// Reports whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Takes the oldest output.
    #[inline]
    pub fn poll(&mut self) -> Option<NicOutput> {
        let output = *self.outputs.get(self.next)?;
        self.next += 1;
        if self.next == self.outputs.len() {
            // Keeps the allocation.
            self.outputs.clear();
            self.next = 0;
        }
        Some(output)
    }

    /// Adds an event.
    pub fn raise(&mut self, event: AsyncEvent) {
        self.outputs.push(NicOutput::Event(event));
    }

    /// Adds the effects of a queue pair's step, and counts the error completions among them.
    #[inline]
    pub fn add(&mut self, state: &mut Scratch, entry: &Entry, srqs: &SrqTable) {
        if !state.out.is_empty() {
            self.add_all(state, entry, srqs);
        }
    }

    fn add_all(&mut self, state: &mut Scratch, entry: &Entry, srqs: &SrqTable) {
        let Scratch { out, counters, .. } = state;
        for effect in out.drain(..) {
            match effect {
                Output::Sent(c) => {
                    count_sent(counters, c.status);
                    // After those that wait for the link, because the completions of a send queue are
                    // ordered.
                    if self.emitted.iter().any(|(_, e)| e.qpn == c.qpn) {
                        self.emitted.push((entry.send_cq, c));
                    } else {
                        self.complete(entry.send_cq, c);
                    }
                }
                Output::Emitted(c) => {
                    count_sent(counters, c.status);
                    self.emitted.push((entry.send_cq, c));
                }
                Output::Received(c) => {
                    count_received(counters, c.status);
                    self.complete(entry.recv_cq, c);
                }
                Output::ReceivedFrom(srq, c) => {
                    count_received(counters, c.status);
                    // The completion of a destroyed shared receive queue is dropped.
                    if let Some(cq) = srqs.cq(srq) {
                        self.complete(cq, c);
                    }
                }
                Output::Refused(qpn) => self.outputs.push(NicOutput::Refused(qpn)),
                Output::Event(e) => self.raise(e),
            }
        }
    }

    #[inline]
    fn complete(&mut self, cq: CqHandle, completion: Completion) {
        self.outputs.push(NicOutput::Completion { cq, completion });
    }

    /// Adds the completions that were waiting for the link to send packets.
    pub fn release_emitted(&mut self) {
        let completion = |(cq, completion)| NicOutput::Completion { cq, completion };
        self.outputs.extend(self.emitted.drain(..).map(completion));
    }

    /// Drops the completions of a destroyed queue pair that are still waiting for the link to send packets.
    pub fn forget(&mut self, qpn: Qpn) {
        self.emitted.retain(|(_, completion)| completion.qpn != qpn);
    }
}

/// Counts the error completion of a send work request.
#[inline]
fn count_sent(c: &mut Counters, status: WcStatus) {
    if status != WcStatus::Success {
        c.req_cqe_error += 1;
        c.req_cqe_flush_error += u64::from(status == WcStatus::WrFlushErr);
        c.req_remote_access_errors += u64::from(status == WcStatus::RemAccessErr);
        c.req_remote_invalid_request += u64::from(status == WcStatus::RemInvReqErr);
    }
}

/// Counts the error completion of a receive.
#[inline]
fn count_received(c: &mut Counters, status: WcStatus) {
    if status != WcStatus::Success {
        c.resp_cqe_error += 1;
        c.resp_cqe_flush_error += u64::from(status == WcStatus::WrFlushErr);
        c.resp_local_length_error += u64::from(status == WcStatus::LocLenErr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_taken_oldest_first_and_memory_is_reused() {
        let mut queue = OutputQueue::default();
        let event = |n| AsyncEvent::QpFatal(Qpn::new(n));
        queue.raise(event(0));
        queue.raise(event(1));
        assert_eq!(queue.poll(), Some(NicOutput::Event(event(0))));
        queue.raise(event(2));
        let rest: Vec<_> = std::iter::from_fn(|| queue.poll()).collect();
        assert_eq!(rest, [event(1), event(2)].map(NicOutput::Event));
        assert!(queue.is_empty());
        let capacity = queue.outputs.capacity();
        for n in 0..1000 {
            queue.raise(event(n));
            assert_eq!(queue.poll(), Some(NicOutput::Event(event(n))));
        }
        assert_eq!((queue.poll(), queue.outputs.capacity()), (None, capacity));
    }
}
