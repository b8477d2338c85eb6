//! Completion queues: polling, waiting, notification and resizing.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::channel::EventAcks;
use super::faults::{Call, Injector};
use super::{CompletionChannel, Context, CreateError, DestroyCqError, WaitError};
use crate::driver::{
    CompletionQueue, CqListener, CqOverflow, CqUsers, EventSubject, Notify, deadline_after, step_until,
};
use crate::sys::setters::setters;
use crate::transport::{Completion, CqId};

/// A completion queue. Cheap to clone; usable from any thread.
///
/// [`poll`](Self::poll) and [`drain`](Self::drain) never block, [`wait`](Self::wait) blocks until there is a
/// completion, and [`start_poll`](Self::start_poll) gives timestamps and flags.
///
/// ```
/// # use std::time::Duration;
/// # use urxe::verbs::*;
/// # let (a, b) = Fabric::new().pair()?;
/// b.qp.post_recv(&RecvWr::empty(7))?;
/// a.qp.post_send(&SendWr::send_imm(1, &[], 99))?;
/// let received = b.cq.wait(Duration::from_secs(5))?;
/// assert_eq!((received.wr_id, received.imm), (7, Some(99)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Cq(pub(super) Arc<CqInner>);

/// Use of a completion queue by a work queue, for the warning
/// [`WarningKind::CqOverrun`](super::WarningKind::CqOverrun).
pub(super) struct CqUse {
    /// Depth of the work queue; 0 if not all work requests complete.
    depth: u32,
    /// Whether work requests have been posted. Until then, the queue does not count.
    has_posts: AtomicBool,
}

impl CqUse {
    pub fn of(depth: u32) -> CqUse {
        CqUse { depth, has_posts: AtomicBool::new(false) }
    }

    /// Counts the work queue when it is used for the first time.
    #[inline]
    pub fn on_post(&self, cq: &Cq) {
        if !self.has_posts.load(Ordering::Relaxed) {
            self.begin(cq);
        }
    }

    #[cold]
    fn begin(&self, cq: &Cq) {
        let depth = u64::from(self.depth);
        if !self.has_posts.swap(true, Ordering::Relaxed) && depth > 0 {
            let sum = cq.0.work_requests.fetch_add(depth, Ordering::Relaxed) + depth;
            cq.0.context.0.warnings.check_cq(cq.capacity() as u64, sum);
        }
    }

    /// Ends the use, when the work queue is destroyed.
    pub fn end(&self, cq: &Cq) {
        if self.has_posts.load(Ordering::Relaxed) {
            cq.0.work_requests.fetch_sub(self.depth.into(), Ordering::Relaxed);
        }
    }
}

pub(super) struct CqInner {
    context: Context,
    pub queue: Arc<CompletionQueue>,
    signal: Arc<Signal>,
    /// Work queues that complete to this queue: send, receive and, for XRC, shared receive queues.
    pub users: CqUsers,
    /// Sum of the depths of the work queues that are in use and whose work requests all complete to this
    /// queue.
    work_requests: AtomicU64,
    pub acks: EventAcks,
    /// Offset from the NIC's clock to the wall clock in nanoseconds, as last measured for this queue; 0
    /// before the first measurement.
    pub wall_offset: AtomicU64,
    calls: Injector,
}

/// Attributes for creating a completion queue with [`Context::create_cq`] (`ibv_cq_init_attr_ex`).
///
/// ```
/// # use urxe::verbs::*;
/// # let context = Context::on_fabric(&Fabric::new())?;
/// let channel = context.create_channel()?;
/// let cq = context.create_cq(CqOptions::new(64).channel(&channel))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Verbs also has `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`, which omits locking. There is no counterpart here,
/// because the NIC itself may run on another thread.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CqOptions {
    /// Maximum number of completions that the queue can hold, from 1 to [`super::Limits::max_cqe`].
    pub capacity: usize,
    /// Channel that receives the queue's events.
    pub channel: Option<CompletionChannel>,
    /// Completion vector for the queue's events; less than [`super::Limits::num_comp_vectors`].
    pub comp_vector: u32,
    /// Whether a new completion replaces the oldest one if the queue is full, for applications that do not
    /// read every completion. Otherwise the new completion is lost, an asynchronous event is raised, and its
    /// queue pair enters the error state.
    pub ignore_overrun: bool,
}

setters!(CqOptions { capacity: usize, comp_vector: u32, ignore_overrun: bool });

impl CqOptions {
    /// Returns options for a queue of `capacity` completions, without a channel.
    pub fn new(capacity: usize) -> CqOptions {
        CqOptions { capacity, channel: None, comp_vector: 0, ignore_overrun: false }
    }

