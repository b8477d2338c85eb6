//! Transmission within the room of a link that sends at the rate of a wire or whose peer pauses priorities: none
//! of a priority that is full or paused. At the rate of a wire, each queue pair sends one packet in turn, so that
//! a burst of one does not delay the others.

use super::Nic;
use crate::memory::Table;
use crate::transport::{EgressRoom, Instant, QpState, TxQueue};
use crate::wire::Qpn;

impl Nic {
    /// Transmits like [`transmit`](Self::transmit) or, with `delay_acks`, like
    /// [`transmit_urgent`](Self::transmit_urgent), but only what there is room for; CNPs always. The rest must be
    /// transmitted as soon as [`wants_to_transmit_within`](Self::wants_to_transmit_within) is true.
    pub fn transmit_within(
        &mut self,
        now: Instant,
        room: EgressRoom,
        delay_acks: bool,
        memory: &Table,
        tx: &mut TxQueue,
    ) -> bool {
        self.unpark(room);
        self.egress.room = Some(room);
        match delay_acks {
            true => self.transmit_urgent(now, memory, tx),
            false => self.transmit(now, memory, tx),
        };
        let left = self.egress.room.take().unwrap_or(room);
        self.wants_to_transmit_within(left)
    }

    /// Reports whether [`transmit_within`](Self::transmit_within) has something to do.
    pub fn wants_to_transmit_within(&self, room: EgressRoom) -> bool {
        self.wants_to_transmit_urgently() || self.egress.has_parked(room)
    }

    /// Reports whether a queue pair may have its turn. Otherwise puts it aside until there is room for packets
    /// of its priority.
    pub(super) fn may_have_turn(&mut self, (qpn, unblocked): (Qpn, bool)) -> bool {
        let (Some(room), Some(entry)) = (self.egress.room, self.table.get_mut(qpn)) else { return true };
        let priority = entry.qp.priority();
        // A queue pair in ERR sends nothing, but completes its work requests.
        if room.has_room(priority) || entry.must_enter_error || entry.qp.state() == QpState::Err {
            return true;
        }
        match unblocked {
            true => {
                entry.share.wake();
                // It leaves the peer's window to the next window waiter, which may have another priority.
                self.peers.settle(entry);
            }
            false => entry.queued = false,
        }
        if !std::mem::replace(&mut entry.parked, true) {
            self.egress.parked[priority].push_back(qpn);
        }
        false
    }

    /// Returns the queue pairs for which there is room to the ready list.
    fn unpark(&mut self, room: EgressRoom) {
        for priority in (0..self.egress.parked.len()).filter(|priority| room.has_room(*priority)) {
            while let Some(qpn) = self.egress.parked[priority].pop_front() {
                if let Some(entry) = self.table.get_mut(qpn)
                    && std::mem::take(&mut entry.parked)
                {
                    self.schedule.enqueue(entry);
                }
            }
        }
    }
}
