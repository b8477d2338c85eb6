//! Tests of a program that makes the calls of NCCL's InfiniBand transport (`c/nccl_calls.c`): two processes
//! on two addresses, which verify all data, also after queue pairs have failed and recovered.
//!
//! Repeated over sockets.

use std::process::Command;
use std::time::Duration;

use urxe_test_support::programs::{
    CProgram, Library, MIN_ACK_TIMEOUT, addresses, both_ends, port, wait_for_listener,
};

/// Requests of up to 8 buffers: empty ones, sizes around multiples of 128 bytes and of the MTU, and many
/// packets.
const REQUESTS: [&str; 3] = ["requests=120", "group=8", "sizes=0,1,127,128,1025,4096,65536,300000"];

/// Two transmissions within about 200 ms, so that a test does not wait long for a failure.
const IMPATIENT: [&str; 2] = ["timeout=14", "retries=1"];

/// Runs a sender and a receiver with the given options of the program, after a change to their commands.
/// Returns what both have printed.
fn transfer(options: &[&str], change: impl FnOnce([&mut Command; 2])) -> [String; 2] {
    let (library, calls) = (Library::new(), CProgram::build_with("nccl_calls", &["-libverbs"]));
    let ([sender, receiver], port) = (addresses(), port().to_string());
    let mut sending = library.program(calls.program(), &sender);
    sending.args([&port, "to", &receiver]).args(options);
    let mut receiving = library.program(calls.program(), &receiver);
    receiving.arg(&port).args(options);
    change([&mut sending, &mut receiving]);
    both_ends(receiving, || wait_for_listener(&port), sending, Duration::from_secs(120))
}

/// Runs a sender with fault rules and a receiver with others, and checks that queue pair 0 has recovered at
/// both.
fn recovers(options: &[&str], faults: [&str; 2]) {
    let options = [&REQUESTS[..], &IMPATIENT, options].concat();
    let printed = transfer(&options, |ends| {
        for (end, faults) in ends.into_iter().zip(faults) {
            end.env("URXE_FAULTS", faults).env_remove(MIN_ACK_TIMEOUT);
        }
    });
    let [sender, receiver] = &printed;
    assert!(
        sender.contains("sent 120 requests") && receiver.contains("verified 120 requests"),
        "{printed:?}"
    );
    for end in &printed {
        assert!(end.contains("recovered queue pair 0"), "{options:?}: {printed:?}");
    }
}

#[test]
fn requests_arrive_over_one_to_four_queue_pairs_split_or_in_turn() {
    for qps in ["qps=1", "qps=2", "qps=3", "qps=4"] {
        for split in ["split=0", "split=1"] {
            let [sender, receiver] = transfer(&[&REQUESTS[..], &[qps, split]].concat(), |_| {});
            assert!(receiver.contains("verified 120 requests"), "{qps} {split}: {receiver}");
            assert!(!(sender + &receiver).contains("recovered"), "{qps} {split}: {receiver}");
        }
    }
}

#[test]
fn requests_of_one_buffer_end_with_immediate_data_or_with_an_empty_write() {
    for adaptive in ["adaptive=0", "adaptive=100000000"] {
        let [_, receiver] = transfer(&["sizes=0,4096,1000000", "qps=2", adaptive], |_| {});
        assert!(receiver.contains("verified 100 requests"), "{adaptive}: {receiver}");
    }
}

#[test]
fn requests_arrive_if_both_ends_lose_packets() {
    let options = [&REQUESTS[..], &["qps=4"]].concat();
    let [_, receiver] = transfer(&options, |ends| {
        for end in ends {
            end.env("URXE_FAULTS", "drop=every:97").env_remove(MIN_ACK_TIMEOUT);
        }
    });
    assert!(receiver.contains("verified 120 requests"), "{receiver}");
}

#[test]
fn lost_data_is_sent_again_after_the_queue_pair_has_moved_from_reset_to_rts() {
    for options in [["qps=1", "split=1"], ["qps=2", "split=1"], ["qps=4", "split=0"]] {
        recovers(&options, ["drop=1..,psn=50..99", ""]);
    }
}

#[test]
fn data_that_has_arrived_without_an_acknowledgement_is_not_sent_again_after_recovery() {
    for options in [["qps=1", "split=1"], ["qps=2", "split=1"], ["qps=4", "split=0"]] {
        recovers(&options, ["rx:drop=1..,opcode=ack,psn=50..0xffff", ""]);
    }
}

#[test]
fn lost_permissions_to_send_are_written_again_after_recovery() {
    for options in [["qps=1", "split=1"], ["qps=2", "split=1"], ["qps=4", "split=0"]] {
        recovers(&options, ["", "drop=1..,psn=0x800005..0x80ffff"]);
    }
}

#[test]
fn queue_pair_that_fails_at_both_ends_and_repeatedly_recovers() {
    recovers(&["qps=2", "split=1"], ["drop=1..,psn=50..0x2ffff", "drop=1..,psn=0x800003..0x81ffff"]);
}
