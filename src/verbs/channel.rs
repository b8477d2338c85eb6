//! Completion events: a channel where they arrive, and their acknowledgement.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Condvar, Mutex};

use super::cq::CqInner;
use super::{AckError, Context, Cq, CreateError, WaitError};

/// Where the events of completion queues arrive. Its descriptor is readable while there is one. Cheap to
/// clone.
#[derive(Clone)]
pub struct CompletionChannel(Arc<ChannelInner>);

struct ChannelInner {
    context: Context,
    readable: EventFd,
    events: Mutex<VecDeque<Weak<CqInner>>>,
}

impl CompletionChannel {
    pub(super) fn new(context: Context) -> Result<CompletionChannel, CreateError> {
        // A semaphore: each event read takes one, so the descriptor stays readable for the rest.
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE;
        let readable = EventFd::from_flags(flags).map_err(|e| CreateError::Channel(e as i32))?;
        Ok(CompletionChannel(Arc::new(ChannelInner { context, readable, events: Mutex::default() })))
    }

    /// The context that it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The oldest event, if there is one. Never waits: poll the descriptor for that, or see
    /// [`get_event`](Self::get_event).
    pub fn next_event(&self) -> Option<CqEvent> {
        loop {
            let mut events = self.0.events.lock();
            let cq = events.pop_front()?;
            // One count for each event; it cannot be empty.
            let _ = self.0.readable.read();
            drop(events);
            // A queue may be gone since.
            if let Some(cq) = cq.upgrade() {
                return Some(CqEvent::new(Cq(cq)));
            }
        }
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]; [`WaitError::Idle`] in virtual time.
    pub fn get_event(&self, timeout: Duration) -> Result<CqEvent, WaitError> {
        self.0.context.wait_for(self.as_fd(), timeout, || self.next_event())
    }

    pub(super) fn push(&self, cq: Weak<CqInner>) {
        // Counted under the lock: a count without its event would make a reader wait that was told not to.
        let mut events = self.0.events.lock();
        events.push_back(cq);
        // Only a full counter could refuse; then the descriptor is readable anyway.
        let _ = self.0.readable.write(1);
    }

    /// Drops the events of queues that are gone.
    pub(super) fn sweep(&self) {
        self.0.events.lock().retain(|cq| {
            let alive = cq.strong_count() > 0;
            if !alive {
                // One count for each event; it cannot be empty.
                let _ = self.0.readable.read();
            }
            alive
        });
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.readable.as_fd()
    }
}

/// For reactors that want a descriptor, such as `tokio::io::unix::AsyncFd`. Take the events with
/// [`next_event`](CompletionChannel::next_event), not by reading from the descriptor.
impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.readable.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionChannel({} events)", self.0.events.lock().len())
    }
}

/// An event of a completion queue, as which it can be used. It is acknowledged when it is dropped.
#[must_use = "dropping it acknowledges the event"]
pub struct CqEvent {
    cq: Cq,
    /// Somebody else acknowledges it.
    handed_over: bool,
}

impl CqEvent {
    fn new(cq: Cq) -> CqEvent {
        cq.0.acks.0.lock().taken += 1;
        CqEvent { cq, handed_over: false }
    }

    /// The queue, with the duty to acknowledge the event later ([`Cq::ack_events`]): for callers whose interface
    /// has the two apart, as `ibv_get_cq_event` and `ibv_ack_cq_events` are.
    pub fn into_cq(mut self) -> Cq {
        self.handed_over = true;
        self.cq.clone()
    }
}

impl Deref for CqEvent {
    type Target = Cq;
    fn deref(&self) -> &Cq {
        &self.cq
    }
}

impl Drop for CqEvent {
    fn drop(&mut self) {
        if !self.handed_over {
            self.cq.0.acks.acknowledge(1);
        }
    }
}

impl fmt::Debug for CqEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqEvent({:?})", self.cq)
    }
}

/// Events of one queue that were taken off a channel, and how many of them are acknowledged.
#[derive(Default)]
pub(super) struct Acks(Mutex<Counts>, Condvar);

#[derive(Default)]
struct Counts {
    taken: u64,
    acknowledged: u64,
}

impl Acks {
    pub fn missing(&self) -> u64 {
        let counts = self.0.lock();
        counts.taken - counts.acknowledged
    }

    /// False if that were more than there are.
    fn acknowledge(&self, n: u64) -> bool {
        let mut counts = self.0.lock();
        let enough = n <= counts.taken - counts.acknowledged;
        if enough {
            counts.acknowledged += n;
            self.1.notify_all();
        }
        enough
    }

    /// Waits until none is missing; how many are after that time.
    pub fn wait(&self, timeout: Duration) -> u64 {
        let deadline = Instant::now() + timeout;
        let mut counts = self.0.lock();
        while counts.taken > counts.acknowledged && !self.1.wait_until(&mut counts, deadline).timed_out() {}
        counts.taken - counts.acknowledged
    }
}

impl Cq {
    /// Events that were taken off a channel and not acknowledged.
    pub fn unacked_events(&self) -> u64 {
        self.0.acks.missing()
    }

    /// Acknowledges `n` events that were taken with [`CqEvent::into_cq`].
    ///
    /// # Errors
    /// [`AckError`] if there are fewer; then none is acknowledged.
    pub fn ack_events(&self, n: u64) -> Result<(), AckError> {
        if self.0.acks.acknowledge(n) {
            Ok(())
        } else {
            Err(AckError { given: n, unacked: self.unacked_events() })
        }
    }
}
