//! QP1, the general services interface (GSI): the queue pair that receives management datagrams (MADs), among
//! them those of the connection manager. It is a UD queue pair with a fixed number, a fixed queue key and two
//! additional rules.

use super::table::Entry;
use super::{CqHandle, Nic};
use crate::transport::{Counters, QpInit, QueuePair};
use crate::wire::mad::MAD_LEN;
use crate::wire::{PKey, Packet, Qpn};

impl Nic {
    /// Creates QP1 in RESET, as a UD queue pair. `None` if it exists already.
    pub fn create_gsi(&mut self, init: &QpInit, send_cq: CqHandle, recv_cq: CqHandle) -> Option<Qpn> {
        let entry = Entry::new(QueuePair::new(Qpn::GSI, init), send_cq, recv_cq, init.srq);
        let made = self.table.insert_gsi(entry);
        self.schedule.reserve(self.table.slots());
        made.then_some(Qpn::GSI)
    }
}

/// Checks a packet to QP1: it must have the length of a MAD and may be of any partition of the port, not only
/// of one (IBA 10.9.4). QP1 joins that partition until it has processed the packet.
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

/// Returns QP1 to the first (default) partition, which its own packets are of, after it has processed a
/// packet.
pub(super) fn settle(entry: &mut Entry, pkeys: &[PKey]) {
    entry.qp.enter_partition(0, pkeys[0]);
}
