//! Receive queues, shared by several queue pairs or used by one.

use std::collections::VecDeque;

use urxe::transport::SrqId;

use super::program::Recv;

/// A receive queue.
pub struct Pool {
    pub side: usize,
    /// Indices of the queue pairs that consume receives from the queue.
    pub users: Vec<usize>,
    pub shared: bool,
    /// Whether the queue is an XRC shared receive queue, to which packets refer by number.
    pub xrc: bool,
    /// Number of the shared receive queue in the NIC; `None` if the queue is not shared.
    pub srq: Option<SrqId>,
    pub recvs: Vec<Recv>,
    /// Number of receives posted so far.
    pub posted: usize,
    /// Capacity in work requests.
    pub depth: u32,
    /// Whether each receive has completed, with any status.
    pub done: Vec<bool>,
    /// Posted receives not yet consumed by a message. Tracked only for unreliable services, because only
    /// there the model predicts the effect of each packet.
    pub waiting: VecDeque<usize>,
}

impl Pool {
    /// Creates an empty queue with a capacity of `depth` work requests.
    pub fn new(side: usize, shared: bool, depth: u32) -> Pool {
        Pool {
            side,
            users: Vec::new(),
            shared,
            xrc: false,
            srq: None,
            recvs: Vec::new(),
            posted: 0,
            depth,
            done: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Sets the receives to be posted to the queue during the run.
    pub fn fill(&mut self, recvs: Vec<Recv>) {
        self.done = vec![false; recvs.len()];
        self.recvs = recvs;
    }

    /// Returns the `wr_id` of receive `index` of receive queue `pool`.
    pub fn wr_id(pool: usize, index: usize) -> u64 {
        (pool as u64) << 32 | index as u64
    }

    /// Marks the receive that completed with `wr_id` as done, and returns its index. Panics unless it belongs
    /// to `pool` and has not completed before, and at most one older receive for each other queue pair (for a
    /// message in progress) is not yet done.
    pub fn finish(&mut self, pool: usize, wr_id: u64) -> usize {
        assert_eq!(
            (wr_id >> 32) as usize,
            pool,
            "completion of a receive of another queue: wr_id {wr_id:#x}"
        );
        let index = wr_id as u32 as usize;
        assert!(index < self.posted, "completion of receive {index}, which is not posted");
        assert!(!std::mem::replace(&mut self.done[index], true), "receive {index} completed twice");
        let older = self.done[..index].iter().filter(|d| !**d).count();
        assert!(older < self.users.len(), "receive {index} completed before {older} older ones");
        index
    }
}