    /// Sets the channel that receives the queue's events.
    #[must_use]
    pub fn channel(mut self, channel: &CompletionChannel) -> CqOptions {
        self.channel = Some(channel.clone());
        self
    }
}

impl Default for CqOptions {
    /// Returns options for a queue of 256 completions, without a channel.
    fn default() -> CqOptions {
        CqOptions::new(256)
    }
}

impl From<usize> for CqOptions {
    fn from(capacity: usize) -> CqOptions {
        CqOptions::new(capacity)
    }
}

impl From<&CqOptions> for CqOptions {
    fn from(options: &CqOptions) -> CqOptions {
        options.clone()
    }
}

/// Listener that is notified when a completion raises the requested event.
struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
    channel: Option<CompletionChannel>,
    /// Completion queue to report in the channel's events.
    cq: Weak<CqInner>,
}

impl CqListener for Signal {
    fn completion(&self) {
        *self.raised.lock() = true;
        self.changed.notify_all();
        if let Some(channel) = &self.channel {
            channel.push(self.cq.clone());
        }
    }
}

impl Context {
    /// Creates a completion queue. `options` is either a capacity in completions or [`CqOptions`].
    ///
    /// # Errors
    /// [`CreateError::Value`] for a capacity of 0 or above the device's limit; [`CreateError::OtherContext`]
    /// if the channel belongs to another context; [`CreateError::Exhausted`];
    /// [`CreateError::DeviceFatal`].
    pub fn create_cq(&self, options: impl Into<CqOptions>) -> Result<Cq, CreateError> {
        let CqOptions { capacity, channel, comp_vector, ignore_overrun } = options.into();
        self.inject(Call::ibv_create_cq)?;
        self.check_device()?;
        let limits = &self.0.limits;
        CreateError::check("CQ size", capacity as u64, 1..=limits.max_cqe.into())?;
        if channel.as_ref().is_some_and(|c| !c.context().is(self)) {
            return Err(CreateError::OtherContext("completion channel"));
        }
        CreateError::check("comp_vector", comp_vector.into(), 0..=u64::from(limits.num_comp_vectors) - 1)?;
        let id = CqId(self.0.next_cq.fetch_add(1, Ordering::Relaxed));
        self.0.cqs.acquire(1)?;
        self.0.asynchronous.own(EventSubject::Cq(id), self.0.reader);
        let (context, calls) = (self.clone(), self.0.calls.clone());
        Ok(Cq(Arc::new_cyclic(|cq| {
            let (raised, changed) = (Mutex::new(false), Condvar::new());
            let signal = Arc::new(Signal { raised, changed, channel, cq: cq.clone() });
            let mut queue = CompletionQueue::new(id, capacity);
            queue.overwrites = ignore_overrun;
            queue.listener = Some(signal.clone());
            let (queue, users, acks) = (Arc::new(queue), CqUsers::new(), EventAcks::default());
            let (work_requests, wall_offset) = (AtomicU64::new(0), AtomicU64::new(0));
            CqInner { context, queue, signal, users, work_requests, acks, wall_offset, calls }
        })))
    }
}

impl Cq {
    /// Returns the context on which the queue was created.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Returns the queue's number, which identifies it in asynchronous events.
    pub fn id(&self) -> CqId {
        self.0.queue.id()
    }

    /// Returns the maximum number of completions that the queue can hold.
    pub fn capacity(&self) -> usize {
        self.0.queue.capacity()
    }

    /// Changes the maximum number of completions that the queue can hold. Queued completions are kept.
    ///
    /// # Errors
    /// [`CreateError::Value`] for 0, above the device's limit, or below the number of queued completions;
    /// [`CreateError::DeviceFatal`].
    pub fn resize(&self, capacity: usize) -> Result<(), CreateError> {
        self.0.context.inject(Call::ibv_resize_cq)?;
        self.0.context.check_device()?;
        let max = self.0.context.0.limits.max_cqe.into();
        let check = |min| CreateError::check("CQ size", capacity as u64, min..=max);
        check(1)?;
        let resized = self.0.context.0.shards.without_completions(|| self.0.queue.resize(capacity));
        resized.or_else(|queued| check(queued as u64))
    }

    /// Moves up to `max` completions from the queue to the end of `out`, and returns how many it moved. Never
    /// blocks. If the queue is empty, polls the link first, so that a polling application needs no background
    /// thread.
    ///
    /// # Errors
    /// [`CqOverflow`] once completions were lost and the earlier ones have been polled, and for a fault on
    /// `ibv_poll_cq` with any error.
    pub fn poll(&self, max: usize, out: &mut Vec<Completion>) -> Result<usize, CqOverflow> {
        self.inject_on_poll()?;
        self.poll_link_in_turn();
        self.0.queue.poll(max, out)
    }

