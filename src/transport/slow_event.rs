//! Slow events of a queue pair: state changes, timeouts, NAKs and retransmissions.

use std::time::Duration;

use super::{Instant, QpState};
use crate::wire::{NakCode, Psn, RnrTimer};

/// Slow event of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlowEvent {
    /// Time of the event, for repeated events of the last one.
    pub at: Instant,
    /// Oldest unacknowledged PSN of the requester or, for a NAK that was sent, PSN of the refused request.
    pub psn: Psn,
    /// Number of times that the event has occurred in succession.
    pub times: u32,
    /// Time at which the packet `psn` was sent, if known.
    pub sent: Option<Instant>,
    pub kind: EventKind,
}

/// Kind of a slow event, with its details.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The queue pair changed its state.
    StateChange {
        /// State before.
        from: QpState,
        /// State after.
        to: QpState,
        /// Cause of the change.
        cause: &'static str,
    },
    /// The local ACK timer expired (IBA 9.7.6.1.3).
    AckTimeout {
        /// Time for which the timer ran.
        after: Duration,
    },
    /// A probe timer expired, so that a single packet was sent again.
    Probe,
    /// The peer reported a missing PSN (sequence error NAK).
    SequenceNak,
    /// A later response revealed that one is missing (implied NAK).
    MissingResponse,
    /// The peer had no receive posted (RNR NAK).
    RnrNak {
        /// Time to wait that the peer requested.
        wait: Duration,
        /// RNR retries left before this NAK; 7 if they are unlimited.
        left: u8,
    },
    /// The peer refused a request.
    Nak(NakCode),
    /// All packets in flight were sent again, from the oldest unacknowledged one on.
    Resent {
        /// Reason.
        cause: &'static str,
        /// PSN after the last packet in flight.
        end: Psn,
        /// Transport retries left.
        left: u8,
    },
    /// The responder refused a request of the peer.
    NakSent(NakCode),
    /// The responder had no receive for a request of the peer.
    RnrNakSent(RnrTimer),
}
