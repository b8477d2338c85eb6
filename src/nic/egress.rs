//! Transmission within the room of a link: nothing on a full path and, if the link sends at the rate of a
//! wire or its peer pauses priorities, nothing of a priority that is full or paused. At the rate of a wire,
//! each queue pair sends one packet in turn, so that a burst of one does not delay the others.

use super::Nic;
use crate::burst::TxQueue;
use crate::memory::Table;
use crate::transport::{EgressRoom, Instant, QpState};
use crate::wire::Qpn;

impl Nic {
    /// Appends the packets that are due to `tx`, one queue pair after another, until `tx` is full or has a
    /// part of a long READ response; with `room`, only those for which the link has room, except that CNPs
    /// are always sent. Returns true if there are more; the rest must be transmitted as soon as
    /// [`wants_to_transmit_within`](Self::wants_to_transmit_within) is true. With `delay_acks`, delays the
    /// acknowledgements of queue pairs that have nothing else to send: they are sent together with a request,
    /// or by the next call without `delay_acks`.
    pub fn transmit_within(
        &mut self,
        now: Instant,
        room: Option<EgressRoom>,
        delay_acks: bool,
        memory: &Table,
        tx: &mut TxQueue,
    ) -> bool {
        if let Some(room) = room {
            self.unpark_within(room);
        }
        self.egress.room = room;
        if !delay_acks {
            self.release_acknowledgements();
        }
        self.transmit_ready(now, memory, tx);
        let left = self.egress.room.take();
        self.wants_to_transmit_within(left)
    }

    /// Reports whether [`transmit_within`](Self::transmit_within) has something to do besides sending delayed
    /// acknowledgements.
    pub fn wants_to_transmit_within(&self, room: Option<EgressRoom>) -> bool {
        self.has_ready() || room.is_some_and(|room| self.egress.has_parked(room))
    }

    /// Reports whether a queue pair may have its turn. Otherwise puts it aside until there is room for its
    /// next packet.
    pub(super) fn may_have_turn(&mut self, (qpn, unblocked): (Qpn, bool)) -> bool {
        let Some(entry) = self.table.get_mut(qpn) else { return true };
        // A queue pair in ERR sends nothing, but completes its work requests.
        if entry.must_enter_error || entry.qp.state() == QpState::Err {
            return true;
        }
        let Some(waiting) = self.egress.wait_list(entry) else { return true };
        if !std::mem::replace(&mut entry.parked, true) {
            waiting.push_back(qpn);
        }
        match unblocked {
            true => {
                entry.share.waits = false;
                // It leaves the peer's window to the next window waiter, which may have another priority.
                self.peers.settle(entry);
            }
            false => entry.queued = false,
        }
        false
    }

    /// Returns the queue pairs for which there is room to the ready list.
    fn unpark_within(&mut self, room: EgressRoom) {
        for priority in (0..self.egress.parked.len()).filter(|priority| room.has_room(*priority)) {
            while let Some(qpn) = self.egress.parked[priority].pop_front() {
                self.unpark(qpn);
            }
        }
    }

    /// Returns a queue pair to the ready list.
    pub(super) fn unpark(&mut self, qpn: Qpn) {
        if let Some(entry) = self.table.get_mut(qpn)
            && std::mem::take(&mut entry.parked)
        {
            self.schedule.enqueue(entry);
        }
    }
}
