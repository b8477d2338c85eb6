use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::channel::Acks;
use super::shards::Users;
use super::wait::step_until;
use super::{CompletionChannel, Context, CreateError, DestroyCqError, WaitError};
use crate::nic::{CompletionQueue, CqListener, CqOverflow, EventSubject, Notify};
use crate::transport::{Completion, CqId, WcStatus};

/// A completion queue. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Cq(pub(super) Arc<CqInner>);

pub(super) struct CqInner {
    context: Context,
    pub queue: Arc<CompletionQueue>,
    signal: Arc<Signal>,
    /// Queues that complete to it: send, receive and, for XRC, shared receive queues.
    pub users: Users,
    pub acks: Acks,
    /// From the NIC's clock to the wall clock, as last measured for this queue; 0 at first.
    pub wall_offset: AtomicU64,
}

/// What a completion queue is made with.
///
/// Verbs has `IBV_CREATE_CQ_ATTR_SINGLE_THREADED` too, which does away with locking. Here the NIC itself may be
/// another thread, so there is no such thing.
#[derive(Clone, Debug, Default)]
pub struct CqOptions {
    /// Completions that it holds.
    pub capacity: usize,
    /// Where its events go.
    pub channel: Option<CompletionChannel>,
    /// Which of the device's vectors raises its events, below [`super::Limits::num_comp_vectors`].
    pub comp_vector: u32,
    /// A completion that finds it full takes the place of the oldest: for those who do not read all. Else it is
    /// lost, with an event, and its queue pair goes to the error state.
    pub ignore_overrun: bool,
}

/// Told by the NIC of the event that was asked for.
struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
    channel: Option<CompletionChannel>,
    /// The queue that the channel's event names.
    cq: Mutex<Weak<CqInner>>,
}

impl CqListener for Signal {
    fn completion(&self) {
        *self.raised.lock() = true;
        self.changed.notify_all();
        if let Some(channel) = &self.channel {
            channel.push(self.cq.lock().clone());
        }
    }
}

impl Cq {
    pub(super) fn new(context: Context, options: &CqOptions) -> Result<Cq, CreateError> {
        let CqOptions { capacity, channel, comp_vector, ignore_overrun } = options.clone();
        context.check_device()?;
        let max = context.0.limits.max_cqe as u64;
        if capacity == 0 || capacity as u64 > max {
            return Err(CreateError::Value { name: "a CQ's size", value: capacity as u64, min: 1, max });
        }
        if channel.as_ref().is_some_and(|c| !c.context().is(&context)) {
            return Err(CreateError::OtherContext("completion channel"));
        }
        let vectors = context.0.limits.num_comp_vectors;
        if comp_vector >= vectors {
            let (value, max) = (comp_vector.into(), u64::from(vectors) - 1);
            return Err(CreateError::Value { name: "comp_vector", value, min: 0, max });
        }
        let queue = CompletionQueue::numbered(context.next_cq(), capacity);
        context.0.cqs.take()?;
        context.0.asynchronous.own(EventSubject::Cq(queue.id()), context.0.reader);
        let queue = Arc::new(if ignore_overrun { queue.overwriting() } else { queue });
        let (raised, changed, cq) = (Mutex::new(false), Condvar::new(), Mutex::new(Weak::new()));
        let signal = Arc::new(Signal { raised, changed, channel, cq });
        queue.set_listener(signal.clone());
        let (users, acks) = (Users::new(), Acks::default());
        let cq = Arc::new(CqInner { context, queue, signal, users, acks, wall_offset: AtomicU64::new(0) });
        *cq.signal.cq.lock() = Arc::downgrade(&cq);
        Ok(Cq(cq))
    }

    /// The context that it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Its handle, as events name it.
    pub fn id(&self) -> CqId {
        self.0.queue.id()
    }

    /// Completions that it holds at most.
    pub fn capacity(&self) -> usize {
        self.0.queue.capacity()
    }

