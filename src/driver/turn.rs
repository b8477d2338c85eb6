//! A shard's turn: receive, serve expired timers, send.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shard;
use super::adaptive::timing::{LONG_TURN_BYTES, MAX_DELAYED_ACK_PACKETS};
use super::shard::ShardState;
use crate::burst::RxBurst;
use crate::nic::Nic;
use crate::transport::Instant;

/// Policy for delaying a turn's acknowledgements so that a response can carry them.
#[derive(Clone, Copy, Debug)]
pub(super) enum AckDelay {
    Off,
    /// Delays new acknowledgements for one turn, and sends those that were already delayed.
    OneTurn,
    /// Delays acknowledgements until a response carries them.
    UntilResponse,
}

impl Shard {
    /// Runs one turn: receives packets, serves expired timers, sends. Returns whether packets were received.
    pub(super) fn turn(&self, state: &mut ShardState, now: Instant, delay: AckDelay) -> bool {
        if let Some(reason) = self.mailbox.loss().filter(|_| state.link.is_ok()) {
            state.lose_link(reason.clone(), now);
        }
        if !state.faults.pending.is_empty() {
            self.apply_object_faults(state, now);
        }
        let port_is_down = state.faults.port_is_down;
        let ShardState { nic, link, tx, memory, handoffs, outputs, .. } = state;
        let had_delayed_acks = nic.held_acknowledgements() > 0;
        // Completions are delivered burst by burst, so that another thread can poll them meanwhile.
        let mut handle = |nic: &mut Nic, part: &RxBurst<'_>, first| {
            nic.handle_part(now, part, first, memory, tx);
            outputs.deliver(nic, now);
        };
        let collected = self.mailbox.collect(handoffs, |part, first| handle(nic, part, first));
        let received = match link {
            Ok(link) if !self.mailbox.are_others_full() && self.process.is_current() => {
                link.receive(now, &mut |burst| {
                    if port_is_down {
                        return;
                    }
                    let handed_over =
                        self.mailbox.deliver_or_hand_off(&burst, |part, first| handle(nic, part, first));
                    nic.count_handed_over(handed_over);
                })
            }
            _ => Ok(0),
        };
        if state.nic.has_full_paths() {
            state.take_link_changes();
        }
        let due = state.nic.next_deadline().is_some_and(|at| at <= now);
        let nothing = collected == 0 && matches!(received, Ok(0));
        if nothing && !due && !state.nic.wants_to_transmit() && state.tx.is_empty() {
            return false;
        }
        let received = collected
            + received.unwrap_or_else(|e| {
                self.lose_link(state, e, now);
                0
            });
        if received > 0 {
            self.drive_state.on_packets(now);
        }
        let ShardState { nic, tx, memory, .. } = state;
        let delay_acks = match delay {
            AckDelay::Off => false,
            AckDelay::OneTurn => {
                let most = MAX_DELAYED_ACK_PACKETS * nic.held_acknowledgements().max(1);
                let responds = self.drive_state.responds_without_polling.load(Ordering::Relaxed);
                !had_delayed_acks && (responds || received <= most)
            }
            AckDelay::UntilResponse => true,
        };
        nic.handle_timeouts_unless_deferred(now, received > 0, memory, tx);
        self.send(state, now, delay_acks);
        if delay_acks && state.nic.held_acknowledgements() > 0 {
            self.drive_state.request_wake_to_wait();
        }
        received > 0
    }

    /// Transmits the NIC's pending packets, except acknowledgements that can wait if `delay_acks` is set, and
    /// delivers the NIC's outputs.
    pub(super) fn send(&self, state: &mut ShardState, now: Instant, delay_acks: bool) {
        if !state.faults.pending.is_empty() {
            self.apply_object_faults(state, now);
        }
        let room = state.egress_room();
        let port_is_down = state.faults.port_is_down;
        let ShardState { nic, link, tx, memory, outputs, .. } = state;
        // First the outputs of earlier calls: a queue pair whose completion is lost must fail before it
        // acknowledges the message.
        outputs.deliver(nic, now);
        nic.transmit_within(now, room, delay_acks, memory, tx);
        outputs.deliver(nic, now);
        let mut lost = None;
        let has_sent = !tx.is_empty();
        if has_sent {
            if self.process.is_current()
                && !port_is_down
                && let Ok(link) = link
            {
                lost = link.transmit(now, tx).err();
            }
            if tx.bytes() >= LONG_TURN_BYTES {
                self.extend_polling(self.clock.now());
            }
            tx.clear();
        }
        nic.emitted();
        if has_sent {
            state.take_link_changes();
        }
        if let Some(e) = lost {
            self.lose_link(state, e, now);
        }
        state.deliver(now);
    }

    /// Fails this shard's link and those of the NIC's other shards, which use the same socket address or
    /// interface.
    pub(super) fn lose_link(&self, state: &mut ShardState, reason: io::Error, now: Instant) {
        trace_event!(WARN, "urxe::link", "link lost", reason = %reason);
        let reason = Arc::new(reason);
        state.lose_link(reason.clone(), now);
        self.mailbox.lose_link(reason);
    }
}
