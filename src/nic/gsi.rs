//! QP1, the general services interface (GSI): the queue pair that receives management datagrams (MADs), among
//! them those of the connection manager. It is a UD queue pair with a fixed number, a fixed queue key and two
//! additional rules.

use super::table::Entry;
use super::{CqHandle, Nic};
use crate::transport::{Counters, QpInit, QueuePair};
use crate::wire::mad::MAD_LEN;
use crate::wire::{PKey, Packet, Qpn};

impl Nic {
    /// Creates QP1 in RESET, as a UD queue pair. Returns `None` if it exists already.
    pub fn create_gsi(&mut self, init: &QpInit, send_cq: CqHandle, recv_cq: CqHandle) -> Option<Qpn> {
        let entry = Entry::new(QueuePair::new(Qpn::GSI, init), send_cq, recv_cq, init.srq);
        let made = self.table.insert_gsi(entry);
        self.schedule.reserve(self.table.slots());
        made.then_some(Qpn::GSI)
    }
}

/// Checks a packet to QP1: it must have the length of a MAD, and its P_Key may match any entry of the port's
/// table, not only one (IBA 10.9.4). QP1 uses that entry until it has processed the packet.
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

/// Resets the partition of QP1 to the first (default) one, which it uses for the packets that it sends, after
/// it has processed a packet.
pub(super) fn settle(entry: &mut Entry, pkeys: &[PKey]) {
    entry.qp.enter_partition(0, pkeys[0]);
}