    /// Returns an iterator that takes completions from the queue until it is empty. Each item is taken by a
    /// [`poll`](Self::poll), so the iterator never blocks, and returns completions that arrive meanwhile.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use urxe::verbs::*;
    /// # let (a, b) = Fabric::virtual_time(FabricConfig::default())?.pair()?;
    /// for id in 0..3 {
    ///     b.qp.post_recv(&RecvWr::empty(id))?;
    ///     a.qp.post_send(&SendWr::send(id, &[]))?;
    /// }
    /// assert_eq!(a.cq.wait(Duration::from_secs(1))?.wr_id, 0);
    /// for completion in a.cq.drain() {
    ///     let completion = completion?;
    ///     println!("{}: {}", completion.wr_id, completion.status);
    /// }
    /// assert_eq!(b.cq.drain().collect::<Result<Vec<_>, _>>()?.len(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An item is [`CqOverflow`] where [`poll`](Self::poll) would return it; it is the last item.
    pub fn drain(&self) -> impl Iterator<Item = Result<Completion, CqOverflow>> {
        let next = || {
            self.inject_on_poll()?;
            self.poll_link_in_turn();
            Ok(self.0.queue.take()?.map(|entry| entry.completion))
        };
        let mut is_over = false;
        std::iter::from_fn(move || {
            let polled = if is_over { None } else { next().transpose() };
            is_over = !matches!(polled, Some(Ok(_)));
            polled
        })
    }

    /// Applies the faults on a call that polls.
    fn inject_on_poll(&self) -> Result<(), CqOverflow> {
        let injected = self.0.calls.inject(Call::ibv_poll_cq);
        injected.map_err(|_| CqOverflow { capacity: self.capacity() })
    }

    /// Polls the link if the queue is empty. In virtual time, lets other threads of the fabric run if it
    /// stays empty.
    pub(super) fn poll_link_in_turn(&self) {
        self.poll_link_if_empty();
        if let Some(fabric) = self.0.context.0.shards.virtual_fabric()
            && self.0.queue.is_empty()
        {
            fabric.fabric().pause_after_poll();
        }
    }

    /// Polls the link on the calling thread if the queue is empty.
    pub(super) fn poll_link_if_empty(&self) {
        if self.0.queue.is_empty() {
            let (shards, of) = (&self.0.context.0.shards, self.0.users.shards());
            // An application that has requested an event polls once more and then waits for it.
            match self.0.queue.is_armed() {
                true => shards.poll_once(of),
                false => shards.poll(of),
            }
        }
    }

    /// Requests one event at the next completion (`ibv_req_notify_cq`). Completions already in the queue do
    /// not raise it, so poll again after this call.
    pub fn req_notify(&self, notify: Notify) {
        // The call cannot fail, so a fault has no effect but its delay.
        let _ = self.0.calls.inject(Call::ibv_req_notify_cq);
        *self.0.signal.raised.lock() = false;
        self.0.queue.arm(notify);
        self.announce_wait();
    }

    /// Requests an event like [`req_notify`](Self::req_notify), but as hardware does: if a completion was
    /// added since the last event while no event was requested, and is still queued, the event is raised at
    /// once. Some programs (such as UCX) rely on this and do not poll again. Only [`Notify::Any`] has this
    /// effect.
    pub fn req_notify_with_missed(&self, notify: Notify) {
        *self.0.signal.raised.lock() = false;
        self.0.queue.arm_and_report_missed(notify);
        self.announce_wait();
    }

    /// Announces that the application is about to wait, unless it will wait in a call that does so.
    fn announce_wait(&self) {
        let is_only_thread = self.0.context.0.waiting_threads.on_wait();
        let announces_waits =
            || self.0.signal.channel.as_ref().is_some_and(CompletionChannel::announces_waits);
        if !is_only_thread || !announces_waits() {
            self.0.context.0.shards.stop_polling(self.0.users.shards());
        }
    }

