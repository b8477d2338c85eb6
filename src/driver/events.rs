//! Event hub: distributes asynchronous events to the queues of several readers.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::transport::{AsyncEvent, CqId, SrqId};
use crate::wire::Qpn;

/// Maximum number of events queued per reader. Programs need not read events, so the oldest are dropped.
const MAX_EVENTS: usize = 4096;

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

#[derive(Debug, Default)]
struct EventHub {
    readers: Vec<ReaderQueue>,
    /// Owners of all objects that the first reader does not own.
    owners: HashMap<EventSubject, EventReader>,
    next_reader: u32,
}

/// One reader's queued events.
#[derive(Debug)]
struct ReaderQueue {
    reader: EventReader,
    queue: VecDeque<AsyncEvent>,
    /// Readable while events are queued.
    signal: Arc<EventFd>,
}

impl Events {
    /// Adds a reader; the first is [`EventReader::FIRST`]. Also returns a descriptor that is readable while
    /// events are queued for the reader.
    ///
    /// # Errors
    /// If the system is out of file descriptors.
    pub fn add_reader(&self) -> io::Result<(EventReader, Arc<EventFd>)> {
        let signal = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let hub = &mut *self.0.lock();
        let reader = EventReader(hub.next_reader);
        hub.next_reader += 1;
        hub.readers.push(ReaderQueue { reader, queue: VecDeque::new(), signal: signal.clone() });
        Ok((reader, signal))
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
        for reader in readers.iter_mut().filter(|r| only.is_none_or(|only| only == r.reader)) {
            reader.change(|queue| {
                if queue.len() == MAX_EVENTS {
                    queue.pop_front();
                }
                queue.push_back(event);
            });
        }
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
    fn change<R>(&mut self, f: impl FnOnce(&mut VecDeque<AsyncEvent>) -> R) -> R {
        let was_empty = self.queue.is_empty();
        let result = f(&mut self.queue);
        if self.queue.is_empty() != was_empty {
            // Writes and reads of 1 alternate, so the counter is never full when written, nor empty when
            // read.
            let _ = if was_empty { self.signal.write(1).map(drop) } else { self.signal.read().map(drop) };
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    const FIRST: EventReader = EventReader::FIRST;

    /// Returns a hub with its first reader, and the descriptor of that reader.
    fn hub() -> (Events, Arc<EventFd>) {
        let events = Events::default();
        let (first, signal) = events.add_reader().unwrap();
        assert_eq!(first, FIRST);
        (events, signal)
    }

    fn is_readable(signal: &EventFd) -> bool {
        poll(&mut [PollFd::new(signal.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }

    #[test]
    fn descriptor_is_readable_from_the_first_event_queued_to_the_last_event_taken() {
        let (events, signal) = hub();
        assert!(!is_readable(&signal));
        events.raise(AsyncEvent::PortError);
        events.raise(AsyncEvent::CqError(CqId(1)));
        assert_eq!(events.next(FIRST), Some(AsyncEvent::PortError));
        assert!(is_readable(&signal));
        events.forget(EventSubject::Cq(CqId(1)));
        assert!(!is_readable(&signal));
        assert_eq!(events.next(FIRST), None);
        assert!(!is_readable(&signal));
    }

    #[test]
    fn clones_of_an_event_hub_share_their_queues() {
        let (events, _) = hub();
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
        let (events, _) = hub();
        let (second, signal) = events.add_reader().unwrap();
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
        assert!(is_readable(&signal));
        events.forget(EventSubject::Qp(ours));
        assert!(!is_readable(&signal));
        assert_eq!(events.next(second), None);
        // After the number is reused, its events do not belong to the second reader any more.
        events.raise(AsyncEvent::QpFatal(ours));
        assert_eq!(events.next(FIRST), Some(AsyncEvent::QpFatal(ours)));
    }

    #[test]
    fn removed_reader_gets_no_events_and_first_reader_does_not_inherit_them() {
        let (events, _) = hub();
        let [second, third] = [(); 2].map(|()| events.add_reader().unwrap().0);
        events.own(EventSubject::Cq(CqId(5)), second);
        events.remove_reader(second);
        events.raise(AsyncEvent::CqError(CqId(5)));
        events.raise(AsyncEvent::PortError);
        assert_eq!((events.next(second), events.next(FIRST)), (None, Some(AsyncEvent::PortError)));
        assert_eq!((events.next(third), events.next(third)), (Some(AsyncEvent::PortError), None));
    }

    #[test]
    fn full_event_queue_keeps_the_newest_events() {
        let (events, _) = hub();
        (0..=MAX_EVENTS as u32).for_each(|n| events.raise(AsyncEvent::QpFatal(Qpn::new(n))));
        assert_eq!(events.next(FIRST), Some(AsyncEvent::QpFatal(Qpn::new(1))));
        assert_eq!(std::iter::from_fn(|| events.next(FIRST)).count(), MAX_EVENTS - 1);
    }
}
