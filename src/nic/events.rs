use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::transport::{AsyncEvent, CqId, SrqId};
use crate::wire::Qpn;

/// Events kept for a reader. Nobody has to read them: only the newest are.
const MAX_EVENTS: usize = 4096;

/// A listener for the event queue: notified when it becomes non-empty or empty.
pub trait EventListener: Send + Sync + fmt::Debug {
    /// Called with `true` when the first event arrives and with `false` when the last one is taken.
    fn waiting(&self, any: bool);
}

/// A reader of asynchronous events: those of the queues that are its own, and those of the port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct EventReader(u32);

impl EventReader {
    /// The one that is always there. It has the events of every queue that nobody else owns.
    pub const FIRST: EventReader = EventReader(0);
}

/// What an event may be about, other than the port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EventSubject {
    /// A queue pair.
    Qp(Qpn),
    /// A completion queue.
    Cq(CqId),
    /// A shared receive queue.
    Srq(SrqId),
}

impl EventSubject {
    fn of(event: AsyncEvent) -> Option<EventSubject> {
        let qp = event.qpn().map(EventSubject::Qp);
        let cq = || event.cq().map(EventSubject::Cq);
        qp.or_else(cq).or_else(|| event.srq().map(EventSubject::Srq))
    }
}

/// The asynchronous events that nobody has taken yet, for each of their readers; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Events(Arc<Mutex<Board>>);

#[derive(Debug)]
struct Board {
    readers: Vec<Waiting>,
    /// Of what is not the first reader's.
    owners: HashMap<EventSubject, EventReader>,
    next_reader: u32,
}

impl Default for Board {
    fn default() -> Board {
        let first = Waiting::of(EventReader::FIRST, None);
        Board { readers: vec![first], owners: HashMap::new(), next_reader: 1 }
    }
}

/// Those for one reader.
#[derive(Debug)]
struct Waiting {
    reader: EventReader,
    queue: VecDeque<AsyncEvent>,
    listener: Option<Arc<dyn EventListener>>,
}

impl Events {
    /// Sets who is told of the first reader's.
    pub(super) fn set_listener(&self, listener: Arc<dyn EventListener>) {
        self.0.lock().readers[0].listener = Some(listener);
    }

    /// One more reader, with who is told when some wait for it.
    pub fn add_reader(&self, listener: Arc<dyn EventListener>) -> EventReader {
        let board = &mut *self.0.lock();
        let reader = EventReader(board.next_reader);
        board.next_reader += 1;
        board.readers.push(Waiting::of(reader, Some(listener)));
        reader
    }

    /// One that is not the first, with its events. It owns nothing any more.
    pub fn remove_reader(&self, reader: EventReader) {
        self.0.lock().readers.retain(|waiting| waiting.reader != reader);
    }

    /// From now on the events of a queue are a reader's.
    pub fn own(&self, subject: EventSubject, reader: EventReader) {
        if reader != EventReader::FIRST {
            self.0.lock().owners.insert(subject, reader);
        }
    }

    pub(super) fn raise(&self, event: AsyncEvent) {
        let Board { readers, owners, .. } = &mut *self.0.lock();
        let owner = |subject| owners.get(&subject).copied().unwrap_or_default();
        let only = EventSubject::of(event).map(owner);
        readers.iter_mut().filter(|w| only.is_none_or(|only| only == w.reader)).for_each(|w| w.add(event));
    }

    /// The oldest for a reader that it has not taken.
    pub fn next(&self, reader: EventReader) -> Option<AsyncEvent> {
        let board = &mut *self.0.lock();
        let waiting = board.readers.iter_mut().find(|w| w.reader == reader)?;
        waiting.change(VecDeque::pop_front)
    }

    /// Whether there are some for a reader.
    pub fn has_some(&self, reader: EventReader) -> bool {
        self.0.lock().readers.iter().any(|w| w.reader == reader && !w.queue.is_empty())
    }

    /// Drops those that are about a queue that is gone.
    pub(super) fn forget(&self, gone: EventSubject) {
        let Board { readers, owners, .. } = &mut *self.0.lock();
        let owner = owners.remove(&gone).unwrap_or_default();
        if let Some(waiting) = readers.iter_mut().find(|w| w.reader == owner) {
            waiting.change(|queue| queue.retain(|event| EventSubject::of(*event) != Some(gone)));
        }
    }
}

impl Waiting {
    fn of(reader: EventReader, listener: Option<Arc<dyn EventListener>>) -> Waiting {
        Waiting { reader, queue: VecDeque::new(), listener }
    }

