//! Asynchronous waits for completions and completion queue events.

use std::os::fd::AsFd;

use urxe::verbs::errors::{CreateError, WaitError};
use urxe::verbs::{Completion, CompletionChannel, Context, Cq, CqEvent, CqOptions, Notify};

use crate::Waiter;

/// A completion queue whose completions can be awaited. It has its own completion channel.
///
/// One task waits at a time. Programs with several tasks on a queue let one of them wait, which passes the
/// completions on by their `wr_id`.
#[derive(Debug)]
pub struct AsyncCq {
    cq: Cq,
    channel: CompletionChannel,
    waiter: Waiter,
}

impl AsyncCq {
    /// Creates a completion queue with the given capacity or options. A channel in the options is replaced by
    /// the queue's own channel.
    ///
    /// # Errors
    /// Those of [`Context::create_cq`], and [`CreateError::Channel`].
    pub fn new(context: &Context, options: impl Into<CqOptions>) -> Result<AsyncCq, CreateError> {
        let channel = context.create_channel()?;
        let cq = context.create_cq(options.into().channel(&channel))?;
        Ok(AsyncCq { cq, channel, waiter: Waiter::default() })
    }

    /// Returns the completion queue, for creating queue pairs and for polling without waiting.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Waits for a completion, successful or not, and returns it.
    ///
    /// Cancel-safe: a dropped future takes no completion.
    ///
    /// # Errors
    /// [`WaitError::Overflow`] once completions were lost; [`WaitError::Idle`] in virtual time;
    /// [`WaitError::Runtime`].
    pub async fn wait_any(&mut self) -> Result<Completion, WaitError> {
        self.wait_until(|| self.take()).await?
    }

    /// Waits until `take` returns a value. `take` must call [`take`](Self::take) until that returns `None`,
    /// or find that there has been no event since.
    pub(crate) async fn wait_until<R>(&self, take: impl FnMut() -> Option<R>) -> Result<R, WaitError> {
        self.waiter.wait(self.channel.as_fd(), self.cq.context().virtual_fabric(), take).await
    }

    /// Takes a completion, or requests an event for the next one.
    pub(crate) fn take(&self) -> Option<Result<Completion, WaitError>> {
        let mut out = Vec::with_capacity(1);
        let mut poll = || match self.cq.poll(1, &mut out) {
            Ok(0) => None,
            Ok(_) => out.pop().map(Ok),
            Err(overflow) => Some(Err(WaitError::from(overflow))),
        };
        if let Some(result) = poll() {
            return Some(result);
        }
        // Events from before are of no use; the request below is for the completions from now on.
        while self.take_event() {}
        self.cq.req_notify(Notify::Any);
        // A completion between the first poll and the request raises no event.
        poll()
    }

    /// Takes an event of the completion queue, and reports whether there was one.
    pub(crate) fn take_event(&self) -> bool {
        self.channel.next_event().is_some()
    }

    /// Waits for a completion, and returns it if it is successful.
    ///
    /// Cancel-safe: a dropped future takes no completion.
    ///
    /// # Errors
    /// [`WaitError::Failed`] with the completion if its status is an error; otherwise as
    /// [`wait_any`](Self::wait_any).
    pub async fn wait(&mut self) -> Result<Completion, WaitError> {
        self.wait_any().await?.successful()
    }
}

/// A completion channel whose events can be awaited, for programs that request the events of several queues
/// themselves (with [`Cq::req_notify`]).
#[derive(Debug)]
pub struct AsyncCompletionChannel {
    channel: CompletionChannel,
    waiter: Waiter,
}

impl AsyncCompletionChannel {
    /// Wraps a channel.
    pub fn new(channel: CompletionChannel) -> AsyncCompletionChannel {
        AsyncCompletionChannel { channel, waiter: Waiter::default() }
    }

    /// Returns the channel, for creating completion queues.
    pub fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    /// Waits for an event, and returns it.
    ///
    /// Cancel-safe: a dropped future takes no event.
    ///
    /// # Errors
    /// [`WaitError::Idle`] in virtual time; [`WaitError::Runtime`].
    pub async fn get_event(&mut self) -> Result<CqEvent, WaitError> {
        let (channel, context) = (&self.channel, self.channel.context());
        let fabric = context.prepare_wait();
        self.waiter.wait(channel.as_fd(), fabric, || channel.next_event()).await
    }
}