    /// Changes how many completions it holds; those that wait stay.
    ///
    /// # Errors
    /// [`CreateError::Value`] above the device's limit, or below what waits.
    pub fn resize(&self, capacity: usize) -> Result<(), CreateError> {
        self.0.context.check_device()?;
        let max = self.0.context.0.limits.max_cqe as u64;
        let refused = |min: usize| CreateError::Value {
            name: "a CQ's size",
            value: capacity as u64,
            min: min as u64,
            max,
        };
        if capacity == 0 || capacity as u64 > max {
            return Err(refused(1));
        }
        self.0.context.0.shards.without_completions(|| self.0.queue.resize(capacity)).map_err(refused)
    }

    /// Moves up to `max` completions to the end of `out` and returns how many. Looks at the link first if
    /// there are none, so that polling needs no other thread.
    ///
    /// # Errors
    /// [`CqOverflow`] once completions were lost.
    pub fn poll(&self, max: usize, out: &mut Vec<Completion>) -> Result<usize, CqOverflow> {
        self.look_at_link();
        self.0.queue.poll(max, out)
    }

    /// If there are no completions.
    pub(super) fn look_at_link(&self) {
        if self.0.queue.is_empty() {
            let (shards, of) = (&self.0.context.0.shards, self.0.users.shards());
            // Who has asked for an event looks once more, and then waits for it.
            match self.0.queue.is_armed() {
                true => shards.look_once(of),
                false => shards.poll(of),
            }
        }
    }

    /// Asks for one event at the next completion. One that is already there raises none: poll once more
    /// after asking.
    pub fn req_notify(&self, notify: Notify) {
        *self.0.signal.raised.lock() = false;
        self.0.queue.arm(notify);
        self.0.context.0.shards.stop_polling(self.0.users.shards());
    }

    /// [`req_notify`](Self::req_notify) as hardware does it: a completion that came unasked since the last event, and is
    /// still there, raises the event at once.
    /// There are programs (UCX) that do not poll once more. It is so for [`Notify::Any`] only.
    pub fn req_notify_with_missed(&self, notify: Notify) {
        *self.0.signal.raised.lock() = false;
        self.0.queue.arm_with_missed(notify);
        self.0.context.0.shards.stop_polling(self.0.users.shards());
    }

    /// Waits for a completion, whatever its status.
    ///
    /// # Errors
    /// [`WaitError`] but `Failed`.
    pub fn wait_any(&self, timeout: Duration) -> Result<Completion, WaitError> {
        let mut out = Vec::with_capacity(1);
        if self.poll(1, &mut out)? == 1 {
            return Ok(out[0]);
        }
        if let Some(fabric) = self.0.context.0.shards.virtual_fabric() {
            return step_until(fabric.fabric(), timeout, || self.0.queue.take().transpose())?
                .map(|entry| entry.completion)
                .map_err(WaitError::Overflow);
        }
        let deadline = Instant::now() + timeout;
        loop {
            self.req_notify(Notify::Any);
            // Not `poll`: the background thread is to look at the link from now on.
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

    /// Waits for a completion that is a success.
    ///
    /// # Errors
    /// [`WaitError`]; `Failed` holds a completion with an error.
    pub fn wait(&self, timeout: Duration) -> Result<Completion, WaitError> {
        let completion = self.wait_any(timeout)?;
        if completion.status == WcStatus::Success {
            Ok(completion)
        } else {
            Err(WaitError::Failed(completion))
        }
    }
}

impl Cq {
    /// Lets go of the queue as `ibv_destroy_cq` does: not while queue pairs complete to it, and not before all
    /// events taken off its channel are acknowledged, for which it waits. (Dropping the last handle waits for
    /// nothing: queue pairs and [`super::CqEvent`]s hold handles of their own.)
    ///
    /// # Errors
    /// [`DestroyCqError`].
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
        self.context.0.shards.look(|nic| nic.forget_cq(self.queue.id()));
        self.context.0.cqs.give_back();
        if let Some(channel) = &self.signal.channel {
            channel.sweep();
        }
    }
}

impl PartialEq for Cq {
    /// Whether both are the same queue.
    fn eq(&self, other: &Cq) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.queue.fmt(f)
    }
}
