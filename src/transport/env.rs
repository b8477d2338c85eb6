//! Context in which a queue pair executes a step ([`Env`]).

use super::{Counters, Instant, LastAcks, Output, SharedReceives, Tuning};
use crate::burst::{PayloadSource, ReceivedPayload, TxQueue};
use crate::memory::{HostSlice, Table};
use crate::wire::{Packet, Qpn};

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
    /// Buffers for requests that are kept behind a gap.
    pub spare: &'a mut Vec<Vec<u8>>,
    /// Source of the payload of the packet being processed.
    pub payload: PayloadSource<'a>,
    /// Counters of the NIC.
    pub counters: &'a mut Counters,
    /// Tuning parameters of the NIC.
    pub tuning: &'a Tuning,
    /// Record of the last acknowledgements, if the link has one.
    pub last_acks: Option<&'a LastAcks>,
    /// Queue pairs whose recorded acknowledgements are sent with the packets of this turn.
    pub acknowledged: &'a mut Vec<Qpn>,
    /// Window of the queue pair's peer.
    pub window: usize,
    /// Total flight cost of the packets that other queue pairs have in flight to the same peer.
    pub others_in_flight: u64,
}

impl<'a> Env<'a> {
    /// Returns the payload of the packet being processed.
    #[inline]
    pub fn payload_of<'p>(&self, packet: &Packet<'p>) -> ReceivedPayload<'p>
    where
        'a: 'p,
    {
        ReceivedPayload::new(packet.payload(), self.payload)
    }

    /// Reports whether the payload of the packet being processed can no longer be read. The packet then
    /// counts as lost; a reliable sender finds the reason when it sends the packet again.
    pub fn has_lost_payload(&self) -> bool {
        self.payload.is_lost()
    }
}
