//! Step context of a queue pair.

use super::{Counters, Instant, Output, SharedReceives, Tuning, TxQueue};
use crate::memory::{HostSlice, Table};

/// Step context: everything that a queue pair sees and affects in one step.
#[derive(Debug)]
pub struct Env<'a> {
    /// Current time.
    pub now: Instant,
    /// Memory table of the NIC.
    pub memory: &'a Table,
    /// Shared receive queue of the queue pair, if it has one.
    pub srq: Option<&'a mut SharedReceives>,
    /// Queue for packets to transmit.
    pub tx: &'a mut TxQueue,
    /// List for the effects: completions and events.
    pub out: &'a mut Vec<Output>,
    /// Scratch buffer for gathering, empty between uses.
    pub scratch: &'a mut Vec<HostSlice>,
    /// Scratch buffer for inline data, empty between uses.
    pub bytes: &'a mut Vec<u8>,
    /// Counters of the NIC.
    pub counters: &'a mut Counters,
    /// Tuning parameters of the NIC.
    pub tuning: &'a Tuning,
    /// Flight cost of what other queue pairs have in flight to the same peer.
    pub others_in_flight: u64,
}
