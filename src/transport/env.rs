//! Context in which a queue pair executes a step ([`Env`]).

use super::{Counters, Instant, Output, SharedReceives, Tuning, TxQueue};
use crate::memory::{CopySource, HostSlice, Table};

/// Step context: everything outside the queue pair that one of its steps reads or changes.
#[derive(Debug)]
pub struct Env<'a> {
    /// Current time.
    pub now: Instant,
    /// Memory table of the NIC, in which keys are looked up.
    pub memory: &'a Table,
    /// Shared receive queue that the queue pair uses, if any.
    pub srq: Option<&'a mut SharedReceives>,
    /// Queue to which packets are appended for transmission.
    pub tx: &'a mut TxQueue,
    /// List to which the step's effects (completions and events) are appended.
    pub out: &'a mut Vec<Output>,
    /// Scratch list of memory slices for gathering; empty between uses.
    pub scratch: &'a mut Vec<HostSlice>,
    /// Scratch buffer for inline data; empty between uses.
    pub bytes: &'a mut Vec<u8>,
    /// Whether the payload of the packet being processed has been read.
    pub payload: CopySource,
    /// Counters of the NIC.
    pub counters: &'a mut Counters,
    /// Tuning parameters of the NIC.
    pub tuning: &'a Tuning,
    /// Total flight cost of the packets that other queue pairs have in flight to the same peer.
    pub others_in_flight: u64,
}
