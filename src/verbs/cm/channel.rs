//! Event channels.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use super::id::WeakId;
use super::manager::Owner;
use super::{CmEvent, CmEventKind, CmId, EventParam};
use crate::verbs::WaitError;
use crate::verbs::wait::{step_until, until_readable};

/// Where the events of ids arrive. Its descriptor is readable while there is one. Cheap to clone.
#[derive(Clone)]
pub struct EventChannel(Arc<Inner>);

struct Inner {
    readable: EventFd,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Queued>,
    /// The last manager that an id here is of.
    manager: Weak<Owner>,
}

/// An event that nobody has taken yet: it keeps no id alive but one that nobody has seen.
pub(super) struct Queued {
    pub id: Subject,
    pub listen_id: Option<WeakId>,
    pub kind: CmEventKind,
    pub status: i32,
    pub param: EventParam,
    /// Of a connection request.
    pub waiting: Option<Waiting>,
}

/// A connection request that nobody has taken, among those of its listener.
pub(super) struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    /// One more, unless there are as many as there may be.
    pub fn new(of: &Arc<AtomicUsize>, backlog: usize) -> Option<Waiting> {
        let below = |n: usize| (n < backlog).then_some(n + 1);
        of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).ok()?;
        Some(Waiting(of.clone()))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The id that an event concerns.
pub(super) enum Subject {
    /// Of an id that comes with it.
    New(CmId),
    /// Of one that the program has.
    Known(WeakId),
}

impl Queued {
    fn is_of(&self, number: u64) -> bool {
        match &self.id {
            Subject::New(id) => id.number() == number,
            Subject::Known(id) => id.number() == number,
        }
    }

    fn listener(&self) -> Option<u64> {
        self.listen_id.as_ref().map(WeakId::number)
    }

    fn event(self) -> Option<CmEvent> {
        // It is taken: it waits no more.
        drop(self.waiting);
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
    /// A channel.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new() -> io::Result<EventChannel> {
        // A semaphore: each event takes one, so the descriptor stays readable for the rest.
        let readable = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)?;
        Ok(EventChannel(Arc::new(Inner { readable, queue: Mutex::default() })))
    }

    /// The oldest event, if there is one. Never waits.
    pub fn try_event(&self) -> Option<CmEvent> {
        self.take_first(|_| true)
    }

    /// The oldest connection request to a listener.
    pub(super) fn try_request(&self, listener: u64) -> Option<CmEvent> {
        self.take_first(|e| e.kind == CmEventKind::ConnectRequest && e.listener() == Some(listener))
    }

    fn take_first(&self, which: impl Fn(&Queued) -> bool) -> Option<CmEvent> {
        loop {
            let mut queue = self.0.queue.lock();
            let at = queue.events.iter().position(&which)?;
            let queued = queue.events.remove(at)?;
            self.uncount();
            drop(queue);
            // The id may be gone since; what is left of the event then goes without the lock, as that may end another id.
            if let Some(event) = queued.event() {
                return Some(event);
            }
        }
    }

    /// Waits for an event; for ever if no timeout is given.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`], [`WaitError::Interrupted`]; [`WaitError::Idle`] in virtual time.
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<CmEvent, WaitError> {
        self.get_event_by(timeout, || self.try_event())
    }

    /// [`get_event`](Self::get_event) for an event that `take` takes, which is asked whenever there may be one: for
    /// readers that take turns.
    ///
    /// # Errors
    /// As of [`get_event`](Self::get_event).
    pub fn get_event_by(
        &self,
        timeout: Option<Duration>,
        take: impl FnMut() -> Option<CmEvent>,
    ) -> Result<CmEvent, WaitError> {
        // Without keeping the manager alive, whose last id another thread may drop meanwhile.
        let manager = self.0.queue.lock().manager.upgrade();
        let fabric = manager.as_ref().and_then(|manager| manager.virtual_fabric());
        if let Some(manager) = manager {
            manager.stop_polling();
        }
        match fabric {
            Some(fabric) => step_until(&fabric, timeout.unwrap_or(Duration::MAX), take),
            None => until_readable(self.as_fd(), timeout, take),
        }
    }

    /// An id of this manager is on it.
    pub(super) fn serve(&self, manager: &Arc<Owner>) {
        self.0.queue.lock().manager = Arc::downgrade(manager);
    }

    pub(super) fn push(&self, event: Queued) {
        // Counted under the lock: a count without its event would make a reader wait that was told not to.
        let mut queue = self.0.queue.lock();
        queue.events.push_back(event);
        // Only a full counter could refuse; then the descriptor is readable anyway.
        let _ = self.0.readable.write(1);
    }

    /// Takes out the events of an id, and requests to it. The caller drops them without any lock, as that ends the ids that
    /// came with them.
    #[must_use]
    pub(super) fn withdraw(&self, number: u64) -> Vec<Queued> {
        self.split_off(|e| e.is_of(number) || e.listener() == Some(number))
    }

    /// Hands the events of an id over to another channel.
    pub(super) fn hand_over(&self, number: u64, to: &EventChannel) {
        self.split_off(|e| e.is_of(number) || e.listener() == Some(number))
            .into_iter()
            .for_each(|e| to.push(e));
    }

    fn split_off(&self, which: impl Fn(&Queued) -> bool) -> Vec<Queued> {
        let mut queue = self.0.queue.lock();
        let (taken, left): (Vec<_>, Vec<_>) = std::mem::take(&mut queue.events).into_iter().partition(which);
        queue.events = left.into();
        taken.iter().for_each(|_| self.uncount());
        taken
    }

    /// One for each event; so it never waits.
    fn uncount(&self) {
        let _ = self.0.readable.read();
    }

    pub(super) fn is(&self, other: &EventChannel) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl AsFd for EventChannel {
    /// For polling only: reading from it would take events away. It is a blocking descriptor (no `O_NONBLOCK`).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.readable.as_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventChannel({} events)", self.0.queue.lock().events.len())
    }
}
