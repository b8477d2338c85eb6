//! Extended polling (`ibv_start_poll`): completions are retrieved one at a time, and each has a
//! timestamp.

use std::ops::Deref;
use std::sync::OnceLock;

use bitflags::bitflags;

use super::{Cq, CqOverflow};
use crate::driver::TimestampedCompletion;
use crate::transport::Completion;

/// A batch of polls on a completion queue, from `ibv_start_poll` to `ibv_end_poll`.
///
/// ```
/// # use urxe::verbs::*;
/// # let (a, b) = Fabric::new().pair()?;
/// # b.qp.post_recv(&RecvWr::empty(1))?;
/// # a.qp.post_send(&SendWr::send(2, &[]))?;
/// let mut poll = a.cq.start_poll();
/// while let Some(wc) = poll.next_poll()? {
///     println!("{} {} at {} ns", wc.wr_id, wc.status, wc.completion_timestamp());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A returned completion is no longer in the queue. The queue is not locked between two completions, so
/// other threads may post and poll meanwhile.
#[derive(Debug)]
pub struct CqPoll<'q> {
    cq: &'q Cq,
    current: Option<TimestampedCompletion>,
    /// Offset from the NIC's clock to the wall clock, measured once for all completions of the batch.
    wall_offset: OnceLock<u64>,
}

impl Cq {
    /// Begins a batch of polls. If the queue is empty, polls the link first, so that a polling application
    /// needs no background thread.
    pub fn start_poll(&self) -> CqPoll<'_> {
        self.poll_link_in_turn();
        CqPoll { cq: self, current: None, wall_offset: OnceLock::new() }
    }
}

impl CqPoll<'_> {
    /// Advances to the next completion and returns it, or `None` if the queue is empty.
    ///
    /// # Errors
    /// [`CqOverflow`] once completions were lost and the earlier ones have been polled.
    pub fn next_poll(&mut self) -> Result<Option<Wc<'_>>, CqOverflow> {
        self.current = self.cq.0.queue.take()?;
        Ok(self.current())
    }

    /// Returns the current completion.
    pub fn current(&self) -> Option<Wc<'_>> {
        let CqPoll { cq, current, wall_offset } = self;
        current.as_ref().map(|entry| Wc { entry, cq, wall_offset })
    }

    /// Ends the batch, as dropping it does.
    pub fn end_poll(self) {}
}

/// The current completion of a batch, which dereferences to the [`Completion`], and its timestamps. If its
/// status is an error, the only other valid fields are [`wr_id`](Completion::wr_id),
/// [`qpn`](Completion::qpn), [`vendor_err`](Completion::vendor_err) and the timestamps.
#[derive(Clone, Copy)]
pub struct Wc<'p> {
    entry: &'p TimestampedCompletion,
    cq: &'p Cq,
    wall_offset: &'p OnceLock<u64>,
}

impl Deref for Wc<'_> {
    type Target = Completion;
    fn deref(&self) -> &Completion {
        &self.entry.completion
    }
}

impl Wc<'_> {
    /// Returns flags that tell which optional fields the completion has.
    pub fn wc_flags(&self) -> WcFlags {
        WcFlags::from(&self.entry.completion)
    }

    /// Returns the time at which the completion was added to the queue, in nanoseconds on the NIC's clock
    /// ([`super::Context::clock`]).
    pub fn completion_timestamp(&self) -> u64 {
        self.entry.at.0
    }

    /// Returns the completion's wall-clock time, in nanoseconds since the Unix epoch; in virtual time, the
    /// time of the fabric's clock, which starts at 0. From one completion of a queue to the next it never
    /// decreases, unless the wall clock is set back between two batches.
    pub fn completion_wallclock_ns(&self) -> u64 {
        let clock = self.cq.context().0.shards.clock();
        self.entry.at.0 + self.wall_offset.get_or_init(|| clock.wallclock_offset(&self.cq.0.wall_offset))
    }
}

bitflags! {
    /// Optional fields of a completion, with the bit values of `enum ibv_wc_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the receive buffer hold the routing header.
        const GRH = 1 << 0;
        /// There is immediate data.
        const WITH_IMM = 1 << 1;
        /// A key was invalidated.
        const WITH_INV = 1 << 3;
    }
}

impl From<&Completion> for WcFlags {
    fn from(c: &Completion) -> WcFlags {
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::GRH, c.grh);
        flags.set(WcFlags::WITH_IMM, c.imm.is_some());
        flags.set(WcFlags::WITH_INV, c.invalidated.is_some());
        flags
    }
}
