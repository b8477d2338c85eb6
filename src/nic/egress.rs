//! Transmission within the room of a link that sends at the rate of a wire: one packet of each queue pair in
//! turn, so that a burst of one does not delay the others, and none of a priority that is full or paused.

use std::collections::VecDeque;

use super::Nic;
use super::table::Entry;
use crate::memory::Table;
use crate::transport::{EgressRoom, Instant, QpState, TxQueue};
use crate::wire::Qpn;

/// Number of packets that a queue pair sends before the next one gets its turn.
const TURN: usize = 1;

/// Room of the link in the current turn, and queue pairs that wait for room.
#[derive(Debug, Default)]
pub(super) struct Egress {
    /// Room that is left; `None` if the link takes whatever it gets.
    room: Option<EgressRoom>,
    /// Queue pairs that wait for room for packets of their priority.
    parked: [VecDeque<Qpn>; 8],
}

impl Egress {
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.room.is_some()
    }

    /// Returns how many packets a queue pair may send in its turn; without a limit, `default`.
    #[inline]
    pub fn turn(&self, default: usize) -> usize {
        if self.is_limited() { TURN } else { default }
    }

    /// Charges the packets that a queue pair has sent in its turn.
    #[inline]
    pub fn charge(&mut self, entry: &Entry, packets: usize) {
        if let Some(room) = &mut self.room {
            room.take(entry.qp.priority(), packets);
        }
    }

    pub fn has_any_parked(&self) -> bool {
        self.parked.iter().any(|parked| !parked.is_empty())
    }

    fn has_parked(&self, room: EgressRoom) -> bool {
        self.parked.iter().enumerate().any(|(priority, parked)| room.has_room(priority) && !parked.is_empty())
    }
}

impl Nic {
    /// Transmits like [`transmit`](Self::transmit), but only what there is room for; CNPs always. The rest must
    /// be transmitted as soon as [`wants_to_transmit_within`](Self::wants_to_transmit_within) is true.
    pub fn transmit_within(
        &mut self,
        now: Instant,
        room: EgressRoom,
        memory: &Table,
        tx: &mut TxQueue,
    ) -> bool {
        self.unpark(room);
        self.egress.room = Some(room);
        self.transmit(now, memory, tx);
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
            true => entry.share.wake(),
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
