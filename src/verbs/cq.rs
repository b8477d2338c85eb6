use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Condvar, Mutex};

use super::{Context, CreateError, WaitError};
use crate::link::fabric::FabricHandle;
use crate::nic::{CompletionQueue, CqListener, CqOverflow, Notify};
use crate::transport::{Completion, CqId, WcStatus};

/// A completion queue. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Cq(pub(super) Arc<CqInner>);

pub(super) struct CqInner {
    context: Context,
    pub queue: Arc<CompletionQueue>,
    signal: Arc<Signal>,
}

/// Told by the NIC of the event that was asked for.
struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
    channel: Option<CompletionChannel>,
    /// Whom the channel's event names.
    cq: Mutex<Weak<CqInner>>,
}

impl CqListener for Signal {
    fn completion(&self) {
        *self.raised.lock() = true;
        self.changed.notify_all();
        if let Some(channel) = &self.channel {
            channel.0.events.lock().push_back(self.cq.lock().clone());
            // Only a full counter could refuse; then the descriptor is readable anyway.
            let _ = channel.0.readable.write(1);
        }
    }
}

impl Cq {
    pub(super) fn new(
        context: Context,
        capacity: usize,
        channel: Option<CompletionChannel>,
    ) -> Result<Cq, CreateError> {
        let max = context.0.limits.max_cqe as u64;
        if capacity == 0 || capacity as u64 > max {
            return Err(CreateError::Value { name: "a CQ's size", value: capacity as u64, min: 1, max });
        }
        if channel.as_ref().is_some_and(|c| !c.0.context.is(&context)) {
            return Err(CreateError::OtherContext("completion channel"));
        }
        let queue = Arc::new(CompletionQueue::numbered(context.next_cq(), capacity));
        let (raised, changed, cq) = (Mutex::new(false), Condvar::new(), Mutex::new(Weak::new()));
        let signal = Arc::new(Signal { raised, changed, channel, cq });
        queue.set_listener(signal.clone());
        let cq = Arc::new(CqInner { context, queue, signal });
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
        self.0.queue.resize(capacity).map_err(refused)
    }

    /// Moves up to `max` completions to the end of `out` and returns how many. Looks at the link first if
    /// there are none, so that polling needs no other thread.
    ///
    /// # Errors
    /// [`CqOverflow`] once completions were lost.
    pub fn poll(&self, max: usize, out: &mut Vec<Completion>) -> Result<usize, CqOverflow> {
        if self.0.queue.is_empty() {
            self.0.context.0.shard.poll();
        }
        self.0.queue.poll(max, out)
    }

    /// Asks for one event at the next completion. One that is already there raises none: poll once more
    /// after asking.
    pub fn req_notify(&self, notify: Notify) {
        *self.0.signal.raised.lock() = false;
        self.0.queue.arm(notify);
        self.0.context.0.shard.stop_polling();
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
        if let Some(fabric) = self.0.context.0.shard.virtual_fabric() {
            return self.wait_virtual(fabric, timeout, &mut out);
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

    fn wait_virtual(
        &self,
        fabric: &FabricHandle,
        timeout: Duration,
        out: &mut Vec<Completion>,
    ) -> Result<Completion, WaitError> {
        let fabric = fabric.fabric();
        let deadline = fabric.now() + timeout;
        while fabric.now() <= deadline {
            if self.0.queue.poll(1, out)? == 1 {
                return Ok(out[0]);
            }
            fabric.step().ok_or(WaitError::Idle)?;
        }
        Err(WaitError::TimedOut(timeout))
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
        let readable = EventFd::from_flags(flags).map_err(|e| CreateError::Channel(e.to_string()))?;
        Ok(CompletionChannel(Arc::new(ChannelInner { context, readable, events: Mutex::default() })))
    }

    /// The queue of the oldest event, if there is one. Never waits: poll the descriptor for that.
    pub fn next_event(&self) -> Option<Cq> {
        loop {
            let cq = self.0.events.lock().pop_front()?;
            // One count for each event; it cannot be empty.
            let _ = self.0.readable.read();
            // A queue may be gone since.
            if let Some(cq) = cq.upgrade() {
                return Some(Cq(cq));
            }
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.readable.as_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionChannel({} events)", self.0.events.lock().len())
    }
}
