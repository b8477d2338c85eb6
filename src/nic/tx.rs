//! Transmission: gives the queue pairs that have packets to send their turns.

use super::Nic;
use crate::burst::TxQueue;
use crate::memory::Table;
use crate::transport::{Instant, Pending};
use crate::wire::Qpn;

impl Nic {
    /// Moves queue pairs with delayed acknowledgements to the ready list.
    pub(super) fn release_acknowledgements(&mut self) {
        while let Some(qpn) = self.schedule.delayed_acks.pop_front() {
            if let Some(entry) = self.table.get_mut(qpn) {
                entry.ack_delayed = false;
                if entry.qp.pending() != Pending::Nothing {
                    self.schedule.enqueue(entry);
                }
            }
        }
    }

    /// Returns the number of queue pairs whose acknowledgements [`transmit_within`](Self::transmit_within) is
    /// holding back.
    pub fn held_acknowledgements(&self) -> usize {
        self.schedule.delayed_acks.len()
    }

    /// Transmits like [`transmit_within`](Self::transmit_within), without a limit and without delaying
    /// acknowledgements.
    #[cfg(any(test, feature = "unstable-internals"))]
    pub fn transmit(&mut self, now: Instant, memory: &Table, tx: &mut TxQueue) -> bool {
        self.transmit_within(now, None, false, memory, tx)
    }

    /// Lets the queue pairs of the ready list send.
    pub(super) fn transmit_ready(&mut self, now: Instant, memory: &Table, tx: &mut TxQueue) {
        let (packets, bytes) = (tx.packets(), tx.bytes());
        if self.notifications.has_pending() {
            self.state.counters.np_cnp_sent += self.notifications.transmit(tx);
        }
        while !tx.is_full()
            && let Some((qpn, unblocked)) = self.next_turn()
        {
            let Some(entry) = self.table.get_mut(qpn) else { continue };
            let (before, bytes_before) = (tx.packets(), tx.bytes());
            let retransmitted = self.state.counters.retransmitted_pkts;
            match unblocked {
                true => entry.share.waits = false,
                false => entry.queued = false,
            }
            let (priority, turn) = self.egress.turn(entry, self.config.tuning.turn);
            let srq = entry.srq.and_then(|id| self.srqs.get_mut(id));
            let mut env =
                self.state.env(now, memory, srq, tx, &self.config.tuning, self.peers.window(&entry.share));
            if std::mem::take(&mut entry.must_enter_error) {
                entry.qp.fail(&mut env);
            }
            env.others_in_flight = self.peers.others(&entry.share);
            let more = entry.qp.transmit(turn, &mut env);
            let retransmitted = self.state.counters.retransmitted_pkts - retransmitted;
            entry.qp.traffic.on_sent(tx.packets() - before, tx.bytes() - bytes_before, retransmitted, now);
            self.peers.settle_turn(entry);
            self.outputs.add(&mut self.state, entry, &self.srqs);
            if more {
                self.schedule.enqueue(entry);
            }
            self.schedule.arm(entry);
            self.egress.charge(priority, tx.packets() - before);
            if more && entry.qp.has_lone_read() {
                // The peer receives this part of the responses while the next one is built.
                break;
            }
        }
        let c = &mut self.state.counters;
        c.sent_pkts += (tx.packets() - packets) as u64;
        c.sent_bytes += (tx.bytes() - bytes) as u64;
    }

    /// Takes the next queue pair to get a turn. Returns it, and whether it is a window waiter. Window waiters
    /// come first, because they have waited longer.
    fn next_turn(&mut self) -> Option<(Qpn, bool)> {
        loop {
            let unblocked = self.peers.unblocked.pop_front().map(|qpn| (qpn, true));
            let next = unblocked.or_else(|| self.schedule.ready.pop_front().map(|qpn| (qpn, false)))?;
            if !self.egress.is_limited() || self.may_have_turn(next) {
                return Some(next);
            }
        }
    }

    /// Reports whether there is anything to transmit, including delayed acknowledgements and packets for
    /// which the link has no room.
    pub fn wants_to_transmit(&self) -> bool {
        self.has_ready() || !self.schedule.delayed_acks.is_empty() || self.egress.has_any_parked()
    }

    /// Reports whether [`transmit_ready`](Self::transmit_ready) has something to do.
    pub(super) fn has_ready(&self) -> bool {
        !self.schedule.ready.is_empty()
            || !self.peers.unblocked.is_empty()
            || self.notifications.has_pending()
    }
}
