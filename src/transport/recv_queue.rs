//! The receive queue.

use super::fifo::Fifo;
use super::send_queue::gather;
use super::{PostError, RecvWr, Sge};
use crate::memory::{Access, AccessError, PdId, Table};

/// Limits of a receive queue, fixed at creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvCaps {
    /// Work requests.
    pub max_wr: u32,
    /// Scatter/gather elements of each.
    pub max_sge: u32,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RecvWqe {
    pub wr_id: u64,
    /// Bytes that its elements hold.
    pub len: u64,
    sges: usize,
}

#[derive(Debug)]
pub(super) struct RecvQueue {
    pub caps: RecvCaps,
    wqes: Fifo<RecvWqe>,
    sges: Fifo<Sge>,
}

impl RecvQueue {
    pub fn new(caps: RecvCaps) -> RecvQueue {
        RecvQueue { caps, wqes: Fifo::default(), sges: Fifo::default() }
    }

    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.wqes.len() >= self.caps.max_wr as usize {
            return Err(PostError::QueueFull(self.caps.max_wr));
        }
        if wr.sges.len() > self.caps.max_sge as usize {
            return Err(PostError::TooManySges { got: wr.sges.len(), max: self.caps.max_sge });
        }
        self.sges.extend(wr.sges);
        let len = wr.sges.iter().map(|s| s.length as u64).sum();
        self.wqes.push(RecvWqe { wr_id: wr.wr_id, len, sges: wr.sges.len() });
        Ok(())
    }

    pub fn front(&self) -> Option<&RecvWqe> {
        self.wqes.front()
    }

    pub fn retire(&mut self) -> Option<RecvWqe> {
        let wqe = self.wqes.pop()?;
        self.sges.release(wqe.sges);
        Some(wqe)
    }

    /// Stores `data` at byte `at` of the oldest receive's buffers, all of it or, on an error, a part.
    pub fn scatter(&self, at: u32, data: &[u8], pd: PdId, memory: &Table) -> Result<(), AccessError> {
        let Some(wqe) = self.wqes.front() else { return Ok(()) };
        let mut rest = data;
        gather(self.sges.range(self.sges.start(), wqe.sges), at, data.len() as u32, |sge, addr, n| {
            let (now, later) = rest.split_at(n as usize);
            memory.local(pd, sge.lkey, addr, n, Access::LOCAL_WRITE)?.store(now);
            rest = later;
            Ok(())
        })
    }

    pub fn clear(&mut self) {
        self.wqes.clear();
        self.sges.clear();
    }
}
