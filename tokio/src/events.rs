//! Asynchronous waits for a device's asynchronous events.

use urxe::verbs::errors::WaitError;
use urxe::verbs::{AsyncEvent, Context};

use crate::Waiter;

/// Stream of a context's asynchronous events, which can be awaited.
#[derive(Debug)]
pub struct EventStream {
    context: Context,
    waiter: Waiter,
}

impl EventStream {
    /// Creates a stream of the context's events. If several streams or handles read the same context's
    /// events, each event is delivered to only one of them.
    pub fn new(context: &Context) -> EventStream {
        EventStream { context: context.clone(), waiter: Waiter::default() }
    }

    /// Waits for an asynchronous event, and returns it.
    ///
    /// Cancel-safe: a dropped future takes no event.
    ///
    /// # Errors
    /// [`WaitError::Idle`] in virtual time; [`WaitError::Runtime`].
    pub async fn next(&mut self) -> Result<AsyncEvent, WaitError> {
        let context = &self.context;
        self.waiter.wait(context.event_fd(), context.prepare_wait(), || context.next_event()).await
    }
}
