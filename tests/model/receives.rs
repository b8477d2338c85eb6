//! Receives: those of a queue pair of its own, and those that several share.

use std::collections::VecDeque;

use urxe::transport::SrqId;

use crate::program::Recv;

/// A queue of receives.
pub struct Pool {
    pub side: usize,
    /// The queue pairs that take from it.
    pub users: Vec<usize>,
    pub shared: bool,
    /// Shared by XRC targets, whose packets name it.
    pub xrc: bool,
    /// The NIC's number of it, if it is shared.
    pub srq: Option<SrqId>,
    pub recvs: Vec<Recv>,
    /// How many of them are posted.
    pub posted: usize,
    /// Work requests that it holds.
    pub depth: u32,
    /// By receive: a message is complete in it, or it was flushed.
    pub done: Vec<bool>,
    /// Those that no message has taken; kept for unreliable services, of which each packet's fate is known.
    pub waiting: VecDeque<usize>,
}

impl Pool {
    /// An empty one of `depth` work requests.
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

    /// Gives it its receives.
    pub fn fill(&mut self, recvs: Vec<Recv>) {
        self.done = vec![false; recvs.len()];
        self.recvs = recvs;
    }

    /// The number that the receive has as a work request in pool `pool`.
    pub fn wr_id(pool: usize, index: usize) -> u64 {
        (pool as u64) << 32 | index as u64
    }

    /// A completion of pool number `pool` says that a receive is done: once, and not before older ones, but for those
    /// that other queue pairs have taken for messages that are still coming in.
    pub fn finish(&mut self, pool: usize, wr_id: u64) -> usize {
        assert_eq!((wr_id >> 32) as usize, pool, "a receive of another queue: {wr_id:#x}");
        let index = wr_id as u32 as usize;
        assert!(index < self.posted, "receive {index} is not posted");
        assert!(!std::mem::replace(&mut self.done[index], true), "receive {index} is done twice");
        let older = self.done[..index].iter().filter(|d| !**d).count();
        assert!(older < self.users.len(), "receive {index} before {older} older ones");
        index
    }
}
