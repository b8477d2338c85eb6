//! Event channels: queues of events, with a file descriptor to wait on.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use super::id::WeakId;
use super::manager::Owner;
use super::{CmEvent, CmEventKind, CmId, EventParam};
use crate::driver::{step_until, until_readable, until_signalled};
use crate::fabric::Fabric;
use crate::verbs::errors::WaitError;

/// A queue of connection manager events for the ids assigned to it. Its descriptor is readable while an event
/// is pending. Cheap to clone.
#[derive(Clone)]
pub struct EventChannel(Arc<Inner>);

struct Inner {
    readable: EventFd,
    queue: Mutex<Queue>,
    /// Whether the queue has events, so that a search of an empty queue takes no lock.
    has_events: AtomicBool,
    /// Number of times that the queue has been searched.
    #[cfg(test)]
    polls: std::sync::atomic::AtomicUsize,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<QueuedEvent>,
    /// Number of queued connection requests to each listener that has any. Peers determine how many requests
    /// arrive, so the check of the backlog must not search the queue for each.
    requests: HashMap<u64, usize>,
    /// Manager of the id most recently assigned to this channel.
    manager: Weak<Owner>,
}

/// A pending event. It keeps its id alive only if the id is new, that is, not yet known to the program.
pub(super) struct QueuedEvent {
    pub id: Subject,
    pub listen_id: Option<WeakId>,
    pub kind: CmEventKind,
    pub status: i32,
    pub param: EventParam,
}

/// The id to which an event is delivered.
pub(super) enum Subject {
    /// A new id, owned by the event.
    New(CmId),
    /// An id that the program already knows.
    Known(WeakId),
}

impl Queue {
    /// Updates the number of queued requests after `event` was removed.
    fn on_removed(&mut self, event: &QueuedEvent) {
        if let Some(listener) = event.request_to()
            && let Entry::Occupied(mut count) = self.requests.entry(listener)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl QueuedEvent {
    fn is_of(&self, number: u64) -> bool {
        match &self.id {
            Subject::New(id) => id.number() == number,
            Subject::Known(id) => id.number() == number,
        }
    }

    fn listener(&self) -> Option<u64> {
        self.listen_id.as_ref().map(WeakId::number)
    }

    /// Returns the listener, if the event is a connection request.
    fn request_to(&self) -> Option<u64> {
        self.listener().filter(|_| self.kind == CmEventKind::ConnectRequest)
    }

    fn event(self) -> Option<CmEvent> {
        let id = match self.id {
            Subject::New(id) => id,
            Subject::Known(id) => id.upgrade()?,
        };
        let listen_id = match self.listen_id {
            Some(listener) => Some(listener.upgrade()?),
            None => None,
        };
        Some(CmEvent { id, listen_id, kind: self.kind, status: self.status, param: self.param })
    }
}

impl EventChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// If the system is out of file descriptors.
    pub fn new() -> io::Result<EventChannel> {
        // In semaphore mode each event takes one count, so the descriptor stays readable for the remaining
        // events.
        let readable = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)?;
        Ok(EventChannel(Arc::new(Inner {
            readable,
            queue: Mutex::default(),
            has_events: AtomicBool::new(false),
            #[cfg(test)]
            polls: Default::default(),
        })))
    }

    /// Removes and returns the oldest event, if any, without waiting.
    pub fn try_event(&self) -> Option<CmEvent> {
        self.take_first(|_| true)
    }

    /// Removes and returns the oldest connection request to the given listener.
    pub(super) fn try_request(&self, listener: u64) -> Option<CmEvent> {
        self.take_first(|e| e.request_to() == Some(listener))
    }

    /// Returns the number of queued connection requests to the given listener.
    pub(super) fn requests(&self, listener: u64) -> usize {
        self.0.queue.lock().requests.get(&listener).copied().unwrap_or_default()
    }

