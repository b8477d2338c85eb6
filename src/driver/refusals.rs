//! Records of the queue pairs of a device that refused a request of their peer, for reports to the program.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::transport::Failure;

/// Maximum number of queued records. Programs need not take them, so the oldest are dropped.
const MAX_RECORDS: usize = 64;

/// Function that takes the records in place of the queue. It must not call the device, which is locked.
type Listener = Box<dyn Fn(Failure) + Send>;

/// Queue of the records of a device. Clones share it.
#[derive(Clone, Default)]
pub struct Refusals(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    records: VecDeque<Failure>,
    listener: Option<Listener>,
}

impl Refusals {
    /// Adds the record of a queue pair that has just refused a request.
    #[cold]
    pub fn add(&self, record: Failure) {
        let Queue { records, listener } = &mut *self.0.lock();
        if let Some(listener) = listener {
            return listener(record);
        }
        if records.len() == MAX_RECORDS {
            records.pop_front();
        }
        records.push_back(record);
    }

    /// Removes and returns the oldest record.
    pub fn take(&self) -> Option<Failure> {
        self.0.lock().records.pop_front()
    }

    /// Passes the queued and all later records to `listener`, in place of an earlier listener.
    pub fn listen(&self, listener: impl Fn(Failure) + Send + 'static) {
        let queue = &mut *self.0.lock();
        queue.records.drain(..).for_each(&listener);
        queue.listener = Some(Box::new(listener));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::transport::{FailureCause, QpType, RetryLimits};
    use crate::wire::Qpn;

    fn record(qpn: u32) -> Failure {
        Failure {
            at: 0,
            qpn: Qpn::new(qpn),
            qp_type: QpType::Rc,
            peer: None,
            cause: FailureCause::Modified,
            request: None,
            transmissions: Vec::new(),
            last_ack: None,
            silence: None,
            path: None,
            retries: RetryLimits::default(),
            events: Vec::new(),
        }
    }

    #[test]
    fn listener_takes_the_newest_queued_records_and_the_later_ones() {
        let refusals = Refusals::default();
        (0..=MAX_RECORDS as u32).for_each(|qpn| refusals.add(record(qpn)));
        assert_eq!(refusals.take().map(|failure| failure.qpn), Some(Qpn::new(1)));
        let (sender, taken) = channel();
        refusals.listen(move |failure| sender.send(failure.qpn.get()).unwrap());
        refusals.add(record(500));
        let expected: Vec<u32> = (2..=MAX_RECORDS as u32).chain([500]).collect();
        assert_eq!((taken.try_iter().collect::<Vec<_>>(), refusals.take()), (expected, None));
    }
}
