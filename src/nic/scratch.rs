//! Counters of a NIC and buffers for the steps of its queue pairs.

use crate::burst::{PayloadSource, TxQueue};
use crate::memory::{CopySource, HostSlice, Table};
use crate::transport::{Counters, Env, Instant, LastAcks, Output, SharedReceives, Tuning};
use crate::wire::Qpn;

/// Buffers and counters that each step of a queue pair borrows through its step context.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub counters: Counters,
    pub out: Vec<Output>,
    pub slices: Vec<HostSlice>,
    pub bytes: Vec<u8>,
    /// Buffers for requests that are kept behind a gap.
    pub spare: Vec<Vec<u8>>,
    pub last_acks: Option<LastAcks>,
    /// Queue pairs whose recorded acknowledgements are in the transmit queue.
    pub acknowledged: Vec<Qpn>,
}

impl Scratch {
    pub fn env<'a>(
        &'a mut self,
        now: Instant,
        memory: &'a Table,
        srq: Option<&'a mut SharedReceives>,
        tx: &'a mut TxQueue,
        tuning: &'a Tuning,
        window: usize,
    ) -> Env<'a> {
        Env {
            now,
            memory,
            srq,
            tx,
            out: &mut self.out,
            scratch: &mut self.slices,
            bytes: &mut self.bytes,
            spare: &mut self.spare,
            payload: PayloadSource::Packet(CopySource::Read),
            counters: &mut self.counters,
            tuning,
            last_acks: self.last_acks.as_ref(),
            acknowledged: &mut self.acknowledged,
            window,
            others_in_flight: 0,
        }
    }
}
