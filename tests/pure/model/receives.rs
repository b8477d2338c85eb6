//! Receive queues, shared or of a single queue pair.

use std::collections::VecDeque;

use urxe::transport::SrqId;

use crate::program::Recv;

/// A receive queue.
pub struct Pool {
    pub side: usize,
    /// Indices of the queue pairs that consume receives of the queue.
    pub users: Vec<usize>,
    pub shared: bool,
    /// Whether the queue is an XRC shared receive queue, whose number packets carry.
    pub xrc: bool,
    /// Number of the shared receive queue in the NIC; `None` if the queue is not shared.
    pub srq: Option<SrqId>,
    pub recvs: Vec<Recv>,
    /// Number of receives posted so far.
    pub posted: usize,
    /// Capacity in work requests.
    pub depth: u32,
    /// For each receive, whether it has completed: a message has consumed it, or it was flushed.
    pub done: Vec<bool>,
    /// Posted receives that no message has consumed yet; maintained only for unreliable services, for which
    /// the model predicts the effect of each packet.
    pub waiting: VecDeque<usize>,
}

impl Pool {
    /// Creates an empty queue of `depth` work requests.
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

    /// Sets the receives that the run will post to the queue.
    pub fn fill(&mut self, recvs: Vec<Recv>) {
        self.done = vec![false; recvs.len()];
        self.recvs = recvs;
    }

    /// Returns the `wr_id` of receive `index` of receive queue `pool`.
    pub fn wr_id(pool: usize, index: usize) -> u64 {
        (pool as u64) << 32 | index as u64
    }

    /// Marks the receive that completed with `wr_id` as done and returns its index. It must belong to pool
    /// `pool` and must not be done yet, and older receives must be done, except those that other queue pairs
    /// have consumed for messages still in progress.
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
