//! Waits of asynchronous tasks: on a descriptor in real time, or by advancing the clock in virtual time.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::OnceLock;
use std::task::Poll;

use urxe::verbs::Fabric;
use urxe::verbs::errors::WaitError;

use crate::watched_fd::WatchedFd;

/// Number of times that the other tasks run, while the fabric has nothing to do, before a wait fails with
/// [`WaitError::Idle`]. If tasks wake each other in a chain, each task in the chain needs one such run.
const IDLE_TURNS: u32 = 64;

/// State of the tasks that wait for one source of events.
#[derive(Debug, Default)]
pub struct Waiter {
    /// Registration of the source's descriptor, created by the first wait in real time.
    watched: OnceLock<WatchedFd>,
}

impl Waiter {
    /// Waits until `take` returns a value. A future dropped before completion has taken nothing. `fd` must
    /// become readable whenever `take` may return a value. If several tasks wait, each calls its `take` after
    /// `fd` has become readable, so a task that takes what another waits for must wake the other.
    pub async fn wait<R>(
        &self,
        fd: BorrowedFd<'_>,
        fabric: Option<Fabric>,
        mut take: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        // A task whose source always has a value must not starve the others.
        tokio::task::coop::consume_budget().await;
        if let Some(fabric) = fabric {
            return step_until(&fabric, take).await;
        }
        loop {
            // An event from before is taken here, one from after this point makes `fd` readable again.
            if let Some(taken) = take() {
                return Ok(taken);
            }
            let watched = match self.watched.get() {
                Some(watched) => watched,
                None => {
                    let new = WatchedFd::new(fd).map_err(error)?;
                    self.watched.get_or_init(|| new)
                }
            };
            watched.readable().await.map_err(error)?;
        }
    }
}

/// Polls two futures, `first` before `second`, until one of them is ready.
pub async fn first_of<R>(first: impl Future<Output = R>, second: impl Future<Output = R>) -> R {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|task| match first.as_mut().poll(task) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => second.as_mut().poll(task),
    })
    .await
}

/// Advances virtual time until `take` returns a value, and runs the other tasks before each step.
async fn step_until<R>(fabric: &Fabric, mut take: impl FnMut() -> Option<R>) -> Result<R, WaitError> {
    let mut idle_turns = 0;
    while idle_turns < IDLE_TURNS {
        if let Some(taken) = take() {
            return Ok(taken);
        }
        tokio::task::yield_now().await;
        // Another task may have done what this one waits for, without a step.
        if let Some(taken) = take() {
            return Ok(taken);
        }
        idle_turns = if fabric.step().is_some() { 0 } else { idle_turns + 1 };
    }
    Err(WaitError::Idle)
}

fn error(e: io::Error) -> WaitError {
    // Errors of the runtime itself have no number: it is shutting down.
    WaitError::Runtime(e.raw_os_error().unwrap_or(libc::ECANCELED))
}