    /// Blocks until there is a completion, whatever its status, and returns it.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]; [`WaitError::Overflow`] once completions were lost; [`WaitError::Idle`] in
    /// virtual time.
    pub fn wait_any(&self, timeout: Duration) -> Result<Completion, WaitError> {
        let mut out = Vec::with_capacity(1);
        let fabric = self.0.context.0.shards.virtual_fabric();
        // In virtual time, the wait lets other threads run, as a poll would.
        let polled = match fabric {
            Some(_) => self.inject_on_poll().and_then(|()| self.0.queue.poll(1, &mut out))?,
            None => self.poll(1, &mut out)?,
        };
        if polled == 1 {
            return Ok(out[0]);
        }
        if let Some(fabric) = fabric {
            return step_until(fabric.fabric(), timeout, || self.0.queue.take().transpose())?
                .map(|entry| entry.completion)
                .map_err(WaitError::Overflow);
        }
        let deadline = deadline_after(timeout);
        loop {
            self.req_notify(Notify::Any);
            self.0.context.0.shards.stop_polling(self.0.users.shards());
            // Not `Cq::poll`, which would keep the background thread from polling the link.
            if self.0.queue.poll(1, &mut out)? == 1 {
                return Ok(out[0]);
            }
            let mut raised = self.0.signal.raised.lock();
            while !*raised {
                if self.0.signal.changed.wait_until(&mut raised, deadline).timed_out() {
                    return Err(WaitError::TimedOut(timeout));
                }
            }
            drop(raised);
            if self.0.queue.poll(1, &mut out)? == 1 {
                return Ok(out[0]);
            }
        }
    }

    /// Blocks until there is a completion, and returns it if its status is success.
    ///
    /// # Errors
    /// [`WaitError::Failed`] with the completion if its status is an error; otherwise as
    /// [`wait_any`](Self::wait_any).
    pub fn wait(&self, timeout: Duration) -> Result<Completion, WaitError> {
        self.wait_any(timeout)?.successful()
    }
}

/// For rsockets, many of which may be polled in one call.
#[cfg(feature = "unstable-internals")]
impl Cq {
    /// Moves completions like [`poll`](Self::poll), but does not poll the link.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    pub fn poll_queued(&self, max: usize, out: &mut Vec<Completion>) -> Result<usize, CqOverflow> {
        self.inject_on_poll()?;
        self.0.queue.poll(max, out)
    }

    /// Requests an event like [`req_notify`](Self::req_notify), but leaves polling to the application, until
    /// it calls [`stop_polling`](Self::stop_polling).
    pub fn arm(&self, notify: Notify) {
        *self.0.signal.raised.lock() = false;
        self.0.queue.arm(notify);
    }

    /// Announces that the application is about to wait.
    pub fn stop_polling(&self) {
        self.0.context.0.waiting_threads.on_wait();
        self.0.context.0.shards.stop_polling(self.0.users.shards());
    }

    /// Polls the link like a [`poll`](Self::poll) that finds the queue empty.
    pub fn poll_link(&self) {
        self.poll_link_in_turn();
    }

    /// Reports whether [`poll_queued`](Self::poll_queued) would find neither a completion nor an overflow.
    pub fn is_quiet(&self) -> bool {
        self.0.queue.is_quiet()
    }

    /// Reports whether [`poll_link`](Self::poll_link) polls all links that it would poll for `other`.
    pub fn polls_links_of(&self, other: &Cq) -> bool {
        self.0.context.is(&other.0.context) && other.0.users.shards() & !self.0.users.shards() == 0
    }

    /// Reports whether an event has been requested and not raised yet.
    pub fn is_armed(&self) -> bool {
        self.0.queue.is_armed()
    }
}

impl Cq {
    /// Destroys the queue as `ibv_destroy_cq` does: fails while work queues complete to it, and waits up to
    /// `timeout` for all events retrieved from its channel to be acknowledged. (Dropping the last handle
    /// never waits, because queue pairs and [`super::CqEvent`]s hold handles of their own.)
    ///
    /// # Errors
    /// [`DestroyCqError::InUse`] while work queues complete to it; [`DestroyCqError::Unacknowledged`] if
    /// events remain unacknowledged after `timeout`.
    pub fn destroy(self, timeout: Duration) -> Result<(), DestroyCqError> {
        match self.0.users.count() {
            0 => {}
            users => return Err(DestroyCqError::InUse(users)),
        }
        match self.0.acks.wait(timeout) {
            0 => Ok(()),
            events => Err(DestroyCqError::Unacknowledged(events)),
        }
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.context.0.asynchronous.forget(EventSubject::Cq(self.queue.id()));
        self.context.0.cqs.release(1);
        if let Some(channel) = &self.signal.channel {
            channel.drop_stale_events();
        }
    }
}

impl PartialEq for Cq {
    /// Reports whether both handles refer to the same queue.
    fn eq(&self, other: &Cq) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = &self.0.queue;
        f.debug_struct("CompletionQueue")
            .field("len", &queue.len())
            .field("capacity", &queue.capacity())
            .finish()
    }
}