    /// Removes and returns the oldest event of the given listener: a connection request, or an event for the
    /// listener itself, such as the removal of its device.
    pub(super) fn try_listener_event(&self, listener: u64) -> Option<CmEvent> {
        self.take_first(|e| e.is_of(listener) || e.listener() == Some(listener))
    }

    fn take_first(&self, predicate: impl Fn(&QueuedEvent) -> bool) -> Option<CmEvent> {
        #[cfg(test)]
        self.0.polls.fetch_add(1, Ordering::Relaxed);
        loop {
            if !self.0.has_events.load(Ordering::SeqCst) {
                return None;
            }
            let mut queue = self.0.queue.lock();
            let at = queue.events.iter().position(&predicate)?;
            let queued = queue.events.remove(at)?;
            queue.on_removed(&queued);
            self.on_removed(&queue);
            drop(queue);
            // The id may have ended in the meantime. The event is then dropped without the lock, because the
            // drop may end another id.
            if let Some(event) = queued.event() {
                return Some(event);
            }
        }
    }

    /// Waits for an event; indefinitely if `timeout` is `None`.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`], [`WaitError::Interrupted`]; [`WaitError::Idle`] in virtual time.
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<CmEvent, WaitError> {
        let take = || self.try_event();
        // Every event ends this wait, so the descriptor does not stay readable.
        Ok(match self.prepare_wait() {
            Some(fabric) => step_until(&fabric, timeout.unwrap_or(Duration::MAX), take)?,
            None => until_readable(self.as_fd(), timeout, take)?,
        })
    }

    /// Waits like [`get_event`](Self::get_event), but until `take` returns a value. `take` is called
    /// whenever an event has been queued, and may leave events for other readers of the channel.
    ///
    /// # Errors
    /// The errors of [`get_event`](Self::get_event); [`WaitError::System`] if the system is out of
    /// descriptors.
    pub fn get_event_by<R>(
        &self,
        timeout: Option<Duration>,
        take: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        Ok(match self.prepare_wait() {
            Some(fabric) => step_until(&fabric, timeout.unwrap_or(Duration::MAX), take)?,
            None => until_signalled(self.as_fd(), timeout, take)?,
        })
    }

    /// Reports whether an event is queued.
    #[cfg(feature = "unstable-internals")]
    pub fn has_event(&self) -> bool {
        self.0.has_events.load(Ordering::SeqCst)
    }

    /// Announces that the application is about to wait for the descriptor.
    #[cfg(feature = "unstable-internals")]
    pub fn stop_polling(&self) {
        self.prepare_wait();
    }

    /// Prepares for a wait by handing the devices back to their background threads. In virtual time, returns
    /// the fabric whose steps replace the wait.
    #[doc(hidden)]
    pub fn prepare_wait(&self) -> Option<Fabric> {
        // The wait must not keep the manager alive, as another thread may drop its last id in the meantime.
        let manager = self.0.queue.lock().manager.upgrade()?;
        manager.stop_polling();
        manager.fabric.get().cloned()
    }

    /// Records the manager of an id that is assigned to this channel.
    pub(super) fn set_manager(&self, manager: &Arc<Owner>) {
        self.0.queue.lock().manager = Arc::downgrade(manager);
    }

    pub(super) fn push(&self, event: QueuedEvent) {
        // Counted under the lock: with a count but no event, a reader that was notified would have to wait.
        let mut queue = self.0.queue.lock();
        if let Some(listener) = event.request_to() {
            *queue.requests.entry(listener).or_default() += 1;
        }
        queue.events.push_back(event);
        self.0.has_events.store(true, Ordering::SeqCst);
        // Only a full counter could make this fail, and then the descriptor is readable anyway.
        let _ = self.0.readable.write(1);
    }

    /// Removes an id's events and the connection requests to it. The caller must drop them without holding a
    /// lock, because they own new ids, which are destroyed with them.
    #[must_use]
    pub(super) fn remove_events(&self, number: u64) -> Vec<QueuedEvent> {
        let is_of = |e: &QueuedEvent| e.is_of(number) || e.listener() == Some(number);
        let mut queue = self.0.queue.lock();
        let (removed, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut queue.events).into_iter().partition(is_of);
        queue.events = rest.into();
        for event in &removed {
            queue.on_removed(event);
            self.on_removed(&queue);
        }
        removed
    }

