//! QP1, the general services interface (GSI): the queue pair that receives management datagrams (MADs),
//! including connection manager messages. It is a UD queue pair with a fixed number and a fixed queue key;
//! two additional rules apply to received packets.

use super::table::Entry;
use super::{CqHandle, Nic};
use crate::transport::{Counters, QpInit, QueuePair, Quirks};
use crate::wire::mad::MAD_LEN;
use crate::wire::{PKey, Packet, Qpn};

impl Nic {
    /// Creates QP1 in RESET, as a UD queue pair for unsignaled sends. Returns `None` if it already exists.
    pub fn create_gsi(&mut self, init: &QpInit, send_cq: CqHandle, recv_cq: CqHandle) -> Option<Qpn> {
        // The sends of QP1 are unsignaled, so no polled completion would ever free a slot.
        let quirks = Quirks { send_slots_until_polled: false, ..init.quirks };
        let mut qp = QueuePair::new(Qpn::GSI, &QpInit { quirks, ..*init });
        qp.set_observer(self.observer.clone());
        let entry = Entry::new(qp, send_cq, recv_cq, init.srq);
        let made = self.table.insert_gsi(entry);
        self.schedule.reserve(self.table.slots());
        made.then_some(Qpn::GSI)
    }
}

/// Checks a packet to QP1: its payload must have the length of a MAD, and its P_Key may match any entry of
/// the port's P_Key table, not just one (IBA 10.9.4). QP1 uses the matching entry until it has processed the
/// packet.
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

/// Resets QP1's partition to the first (default) one after it has processed a packet. QP1 sends in that
/// partition.
pub(super) fn settle(entry: &mut Entry, pkeys: &[PKey]) {
    entry.qp.enter_partition(0, pkeys[0]);
}
