//! Records of a device for reports to the program, such as of queue pairs that refused a request.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of queued records. Programs need not take them, so the oldest are dropped.
const MAX_RECORDS: usize = 64;

/// Function that takes the records in place of the queue. It must not call the device, which is locked.
type Listener<T> = Box<dyn Fn(T) + Send>;

/// Queue of the records of a device. Clones share it.
pub struct Records<T>(Arc<Mutex<Queue<T>>>);

struct Queue<T> {
    records: VecDeque<T>,
    listener: Option<Listener<T>>,
}

impl<T> Clone for Records<T> {
    fn clone(&self) -> Records<T> {
        Records(self.0.clone())
    }
}

impl<T> Default for Records<T> {
    fn default() -> Records<T> {
        Records(Arc::new(Mutex::new(Queue { records: VecDeque::new(), listener: None })))
    }
}

impl<T> Records<T> {
    /// Adds a record.
    #[cold]
    pub fn add(&self, record: T) {
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
    pub fn take(&self) -> Option<T> {
        self.0.lock().records.pop_front()
    }

    /// Passes the queued and all later records to `listener`, in place of an earlier listener.
    pub fn listen(&self, listener: impl Fn(T) + Send + 'static) {
        let queue = &mut *self.0.lock();
        queue.records.drain(..).for_each(&listener);
        queue.listener = Some(Box::new(listener));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn listener_takes_the_newest_queued_records_and_the_later_ones() {
        let records = Records::default();
        (0..=MAX_RECORDS).for_each(|number| records.add(number));
        assert_eq!(records.take(), Some(1));
        let (sender, taken) = channel();
        records.listen(move |record| sender.send(record).unwrap());
        records.add(500);
        let expected: Vec<usize> = (2..=MAX_RECORDS).chain([500]).collect();
        assert_eq!((taken.try_iter().collect::<Vec<_>>(), records.take()), (expected, None));
    }
}
