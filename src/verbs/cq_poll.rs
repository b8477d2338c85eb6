//! Extended polling: completions one at a time, read field by field, with the time of each.

use std::sync::OnceLock;

use super::{Cq, CqOverflow};
use crate::nic::Stamped;
use crate::transport::{WcOpcode, WcStatus};
use crate::wire::{Qpn, RKey};

/// A round of polling a completion queue, as from `ibv_start_poll` to `ibv_end_poll`.
///
/// ```
/// # use urxe::verbs::*;
/// # let (a, b) = Fabric::new().pair()?;
/// # b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] })?;
/// # a.qp.post_send(&SendWr::send(2, &[]))?;
/// let mut poll = a.cq.start_poll();
/// while let Some(wc) = poll.next_poll()? {
///     println!("{} {} at {} ns", wc.wr_id(), wc.status(), wc.completion_timestamp());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A completion has left the queue when it is shown. The queue is not locked between two of them, so posting,
/// and polling from other threads, goes on meanwhile.
#[derive(Debug)]
pub struct CqPoll<'q> {
    cq: &'q Cq,
    current: Option<Stamped>,
    /// To the wall clock: one for all completions of the round.
    wall_offset: OnceLock<u64>,
}

impl Cq {
    /// Begins to poll. Looks at the link first if there are no completions, so that polling needs no other
    /// thread.
    pub fn start_poll(&self) -> CqPoll<'_> {
        self.look_at_link();
        CqPoll { cq: self, current: None, wall_offset: OnceLock::new() }
    }
}

impl CqPoll<'_> {
    /// Goes on to the next completion, if there is one.
    ///
    /// # Errors
    /// [`CqOverflow`] once completions were lost.
    pub fn next_poll(&mut self) -> Result<Option<Wc<'_>>, CqOverflow> {
        self.current = self.cq.0.queue.take()?;
        Ok(self.current())
    }

    /// The completion that it is at.
    pub fn current(&self) -> Option<Wc<'_>> {
        let CqPoll { cq, current, wall_offset } = self;
        current.as_ref().map(|entry| Wc { entry, cq, wall_offset })
    }

    /// Ends the round; so does dropping it.
    pub fn end_poll(self) {}
}

/// A completion being polled. If its status is no success, only [`wr_id`](Self::wr_id), [`qpn`](Self::qpn),
/// [`vendor_err`](Self::vendor_err) and the times count beside it.
#[derive(Clone, Copy)]
pub struct Wc<'p> {
    entry: &'p Stamped,
    cq: &'p Cq,
    wall_offset: &'p OnceLock<u64>,
}

impl Wc<'_> {
    /// The work request's.
    pub fn wr_id(&self) -> u64 {
        self.entry.completion.wr_id
    }

    /// How it ended.
    pub fn status(&self) -> WcStatus {
        self.entry.completion.status
    }

    /// What it was.
    pub fn opcode(&self) -> WcOpcode {
        self.entry.completion.opcode
    }

    /// An implementation's own number for an error.
    pub fn vendor_err(&self) -> u32 {
        self.entry.completion.vendor_err
    }

    /// Bytes received, read or swapped; for sends the message's length.
    pub fn byte_len(&self) -> u32 {
        self.entry.completion.byte_len
    }

    /// The immediate data, if some came.
    pub fn imm(&self) -> Option<u32> {
        self.entry.completion.imm
    }

    /// The key of ours that the SEND invalidated, if it did.
    pub fn invalidated_rkey(&self) -> Option<RKey> {
        self.entry.completion.invalidated
    }

    /// The QP.
    pub fn qpn(&self) -> Qpn {
        self.entry.completion.qpn
    }

    /// The peer's QP.
    pub fn src_qpn(&self) -> Qpn {
        self.entry.completion.src_qpn
    }

    /// What else came with it.
    pub fn wc_flags(&self) -> WcFlags {
        let c = &self.entry.completion;
        WcFlags { grh: c.grh, with_imm: c.imm.is_some(), with_inv: c.invalidated.is_some() }
    }

    /// Whether the routing header, if there is one, is IPv4's.
    pub fn over_ipv4(&self) -> bool {
        self.entry.completion.over_ipv4
    }

    /// Index of the partition key that the message came with.
    pub fn pkey_index(&self) -> u16 {
        self.entry.completion.pkey_index
    }

    /// When it was put into the queue: ticks of the NIC's clock ([`super::Context::clock`]), which are
    /// nanoseconds.
    pub fn completion_timestamp(&self) -> u64 {
        self.entry.at.0
    }

    /// Time of the completion in nanoseconds since 1970; in virtual time that of the fabric's clock, which starts at 0. It
    /// does not go backwards from one completion of a queue to the next, unless the wall clock is set back between two rounds.
    pub fn completion_wallclock_ns(&self) -> u64 {
        let clock = self.cq.context().0.shards.clock();
        self.entry.at.0 + self.wall_offset.get_or_init(|| clock.wallclock_offset(&self.cq.0.wall_offset))
    }
}

/// What comes with a completion, `enum ibv_wc_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WcFlags {
    /// The first 40 bytes of the receive are the routing header.
    pub grh: bool,
    /// There is immediate data.
    pub with_imm: bool,
    /// A key was invalidated.
    pub with_inv: bool,
}

impl WcFlags {
    /// With the numbers of verbs: 1 for `IBV_WC_GRH`, 2 for `IBV_WC_WITH_IMM`, 8 for `IBV_WC_WITH_INV`.
    pub const fn bits(self) -> u32 {
        self.grh as u32 | (self.with_imm as u32) << 1 | (self.with_inv as u32) << 3
    }
}
