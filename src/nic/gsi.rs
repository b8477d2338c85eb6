//! QP1, the general services queue pair: the datagrams that manage a port (MADs) come to it, those of the connection
//! manager among them. It is a datagram queue pair with a number, a queue key and two rules of its own.

use std::sync::Arc;

use super::table::Entry;
use super::{CompletionQueue, Nic};
use crate::transport::{Counters, QpInit, QueuePair};
use crate::wire::mad::MAD_LEN;
use crate::wire::{PKey, Packet, Qpn};

impl Nic {
    /// Makes QP1 in RESET, a datagram queue pair. `None` if there is one.
    pub fn create_gsi(
        &mut self,
        init: &QpInit,
        send_cq: Arc<CompletionQueue>,
        recv_cq: Arc<CompletionQueue>,
    ) -> Option<Qpn> {
        let entry = Entry::new(QueuePair::new(Qpn::GSI, init), send_cq, recv_cq, init.srq);
        let made = self.table.insert_gsi(entry);
        self.schedule.reserve(self.table.slots());
        made.then_some(Qpn::GSI)
    }
}

/// Whether a packet is one for QP1: as long as all MADs are, and of any partition that the port is in, not of one only
/// (IBA 10.9.4). QP1 is of that one until it has taken the packet.
pub(super) fn admit(entry: &mut Entry, packet: &Packet<'_>, pkeys: &[PKey], c: &mut Counters) -> Option<()> {
    if packet.payload().len() != MAD_LEN {
        c.rx_dropped_message += 1;
        return None;
    }
    let Some(index) = pkeys.iter().position(|own| packet.bth().pkey.admits(*own)) else {
        c.rx_pkey_violation += 1;
        return None;
    };
    entry.qp.enter_partition(index as u16, pkeys[index]);
    Some(())
}

/// QP1 has taken a packet. What it sends is of the first partition, the default one.
pub(super) fn settle(entry: &mut Entry, pkeys: &[PKey]) {
    entry.qp.enter_partition(0, pkeys[0]);
}
