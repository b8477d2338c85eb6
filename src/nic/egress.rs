//! Transmission within the room of a link that sends at the rate of a wire: one packet of each queue pair in
//! turn, so that a burst of one does not delay the others, and none of a priority that is full or paused.

use super::Nic;
use super::schedule::Schedule;
use super::table::Entry;
use crate::memory::Table;
use crate::transport::{EgressRoom, Instant, QpState, TxQueue};

/// Number of packets that a queue pair sends before the next one gets its turn.
const TURN: usize = 1;

impl Nic {
    /// Transmits like [`transmit`](Self::transmit), but only what there is room for. The rest must be
    /// transmitted as soon as [`wants_to_transmit_within`](Self::wants_to_transmit_within) is true.
    pub fn transmit_within(
        &mut self,
        now: Instant,
        mut room: EgressRoom,
        memory: &Table,
        tx: &mut TxQueue,
    ) -> bool {
        self.release_acknowledgements();
        self.unpark(room);
        let (packets, bytes) = (tx.packets(), tx.bytes());
        while let Some((qpn, unblocked)) = self.next_turn() {
            let Some(entry) = self.table.get_mut(qpn) else { continue };
            let priority = entry.qp.priority();
            // A queue pair in ERR sends nothing, but completes its work requests.
            let must_run = entry.must_enter_error || entry.qp.state() == QpState::Err;
            if !room.has_room(priority) && !must_run {
                self.schedule.park(entry, priority, unblocked);
                continue;
            }
            let before = tx.packets();
            self.give_turn(qpn, unblocked, TURN, now, memory, tx);
            room.take(priority, tx.packets() - before);
        }
        self.count_sent(packets, bytes, tx);
        self.wants_to_transmit_within(room)
    }

    /// Reports whether [`transmit_within`](Self::transmit_within) has something to do.
    pub fn wants_to_transmit_within(&self, room: EgressRoom) -> bool {
        self.wants_to_transmit_urgently() || self.schedule.has_parked(room)
    }

    /// Returns the queue pairs for which there is room to the ready list.
    fn unpark(&mut self, room: EgressRoom) {
        for priority in (0..self.schedule.parked.len()).filter(|priority| room.has_room(*priority)) {
            while let Some(qpn) = self.schedule.parked[priority].pop_front() {
                if let Some(entry) = self.table.get_mut(qpn)
                    && std::mem::take(&mut entry.parked)
                {
                    self.schedule.enqueue(entry);
                }
            }
        }
    }
}

impl Schedule {
    /// Puts aside a queue pair that has its turn, until there is room for packets of its priority.
    fn park(&mut self, entry: &mut Entry, priority: usize, unblocked: bool) {
        match unblocked {
            true => entry.share.wake(),
            false => entry.queued = false,
        }
        if !std::mem::replace(&mut entry.parked, true) {
            self.parked[priority].push_back(entry.qp.qpn());
        }
    }

    fn has_parked(&self, room: EgressRoom) -> bool {
        self.parked.iter().enumerate().any(|(priority, parked)| room.has_room(priority) && !parked.is_empty())
    }
}
