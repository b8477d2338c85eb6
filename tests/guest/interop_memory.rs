//! Tests of features beyond plain RC between urxe and the kernel's rxe: memory windows of both types, SEND
//! with invalidate, READs into many SGEs, shared receive queues, and FLUSH and ATOMIC WRITE, which Linux 6.1
//! does not support. Either side is the requester, over frames, packet and UDP links. Needs the test guest;
//! the tap links need root.
//!
//! Repeated with Linux 6.12.

mod flush;
mod flush_unsupported;
mod invalidate;
mod sges;
mod srq;
mod windows;

use urxe_test_support::guest::Suite;
use urxe_test_support::pair::{Check, run};
use urxe_test_support::testbed::LinkKind;

const CHECKS: &[Check] = &[
    ("memory windows: access", "urxe", windows::access_by_urxe),
    ("memory windows: access", "rxe", windows::access_by_rxe),
    ("memory windows: access by another QP", "urxe", windows::other_qp_by_urxe),
    ("memory windows: access by another QP", "rxe", windows::other_qp_by_rxe),
    ("memory windows: revoked and bound again", "urxe", windows::revoked_for_urxe),
    ("memory windows: revoked and bound again", "rxe", windows::revoked_for_rxe),
    ("memory windows: invalid bind", "rxe", windows::invalid_bind_at_rxe),
    ("memory windows: invalid bind", "urxe", windows::invalid_bind_at_urxe),
    ("SEND with invalidate", "urxe", invalidate::by_urxe),
    ("SEND with invalidate", "rxe", invalidate::by_rxe),
    ("SEND with invalidate of an invalid key", "urxe", invalidate::invalid_key_by_urxe),
    ("SEND with invalidate of an invalid key", "rxe", invalidate::invalid_key_by_rxe),
    ("READ into several SGEs", "urxe", sges::by_urxe),
    ("READ into several SGEs", "rxe", sges::by_rxe),
    ("shared receive queue at rxe", "urxe", srq::at_rxe),
    ("shared receive queue at urxe", "rxe", srq::at_urxe),
    ("FLUSH and ATOMIC WRITE", "urxe", flush::by_urxe),
];

/// Checks in which rxe sends FLUSH and ATOMIC WRITE, which it supports from Linux 6.2 on.
const NEWER: &[Check] = &[
    ("FLUSH and ATOMIC WRITE", "rxe", flush::by_rxe),
    ("FLUSH, responder without rxe's ICRC quirk", "rxe", flush::strict_by_rxe),
];

fn checks() -> Vec<Check> {
    match Suite::from_env() {
        Suite::Bookworm => CHECKS.to_vec(),
        Suite::Trixie => [CHECKS, NEWER].concat(),
    }
}

#[test]
fn memory_windows_and_invalidation_interoperate_over_frames() {
    run("memory frames", LinkKind::Dgram, &checks());
}

#[test]
fn memory_windows_and_invalidation_interoperate_over_a_packet_socket_on_a_tap() {
    run("memory packet", LinkKind::Packet, &checks());
}

#[test]
fn memory_windows_and_invalidation_interoperate_over_a_udp_socket_on_a_tap() {
    run("memory udp", LinkKind::Udp, &checks());
}
