//! Event hub: distributes asynchronous events to the queues of several readers.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::transport::{AsyncEvent, CqId, SrqId};
use crate::wire::Qpn;

/// Maximum number of events queued per reader. Programs need not read events, so the oldest are dropped.
const MAX_EVENTS: usize = 4096;

/// Listener for the event queue, notified when the queue becomes non-empty or empty.
pub trait EventListener: Send + Sync + fmt::Debug {
    /// Called with `true` when the first event is queued, and with `false` when the last one is taken or
    /// dropped.
    fn waiting(&self, any: bool);
}

/// A reader of asynchronous events, which receives port events and the events of the objects that it owns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct EventReader(u32);

impl EventReader {
    /// The reader that always exists, which receives the events of every object that no other reader owns.
    pub const FIRST: EventReader = EventReader(0);
}

/// Object that an event is about, other than the port.
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

/// Event hub with one queue of asynchronous events per reader. Clones share the same hub.
#[derive(Clone, Debug, Default)]
pub struct Events(Arc<Mutex<EventHub>>);

#[derive(Debug)]
struct EventHub {
    readers: Vec<ReaderQueue>,
    /// Owners of all objects that the first reader does not own.
    owners: HashMap<EventSubject, EventReader>,
    next_reader: u32,
}

impl Default for EventHub {
    fn default() -> EventHub {
        let first = ReaderQueue::of(EventReader::FIRST, None);
        EventHub { readers: vec![first], owners: HashMap::new(), next_reader: 1 }
    }
}

/// One reader's queued events.
#[derive(Debug)]
struct ReaderQueue {
    reader: EventReader,
    queue: VecDeque<AsyncEvent>,
    listener: Option<Arc<dyn EventListener>>,
}

impl Events {
    /// Sets the first reader's listener. Called once, at creation.
    pub fn set_listener(&self, listener: Arc<dyn EventListener>) {
        self.0.lock().readers[0].listener = Some(listener);
    }

    /// Adds a reader with its listener.
    pub fn add_reader(&self, listener: Arc<dyn EventListener>) -> EventReader {
        let hub = &mut *self.0.lock();
        let reader = EventReader(hub.next_reader);
        hub.next_reader += 1;
        hub.readers.push(ReaderQueue::of(reader, Some(listener)));
        reader
    }

    /// Removes a reader other than the first, with its queued events. From then on, events of objects that it
    /// still owns are dropped.
    pub fn remove_reader(&self, reader: EventReader) {
        self.0.lock().readers.retain(|waiting| waiting.reader != reader);
    }

    /// Makes a reader the owner of an object, so that it receives the object's future events.
    pub fn own(&self, subject: EventSubject, reader: EventReader) {
        if reader != EventReader::FIRST {
            self.0.lock().owners.insert(subject, reader);
        }
    }

    /// Queues an event: a port event for all readers, any other for the reader that owns the object.
    pub fn raise(&self, event: AsyncEvent) {
        let EventHub { readers, owners, .. } = &mut *self.0.lock();
        let owner = |subject| owners.get(&subject).copied().unwrap_or_default();
        let only = EventSubject::of(event).map(owner);
        readers.iter_mut().filter(|w| only.is_none_or(|only| only == w.reader)).for_each(|w| w.add(event));
    }

    /// Removes and returns the reader's oldest queued event.
    pub fn next(&self, reader: EventReader) -> Option<AsyncEvent> {
        let hub = &mut *self.0.lock();
        let waiting = hub.readers.iter_mut().find(|w| w.reader == reader)?;
        waiting.change(VecDeque::pop_front)
    }

    /// Reports whether events are queued for a reader.
    pub fn has_some(&self, reader: EventReader) -> bool {
        self.0.lock().readers.iter().any(|w| w.reader == reader && !w.queue.is_empty())
    }

    /// Drops a destroyed object's queued events and the record of its owner.
    pub fn forget(&self, gone: EventSubject) {
        let EventHub { readers, owners, .. } = &mut *self.0.lock();
        let owner = owners.remove(&gone).unwrap_or_default();
        if let Some(waiting) = readers.iter_mut().find(|w| w.reader == owner) {
            waiting.change(|queue| queue.retain(|event| EventSubject::of(*event) != Some(gone)));
        }
    }
}

impl ReaderQueue {
    fn of(reader: EventReader, listener: Option<Arc<dyn EventListener>>) -> ReaderQueue {
        ReaderQueue { reader, queue: VecDeque::new(), listener }
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
    use super::*;

    const FIRST: EventReader = EventReader::FIRST;

    #[derive(Debug, Default)]
    struct Told(Mutex<Vec<bool>>);

    impl EventListener for Told {
        fn waiting(&self, any: bool) {
            self.0.lock().push(any);
        }
    }

    #[test]
    fn listener_is_notified_of_first_event_queued_and_last_event_taken() {
        let told = Arc::new(Told::default());
        let events = Events::default();
        events.set_listener(told.clone());
        events.raise(AsyncEvent::PortError);
        events.raise(AsyncEvent::CqError(CqId(1)));
        assert_eq!(events.next(FIRST), Some(AsyncEvent::PortError));
        assert_eq!(*told.0.lock(), [true]);
        events.forget(EventSubject::Cq(CqId(1)));
        assert_eq!(*told.0.lock(), [true, false]);
        assert_eq!(events.next(FIRST), None);
        assert_eq!(*told.0.lock(), [true, false]);
    }

    #[test]
    fn clones_of_an_event_hub_share_their_queues() {
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
    fn reader_gets_events_of_the_objects_it_owns_and_of_the_port() {
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
        assert_eq!(*told.0.lock(), [true]);
        events.forget(EventSubject::Qp(ours));
        assert_eq!(*told.0.lock(), [true, false]);
        assert_eq!(events.next(second), None);
        // After the number is reused, its events do not belong to the second reader any more.
        events.raise(AsyncEvent::QpFatal(ours));
        assert_eq!(events.next(FIRST), Some(AsyncEvent::QpFatal(ours)));
    }

    #[test]
    fn removed_reader_gets_no_events_and_first_reader_does_not_inherit_them() {
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
    fn full_event_queue_keeps_the_newest_events() {
        let events = Events::default();
        (0..=MAX_EVENTS as u32).for_each(|n| events.raise(AsyncEvent::QpFatal(Qpn::new(n))));
        assert_eq!(events.next(FIRST), Some(AsyncEvent::QpFatal(Qpn::new(1))));
        assert_eq!(std::iter::from_fn(|| events.next(FIRST)).count(), MAX_EVENTS - 1);
    }
}
