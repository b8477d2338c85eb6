//! Temporary access to memory, and other features beyond plain RC, between urxe and the kernel's rxe of the
//! test guest: memory windows of both types, SEND with invalidate, READs into many pieces, shared receive
//! queues, and FLUSH and ATOMIC WRITE, which Linux 6.1 does not support. With either side as requester, over
//! frames, packet and udp. The tap links need root.

#[path = "interop_memory/flush.rs"]
mod flush;
#[path = "support/guest.rs"]
mod guest;
#[path = "interop_memory/invalidate.rs"]
mod invalidate;
#[path = "support/pair.rs"]
mod pair;
#[path = "support/peer.rs"]
mod peer;
#[path = "interop_memory/pieces.rs"]
mod pieces;
#[path = "interop_memory/shared.rs"]
mod shared;
#[path = "support/table.rs"]
mod table;
#[path = "interop_memory/unknown.rs"]
mod unknown;
#[path = "interop_memory/windows.rs"]
mod windows;

use guest::Suite;
use pair::{Check, run};
use peer::Via;

const CHECKS: &[Check] = &[
    ("windows, used", "urxe", windows::used_by_urxe),
    ("windows, used", "rxe", windows::used_by_rxe),
    ("windows, by another QP", "urxe", windows::other_qp_by_urxe),
    ("windows, by another QP", "rxe", windows::other_qp_by_rxe),
    ("windows, closed and bound anew", "urxe", windows::closed_to_urxe),
    ("windows, closed and bound anew", "rxe", windows::closed_to_rxe),
    ("windows that cannot be bound", "rxe", windows::unbindable_at_rxe),
    ("windows that cannot be bound", "urxe", windows::unbindable_at_urxe),
    ("SEND with invalidate", "urxe", invalidate::by_urxe),
    ("SEND with invalidate", "rxe", invalidate::by_rxe),
    ("SEND with invalidate of a wrong key", "urxe", invalidate::wrong_by_urxe),
    ("SEND with invalidate of a wrong key", "rxe", invalidate::wrong_by_rxe),
    ("READ into pieces", "urxe", pieces::by_urxe),
    ("READ into pieces", "rxe", pieces::by_rxe),
    ("shared receive queue at rxe", "urxe", shared::at_rxe),
    ("shared receive queue at urxe", "rxe", shared::at_urxe),
    ("FLUSH and ATOMIC WRITE", "urxe", flush::by_urxe),
];

/// Checks that only an rxe from Linux 6.2 on can start.
const NEWER: &[Check] = &[
    ("FLUSH and ATOMIC WRITE", "rxe", flush::by_rxe),
    ("FLUSH, to one without rxe's habit", "rxe", flush::strict_by_rxe),
];

fn checks() -> Vec<Check> {
    match Suite::chosen() {
        Suite::Bookworm => CHECKS.to_vec(),
        Suite::Trixie => [CHECKS, NEWER].concat(),
    }
}

#[test]
fn memory_checks_pass_over_frames() {
    run("memory frames", Via::Dgram, &checks());
}

#[test]
fn memory_checks_pass_over_a_tap_packet() {
    run("memory packet", Via::PacketOwn, &checks());
}

#[test]
fn memory_checks_pass_over_a_tap_udp() {
    run("memory udp", Via::Udp, &checks());
}
