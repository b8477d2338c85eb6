//! Completion queues and events for a NIC that a test drives itself.

use std::collections::VecDeque;

use urxe::nic::{CqHandle, Nic, NicOutput};
use urxe::transport::{AsyncEvent, Completion, CqId};
use urxe::verbs::errors::CqOverflow;

/// Completion queue with a fixed capacity.
pub struct TestCq {
    pub handle: CqHandle,
    capacity: usize,
    entries: VecDeque<Completion>,
    overflowed: bool,
}

impl TestCq {
    /// Creates a queue for the NIC's CQ handle `handle`, with a capacity of `capacity` entries.
    pub fn new(handle: u32, capacity: usize) -> TestCq {
        TestCq { handle: CqHandle(handle), capacity, entries: VecDeque::new(), overflowed: false }
    }

    /// Returns the ID that identifies the queue in events.
    pub fn id(&self) -> CqId {
        CqId(self.handle.0)
    }

    /// Appends up to `max` completions to `out`, and returns their number. After an overflow, returns an
    /// error once all earlier completions have been taken.
    pub fn poll(&mut self, max: usize, out: &mut Vec<Completion>) -> Result<usize, CqOverflow> {
        let count = max.min(self.entries.len());
        out.extend(self.entries.drain(..count));
        match count == 0 && self.overflowed && self.entries.is_empty() {
            true => Err(CqOverflow { capacity: self.capacity }),
            false => Ok(count),
        }
    }
}

/// Moves the NIC's completions to their queues, and appends its events to `events`. If a queue is full, the
/// completion is lost and its queue pair fails; the first overflow of a queue also generates an event.
pub fn take_outputs(nic: &mut Nic, cqs: &mut [&mut TestCq], events: &mut VecDeque<AsyncEvent>) {
    while let Some(output) = nic.poll_output() {
        match output {
            NicOutput::Refused(_) => {}
            NicOutput::Event(event) => events.push_back(event),
            NicOutput::Completion { cq, completion } => {
                let cq = cqs.iter_mut().find(|c| c.handle == cq).expect("a queue of the test");
                if cq.entries.len() < cq.capacity {
                    cq.entries.push_back(completion);
                    continue;
                }
                if !std::mem::replace(&mut cq.overflowed, true) {
                    events.push_back(AsyncEvent::CqError(cq.id()));
                }
                nic.on_cq_overflow(completion.qpn);
            }
        }
    }
}
