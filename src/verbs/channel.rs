//! Completion channels, which deliver completion queue events, and the acknowledgement of these events.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Condvar, Mutex};

use super::channel_wait::{ChannelWait, SPIN_TIME};
use super::cq::CqInner;
use super::faults::Call;
use super::{AckError, Context, Cq, CreateError, WaitError};
use crate::driver::deadline_after;

/// A completion channel: a queue of completion queue events. Its descriptor is readable while an event is
/// queued. Cheap to clone.
#[derive(Clone)]
pub struct CompletionChannel(Arc<ChannelInner>);

struct ChannelInner {
    context: Context,
    readable: EventFd,
    events: Mutex<VecDeque<Weak<CqInner>>>,
    wait: ChannelWait,
}

impl Context {
    /// Creates a completion channel. Its file descriptor is readable while an event is queued.
    ///
    /// # Errors
    /// [`CreateError::Channel`]; [`CreateError::DeviceFatal`].
    pub fn create_channel(&self) -> Result<CompletionChannel, CreateError> {
        self.inject(Call::ibv_create_comp_channel)?;
        self.check_device()?;
        // A semaphore: each read takes one event, so the descriptor stays readable for the rest.
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE;
        let readable = EventFd::from_flags(flags).map_err(|e| CreateError::Channel(e as i32))?;
        let (context, events, wait) = (self.clone(), Mutex::default(), ChannelWait::new());
        Ok(CompletionChannel(Arc::new(ChannelInner { context, readable, events, wait })))
    }
}

impl CompletionChannel {
    /// Returns the channel's context.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Returns the oldest event, if any, without blocking. To wait, poll the descriptor or call
    /// [`get_event`](Self::get_event).
    pub fn next_event(&self) -> Option<CqEvent> {
        loop {
            let mut events = self.0.events.lock();
            let cq = events.pop_front()?;
            // The counter has one count for each event, so it cannot be empty.
            let _ = self.0.readable.read();
            drop(events);
            self.0.wait.on_event(Instant::now);
            // The queue may have been dropped meanwhile.
            if let Some(cq) = cq.upgrade() {
                return Some(CqEvent::new(Cq(cq)));
            }
        }
    }

    /// Waits for an event, and returns it (`ibv_get_cq_event`).
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]; [`WaitError::Interrupted`] by a signal; [`WaitError::Idle`] in virtual time.
    pub fn get_event(&self, timeout: Duration) -> Result<CqEvent, WaitError> {
        if let Some(event) = self.next_event() {
            return Ok(event);
        }
        if timeout > SPIN_TIME
            && let Some(event) = self.prepare_wait()
        {
            return Ok(event);
        }
        self.0.context.wait_for(self.as_fd(), timeout, || self.next_event())
    }

    /// Prepares a call that will wait for the descriptor until there is an event. Returns an event if one
    /// arrives at once, or so soon that the call should poll for it.
    #[doc(hidden)]
    pub fn prepare_wait(&self) -> Option<CqEvent> {
        let ChannelInner { context, wait, .. } = &*self.0;
        let is_only_thread = context.0.waiting_threads.on_wait();
        if wait.on_wait() && is_only_thread && context.virtual_fabric().is_none() {
            let begin = Instant::now();
            while begin.elapsed() < SPIN_TIME {
                context.poll();
                if let Some(event) = self.next_event() {
                    return Some(event);
                }
            }
        }
        context.prepare_wait();
        wait.on_sleep(Instant::now());
        self.next_event()
    }

    /// Reports whether the program, if it waits, will do so in a call that announces the wait.
    pub(super) fn announces_waits(&self) -> bool {
        self.0.wait.is_announced()
    }

    pub(super) fn push(&self, cq: Weak<CqInner>) {
        // Counted under the lock: if the count preceded its event, the descriptor would be readable although
        // `next_event` returned none.
        let mut events = self.0.events.lock();
        events.push_back(cq);
        // The write fails only when the counter is full, and then the descriptor is readable anyway.
        let _ = self.0.readable.write(1);
    }

    /// Drops the events of queues that no longer exist.
    pub(super) fn drop_stale_events(&self) {
        self.0.events.lock().retain(|cq| {
            let is_alive = cq.strong_count() > 0;
            if !is_alive {
                // The counter has one count for each event, so it cannot be empty.
                let _ = self.0.readable.read();
            }
            is_alive
        });
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.readable.as_fd()
    }
}

/// Descriptor for reactors such as `tokio::io::unix::AsyncFd`. Take events with
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

/// A completion queue event, which dereferences to the queue. Dropping it acknowledges the event.
#[must_use = "dropping it acknowledges the event"]
pub struct CqEvent {
    cq: Cq,
    /// Whether acknowledging the event is left to the caller.
    is_caller_acked: bool,
}

impl CqEvent {
    fn new(cq: Cq) -> CqEvent {
        *cq.0.acks.0.lock() += 1;
        CqEvent { cq, is_caller_acked: false }
    }

    /// Returns the queue, and leaves acknowledging the event to the caller ([`Cq::ack_events`]), for
    /// interfaces that separate the two, such as `ibv_get_cq_event` and `ibv_ack_cq_events`.
    pub fn into_cq(mut self) -> Cq {
        self.is_caller_acked = true;
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
        if !self.is_caller_acked {
            // The event itself is one of those that are unacknowledged.
            let _ = self.cq.0.acks.acknowledge(1);
        }
    }
}

impl fmt::Debug for CqEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqEvent({:?})", self.cq)
    }
}

/// Number of a completion queue's events that were retrieved and not yet acknowledged.
#[derive(Default)]
pub(super) struct EventAcks(Mutex<u64>, Condvar);

impl EventAcks {
    /// Acknowledges `n` events. Fails, without acknowledging any, if fewer are unacknowledged.
    fn acknowledge(&self, n: u64) -> Result<(), AckError> {
        let mut unacked = self.0.lock();
        *unacked = unacked.checked_sub(n).ok_or(AckError { given: n, unacked: *unacked })?;
        self.1.notify_all();
        Ok(())
    }

    /// Blocks until all events are acknowledged or `timeout` has passed, and returns the number of
    /// unacknowledged events.
    pub fn wait(&self, timeout: Duration) -> u64 {
        let deadline = deadline_after(timeout);
        let mut unacked = self.0.lock();
        while *unacked > 0 && !self.1.wait_until(&mut unacked, deadline).timed_out() {}
        *unacked
    }
}

impl Cq {
    /// Returns the number of events retrieved from a channel but not yet acknowledged.
    pub fn unacked_events(&self) -> u64 {
        *self.0.acks.0.lock()
    }

    /// Acknowledges `n` events retrieved with [`CqEvent::into_cq`] (`ibv_ack_cq_events`).
    ///
    /// # Errors
    /// [`AckError`] if there are fewer unacknowledged events; then none is acknowledged.
    pub fn ack_events(&self, n: u64) -> Result<(), AckError> {
        self.0.acks.acknowledge(n)
    }
}