    /// Updates the flag and the descriptor's counter after an event was removed. This never blocks, because
    /// each queued event has incremented the counter by one.
    fn on_removed(&self, queue: &Queue) {
        self.0.has_events.store(!queue.events.is_empty(), Ordering::SeqCst);
        let _ = self.0.readable.read();
    }

    pub(super) fn is(&self, other: &EventChannel) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl AsFd for EventChannel {
    /// Returns the descriptor, for polling only: reading from it would consume events. It is in blocking mode
    /// (no `O_NONBLOCK`).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.readable.as_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventChannel({} events)", self.0.queue.lock().events.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::cm::{ConnParam, ConnectionManager, Listener, PortSpace};
    use crate::verbs::{Context, QpOptions};

    const SHORT: Duration = Duration::from_millis(50);

    impl EventChannel {
        /// Returns the number of times that the queue is searched while `f` runs.
        pub fn polls_during(&self, f: impl FnOnce()) -> usize {
            let before = self.0.polls.load(Ordering::Relaxed);
            f();
            self.0.polls.load(Ordering::Relaxed) - before
        }

        /// Waits until at least `count` events are queued.
        pub fn await_events(&self, count: usize) {
            while self.0.queue.lock().events.len() < count {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn wait_for_a_request_searches_the_queue_only_when_an_event_arrives() {
        let fabric = Fabric::new();
        let [context, peer] = [(); 2].map(|()| Context::on_fabric(&fabric).unwrap());
        let [own, peer] = [&context, &peer].map(|context| (context.query_gid(0).unwrap().ip(), 7).into());
        let manager = ConnectionManager::new(vec![context]).unwrap();
        let channel = EventChannel::new().unwrap();
        let [listener, other] = [(); 2].map(|()| manager.create_id(&channel, PortSpace::Tcp).unwrap());
        listener.bind_addr(own).unwrap();
        listener.listen(0).unwrap();
        other.resolve_addr(None, peer, SHORT).unwrap();
        // Once before the descriptor is watched, and once afterwards.
        let polls = channel.polls_during(|| {
            assert_eq!(listener.get_request(Some(SHORT)).unwrap_err(), WaitError::TimedOut(SHORT));
        });
        assert_eq!(polls, 2);
        let polls = channel.polls_during(|| {
            assert_eq!(listener.get_request(Some(Duration::ZERO)).unwrap_err().errno(), libc::ETIMEDOUT);
        });
        assert_eq!(polls, 1);
        assert_eq!(channel.try_event().unwrap().kind, CmEventKind::AddrResolved);
    }

    #[test]
    fn event_of_an_incoming_connection_does_not_wake_its_listener_again() {
        let fabric = Fabric::new();
        let [context, peer] = [(); 2].map(|()| Context::on_fabric(&fabric).unwrap());
        let own = (context.query_gid(0).unwrap().ip(), 7).into();
        let server = ConnectionManager::new(vec![context]).unwrap();
        let listener = Listener::bind(&server, own).unwrap();
        let client = ConnectionManager::new(vec![peer]).unwrap();
        let new_qp = |context: &Context| {
            let cq = context.create_cq(8)?;
            context.alloc_pd()?.create_qp(&cq, &cq, &QpOptions::default())
        };
        let session = client.begin_connect(own, new_qp, &ConnParam::default()).unwrap();
        let incoming = listener.next(Duration::from_secs(5)).unwrap();
        // The client gives up, which is reported on the listener's channel.
        drop(session);
        listener.channel.await_events(1);
        let polls = listener.channel.polls_during(|| {
            assert_eq!(listener.next(SHORT).unwrap_err(), WaitError::TimedOut(SHORT));
        });
        assert_eq!(polls, 2);
        drop(incoming);
        assert!(listener.channel.try_event().is_none());
    }
}
