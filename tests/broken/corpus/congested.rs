//! Congestion marks, and pauses by flow control.

use std::time::Duration;

use urxe::transport::Congestion;
use urxe::verbs::*;
use urxe::wire::frame::PauseFrame;
use urxe::wire::{Ecn, Mac, Opcode};

use super::hosts::{Setup, options};
use super::shot::{EPOCH, Kind, Shot, insert, tag};
use super::{CLIENT, Case, Container, Source};

pub const CASES: &[Case] = &[
    Case {
        name: "congestion-no-cnp",
        diagnosis: "congestion-ignored",
        files: &[("server", Container::Cut(96))],
        source: Source::Computed(no_cnp),
        shown: &[(0, |s| s.flow.ecn() == Ecn::Ce)],
        text: "A switch marks packets of the client as 'congestion experienced' (ECN field 3 of the IP header) because its \
               queue grows. The server acknowledges them, but sends no CNP (opcode 0x81), so the client never hears of the \
               congestion.",
    },
    Case {
        name: "congestion-cnp-ignored",
        diagnosis: "congestion-ignored",
        files: &[("client", Container::Cut(96)), ("server", Container::Cut(96))],
        source: Source::Computed(cnp_ignored),
        shown: &[(0, |s| s.opcode == Opcode::CNP), (1, |s| s.flow.ecn() == Ecn::Ce)],
        text: "The server answers marked packets with CNPs, one per 5 µs, and they reach the client. The client goes on to \
               send at the same rate as before the first CNP, so that marks and CNPs continue to the end: it has no reaction \
               to congestion, or has it switched off for this priority.",
    },
    Case {
        name: "priority-mismatch",
        diagnosis: "priority-mismatch",
        files: &[("", Container::Cut(96))],
        source: Source::Computed(priority_mismatch),
        shown: &[(0, |s| matches!(s.kind, Kind::Pause(_))), (0, |s| s.is_nak())],
        text: "The switch pauses priority 3 by PFC frames, because its queue for lossless traffic fills. The data has DSCP 0 and \
               priority 0 in its VLAN tag, for which no pause applies: it goes on through the pauses, packets are lost in \
               the switch, and the server sends NAKs with PSN sequence errors. Recorded at the mirror port of a switch.",
    },
    Case {
        name: "paused",
        diagnosis: "paused",
        files: CLIENT,
        source: Source::Computed(paused),
        shown: &[
            (0, |s| matches!(s.kind, Kind::Pause(_))),
            (0, |s| s.is_request() && s.idle > Duration::from_millis(1)),
        ],
        text: "The switch (02:00:00:4d:00:fe) pauses priority 3, in which the data is sent (DSCP 26), by five PFC frames in a row, \
               each for 65535 quanta, and ends the pause by a frame of 0 quanta after 13 ms. The client sends nothing in \
               this time, and goes on at once afterwards: nothing is lost and no timer has expired.",
    },
];

/// Sender of pause frames.
const SWITCH: Mac = Mac([0x02, 0, 0, 0x4d, 0, 0xfe]);
/// ECN-capable, codepoint 0.
const ECT0: u8 = 2;

/// Returns hosts on a wire of 1 Gb/s that marks packets once more than 3000 bytes wait.
fn marking(seed: u64, server: Personality) -> Setup {
    let mut setup = Setup::new(seed);
    setup.config = setup.config.bandwidth(1_000_000_000).ecn_threshold(3000);
    for options in &mut setup.options {
        *options = options.clone().congestion(Congestion::NONE);
    }
    setup.options[1] = setup.options[1].clone().personality(server);
    setup
}

/// Sends WRITEs faster than the wire carries them.
fn overload(setup: Setup, count: usize) -> super::hosts::Hosts {
    let hosts = setup.open();
    let (x, _y) = hosts.connect(&options().traffic_class(ECT0).timeout(AckTimeout::new(14)));
    for _ in 0..count {
        hosts.write(&x, 512);
        hosts.micros(4);
    }
    hosts.done(count);
    hosts
}

fn no_cnp(seed: u64) -> Vec<Vec<Shot>> {
    overload(marking(seed, Personality::RXE), 40).server()
}

fn cnp_ignored(seed: u64) -> Vec<Vec<Shot>> {
    overload(marking(seed, Personality::STRICT), 60).both()
}

/// Returns a pause frame of the switch.
fn pause(at: Duration, priorities: u8, quanta: u16) -> Shot {
    let mut frame = Vec::new();
    PauseFrame::new(priorities, quanta).append(&mut frame, SWITCH);
    Shot { time: EPOCH + at, sent: false, frame }
}

fn priority_mismatch(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &["drop=10", "drop=31", "drop=58"], &[]).open();
    let (x, _y) = hosts.connect(&options());
    for _ in 0..20 {
        hosts.write(&x, 1000);
        hosts.micros(15);
    }
    hosts.done(20);
    let mut client = hosts.client().remove(0);
    tag(&mut client, 100, |class| class >> 5);
    for n in 0..4 {
        insert(&mut client, pause(Duration::from_micros(18 + 75 * n), 1 << 3, 0x1000));
    }
    vec![client]
}

fn paused(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let (x, _y) = hosts.connect(&options().traffic_class(26 << 2 | ECT0).timeout(AckTimeout::new(17)));
    let burst = || {
        for _ in 0..4 {
            hosts.write(&x, 600);
            hosts.micros(12);
        }
        hosts.done(4);
    };
    burst();
    let begin = Duration::from_nanos(hosts.fabric.now().0);
    hosts.pass(Duration::from_millis(13));
    let end = Duration::from_nanos(hosts.fabric.now().0);
    burst();
    let mut client = hosts.client().remove(0);
    tag(&mut client, 200, |class| class >> 5);
    for n in 0..5 {
        insert(&mut client, pause(begin + Duration::from_micros(2600 * n), 1 << 3, u16::MAX));
    }
    insert(&mut client, pause(end - Duration::from_micros(1), 1 << 3, 0));
    vec![client]
}
