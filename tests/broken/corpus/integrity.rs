//! Packets with a wrong ICRC.

use std::time::Duration;

use urxe::transport::Placement;
use urxe::verbs::*;

use super::hosts::{Setup, options};
use super::shot::Shot;
use super::{Case, ENDS, Source};

pub const CASES: &[Case] = &[
    Case {
        name: "wrong-icrc",
        diagnosis: "wrong-icrc",
        files: ENDS,
        source: Source::Computed(bit_error),
        shown: &[(1, |s| !s.icrc_is_right)],
        text: "One bit of the payload changes on the way to the server. In the server's capture the ICRC of this packet is \
               wrong, in the client's it is right; the server drops the packet without a word, and the next one leads to a \
               NAK with a PSN sequence error.",
    },
    Case {
        name: "wrong-icrc-identification",
        diagnosis: "wrong-icrc",
        files: ENDS,
        source: Source::Computed(identification),
        shown: &[(1, |s| !s.icrc_is_right)],
        text: "A router on the way rewrites the identification field of the IPv4 header, which the ICRC covers, and corrects only \
               the checksum of the header. Every packet of the client arrives with a wrong ICRC, which would be right with the \
               identification that the client's capture shows; the server ignores all of them.",
    },
    Case {
        name: "wrong-icrc-nat",
        diagnosis: "wrong-icrc",
        files: ENDS,
        source: Source::Computed(translation),
        shown: &[(1, |s| !s.icrc_is_right)],
        text: "A NAT gateway replaces the client's address 10.77.0.1 by 198.51.100.9. The ICRC covers the addresses: it is right \
               in the client's capture and wrong in the server's, where the original address would make it right. The server \
               ignores all requests.",
    },
    Case {
        name: "wrong-icrc-flush",
        diagnosis: "wrong-icrc",
        files: ENDS,
        source: Source::Computed(flush),
        shown: &[(0, |s| !s.icrc_is_right), (1, |s| !s.icrc_is_right)],
        text: "The client computes the ICRC of a FLUSH as rxe of Linux 6.12 does, over the transport headers twice. WRITEs before \
               it are acknowledged; the FLUSH has a wrong ICRC already in the client's capture, which the headers covered twice \
               would make right, and the server drops it each time that it is sent.",
    },
];

fn bit_error(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &["corrupt=5,at=payload"], &[]).open();
    let (x, _y) = hosts.connect(&options());
    for _ in 0..2 {
        hosts.write(&x, 1800);
        hosts.done(1);
        hosts.micros(60);
    }
    hosts.both()
}

/// Returns the captures of a client whose packets the server's NIC drops because `rewrite` changes them.
fn rewritten(seed: u64, rewrite: impl Fn(&mut [u8])) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &["drop=1.."], &[]).open();
    let (x, _y) = hosts.connect(&options().retry_cnt(4));
    hosts.write(&x, 600);
    hosts.fails(WcStatus::RetryExcErr);
    let [client, _] = hosts.captures();
    let arrives = |shot: &Shot| {
        let mut frame = shot.frame.clone();
        rewrite(&mut frame[14..]);
        // The checksum of the IPv4 header.
        frame[24..26].fill(0);
        let sum: u32 =
            frame[14..34].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        Shot { time: shot.time + Duration::from_micros(12), sent: false, frame }
    };
    let server = client.iter().map(arrives).collect();
    vec![client, server]
}

fn identification(seed: u64) -> Vec<Vec<Shot>> {
    rewritten(seed, |ip| {
        let id = u16::from_be_bytes([ip[4], ip[5]]) ^ 0x5a17;
        ip[4..6].copy_from_slice(&id.to_be_bytes());
    })
}

fn translation(seed: u64) -> Vec<Vec<Shot>> {
    rewritten(seed, |ip| ip[12..16].copy_from_slice(&[198, 51, 100, 9]))
}

fn flush(seed: u64) -> Vec<Vec<Shot>> {
    let mut setup = Setup::new(seed);
    setup.options[0] = setup.options[0].clone().personality(Personality::RXE);
    let hosts = setup.open();
    let access = Access::ALL | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    let (x, _y) = hosts.connect(&options().access(access).retry_cnt(2));
    for _ in 0..2 {
        hosts.write(&x, 400);
        hosts.done(1);
        hosts.micros(40);
    }
    hosts.post(&x, &SendWr::flush(2, hosts.b.mr.remote(0), 400, Placement::PERSISTENT));
    hosts.fails(WcStatus::RetryExcErr);
    hosts.both()
}
