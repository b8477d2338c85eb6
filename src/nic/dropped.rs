//! Dropped packets for an observer: packet by packet, which counter of drops has risen.

use crate::transport::{Counters, Instant, QpObserver};
use crate::wire::Flow;

/// A counter.
type Counter = fn(&Counters) -> u64;

/// Counters of drops, and the reasons that an observer is given.
const DROPS: [(Counter, &str); 15] = [
    (|c| c.rx_icrc_err, "icrc"),
    (|c| c.rx_truncated, "truncated"),
    (|c| c.rx_bad_pad, "bad_pad"),
    (|c| c.rx_bad_version, "bad_version"),
    (|c| c.rx_reserved_opcode, "reserved_opcode"),
    (|c| c.rx_unknown_qp, "unknown_qp"),
    (|c| c.rx_not_multicast, "not_multicast"),
    (|c| c.rx_unknown_group, "unknown_group"),
    (|c| c.rx_wrong_source, "wrong_source"),
    (|c| c.rx_pkey_violation, "pkey_violation"),
    (|c| c.rx_qkey_violation, "qkey_violation"),
    (|c| c.rx_no_receive, "no_receive"),
    (|c| c.rx_dropped_message, "dropped_message"),
    (|c| c.rx_wrong_state, "wrong_state"),
    (|c| c.unexpected_response, "unexpected_response"),
];

/// Counters before a packet is processed, and the packet.
pub(super) struct DropWatch<'a> {
    packet: &'a [u8],
    before: [u64; DROPS.len()],
}

impl<'a> DropWatch<'a> {
    /// Remembers the counters, and the packet that is processed next.
    #[cold]
    pub fn new(packet: &'a [u8], counters: &Counters) -> DropWatch<'a> {
        DropWatch { packet, before: DROPS.map(|(get, _)| get(counters)) }
    }

    /// Reports the packet to the observer if a counter has risen.
    #[cold]
    pub fn report(self, now: Instant, flow: &Flow, counters: &Counters, observer: &dyn QpObserver) {
        for ((get, reason), before) in DROPS.iter().zip(self.before) {
            if get(counters) > before {
                observer.on_drop(now, flow, self.packet, reason);
            }
        }
    }
}