    fn add(&mut self, event: AsyncEvent) {
        self.change(|queue| {
            if queue.len() == MAX_EVENTS {
                queue.pop_front();
            }
            queue.push_back(event);
        });
    }

    fn change<R>(&mut self, f: impl FnOnce(&mut VecDeque<AsyncEvent>) -> R) -> R {
        let before = self.queue.is_empty();
        let result = f(&mut self.queue);
        let after = self.queue.is_empty();
        if let Some(listener) = self.listener.as_ref().filter(|_| before != after) {
            listener.waiting(!after);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const FIRST: EventReader = EventReader::FIRST;

    #[derive(Debug, Default)]
    struct Told(Mutex<Vec<bool>>);

    impl EventListener for Told {
        fn waiting(&self, any: bool) {
            self.0.lock().unwrap().push(any);
        }
    }

    #[test]
    fn a_listener_is_told_of_the_first_and_of_the_last() {
        let told = Arc::new(Told::default());
        let events = Events::default();
        events.set_listener(told.clone());
        events.raise(AsyncEvent::PortError);
        events.raise(AsyncEvent::CqError(CqId(1)));
        assert_eq!(events.next(FIRST), Some(AsyncEvent::PortError));
        assert_eq!(*told.0.lock().unwrap(), [true]);
        events.forget(EventSubject::Cq(CqId(1)));
        assert_eq!(*told.0.lock().unwrap(), [true, false]);
        assert_eq!(events.next(FIRST), None);
        assert_eq!(*told.0.lock().unwrap(), [true, false]);
    }

    #[test]
    fn clones_are_one_queue() {
        let events = Events::default();
        let clone = events.clone();
        clone.raise(AsyncEvent::PortError);
        events.raise(AsyncEvent::PortActive);
        assert_eq!(
            [clone.next(FIRST), events.next(FIRST), clone.next(FIRST)],
            [Some(AsyncEvent::PortError), Some(AsyncEvent::PortActive), None]
        );
    }

    #[test]
    fn each_reader_has_the_events_of_its_own_queues_and_of_the_port() {
        let told = Arc::new(Told::default());
        let events = Events::default();
        let second = events.add_reader(told.clone());
        let (ours, theirs) = (Qpn::new(7), Qpn::new(9));
        events.own(EventSubject::Qp(ours), second);
        for event in [AsyncEvent::QpFatal(theirs), AsyncEvent::PortError, AsyncEvent::QpFatal(ours)] {
            events.raise(event);
        }
        assert_eq!(events.next(FIRST), Some(AsyncEvent::QpFatal(theirs)));
        assert_eq!(events.next(FIRST), Some(AsyncEvent::PortError));
        assert_eq!(events.next(FIRST), None);
        assert_eq!([FIRST, second].map(|reader| events.has_some(reader)), [false, true]);
        assert_eq!(events.next(second), Some(AsyncEvent::PortError));
        assert_eq!(*told.0.lock().unwrap(), [true]);
        events.forget(EventSubject::Qp(ours));
        assert_eq!(*told.0.lock().unwrap(), [true, false]);
        assert_eq!(events.next(second), None);
        // A number that comes again is not the second's any more.
        events.raise(AsyncEvent::QpFatal(ours));
        assert_eq!(events.next(FIRST), Some(AsyncEvent::QpFatal(ours)));
    }

    #[test]
    fn who_is_gone_is_told_nothing() {
        let events = Events::default();
        let (second, third) =
            (events.add_reader(Arc::new(Told::default())), events.add_reader(Arc::new(Told::default())));
        events.own(EventSubject::Cq(CqId(5)), second);
        events.remove_reader(second);
        events.raise(AsyncEvent::CqError(CqId(5)));
        events.raise(AsyncEvent::PortError);
        assert_eq!((events.next(second), events.next(FIRST)), (None, Some(AsyncEvent::PortError)));
        assert_eq!((events.next(third), events.next(third)), (Some(AsyncEvent::PortError), None));
    }

    #[test]
    fn only_the_newest_are_kept() {
        let events = Events::default();
        (0..=MAX_EVENTS as u32).for_each(|n| events.raise(AsyncEvent::QpFatal(Qpn::new(n))));
        assert_eq!(events.next(FIRST), Some(AsyncEvent::QpFatal(Qpn::new(1))));
        assert_eq!(std::iter::from_fn(|| events.next(FIRST)).count(), MAX_EVENTS - 1);
    }
}
