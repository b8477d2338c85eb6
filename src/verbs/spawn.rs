//! Threads on a fabric: in virtual time, programs with blocking calls run one thread at a time, in an order
//! determined by the seed.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::WaitError;
use crate::driver::step_until;
use crate::fabric::Fabric;

/// Interval at which [`Fabric::wait_until`] looks in real time.
const INTERVAL: Duration = Duration::from_micros(50);

/// Thread started by [`Fabric::spawn`].
pub struct FabricThread<T> {
    fabric: Fabric,
    ended: Arc<Mutex<bool>>,
    handle: JoinHandle<T>,
}

impl<T> FabricThread<T> {
    /// Waits until the thread has ended, and returns its result.
    ///
    /// # Panics
    /// If the thread has panicked, with the same payload.
    pub fn join(self) -> T {
        if self.fabric.is_virtual() {
            // If all threads are idle, their waits end with an error, and they go on.
            while self.fabric.wait_until(Duration::MAX, || self.is_finished().then_some(())).is_err() {}
        }
        self.handle.join().unwrap_or_else(|payload| resume_unwind(payload))
    }

    /// Reports whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        *self.ended.lock()
    }
}

impl<T> fmt::Debug for FabricThread<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FabricThread").field("is_finished", &self.is_finished()).finish_non_exhaustive()
    }
}

impl Fabric {
    /// Starts a thread. In real time, this is [`std::thread::spawn`].
    ///
    /// In virtual time, the threads of a fabric run one at a time, so that code with blocking calls is tested
    /// as it is, and a run with the same seed repeats. A thread runs until it waits: in a blocking call
    /// of this library, in [`sleep`](Self::sleep), [`wait_until`](Self::wait_until) or
    /// [`FabricThread::join`], or after a poll that has found nothing, which takes a microsecond of
    /// virtual time. Then the next thread runs, drawn by the seed, and when all wait, the clock advances.
    /// A new thread begins when the current one waits; unless it is joined, it may never run.
    ///
    /// A thread must not block on another one in any other way, such as in a mutex that the other holds while
    /// it waits: no thread would run any more.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use urxe::verbs::*;
    ///
    /// let fabric = Fabric::virtual_time(FabricConfig::default().latency(Duration::from_micros(5)).loss(0.1).seed(1))?;
    /// let (client, server) = fabric.pair()?;
    /// let server = fabric.spawn(move || {
    ///     server.qp.post_recv(&RecvWr::empty(1))?;
    ///     Ok::<_, urxe::Error>(server.cq.wait(Duration::from_secs(1))?)
    /// });
    /// client.qp.post_send(&SendWr::send(2, &[]))?;
    /// client.cq.wait(Duration::from_secs(1))?;
    /// assert_eq!(server.join()?.wr_id, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> FabricThread<T> {
        let (fabric, ended) = (self.clone(), Arc::new(Mutex::new(false)));
        let (within, done) = (fabric.clone(), ended.clone());
        let id = self.is_virtual().then(|| self.threads().add());
        let handle = std::thread::spawn(move || {
            let run = || {
                let result = catch_unwind(AssertUnwindSafe(f));
                *done.lock() = true;
                result
            };
            match id {
                Some(id) => within.run_thread(id, run),
                None => run(),
            }
            .unwrap_or_else(|payload| resume_unwind(payload))
        });
        FabricThread { fabric, ended, handle }
    }

    /// Waits for a while: in virtual time until the clock has advanced by `time`, while other threads of the
    /// fabric run.
    pub fn sleep(&self, time: Duration) {
        match self.is_virtual() {
            true => self.advance(time),
            false => std::thread::sleep(time),
        }
    }

    /// Waits until `take` returns a value, and returns that value: a wait for something that no blocking call
    /// of this library waits for, such as a message of another thread. In real time, `take` is called
    /// every 50 µs.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]; [`WaitError::Idle`] in virtual time, if nothing is pending that could end the
    /// wait.
    pub fn wait_until<R>(
        &self,
        timeout: Duration,
        mut take: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        if self.is_virtual() {
            return Ok(step_until(self, timeout, take)?);
        }
        let begin = std::time::Instant::now();
        loop {
            if let Some(taken) = take() {
                return Ok(taken);
            }
            if begin.elapsed() >= timeout {
                return Err(WaitError::TimedOut(timeout));
            }
            std::thread::sleep(INTERVAL);
        }
    }
}
