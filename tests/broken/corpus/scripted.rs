//! Packets that no NIC of urxe sends.

use std::time::Duration;

use urxe::wire::icrc::Icrc;
use urxe::wire::{Bth, Headers, ICRC_LEN, MAX_HEADERS_LEN, Opcode, PKey, Psn, Qpn, RKey, Reth};

use super::shot::{EPOCH, Kind, Shot, mac};
use super::{CLIENT, Case, Source};

pub const CASES: &[Case] = &[Case {
    name: "peer-silent-roce-v1",
    diagnosis: "peer-silent",
    files: CLIENT,
    source: Source::Computed(roce_v1),
    shown: &[(0, |s| s.kind == Kind::Other)],
    text: "The client's queue pair uses a GID of type RoCE v1: its packets have the Ethernet type 0x8915 and a GRH in place of IP \
           and UDP headers. The peer, which answers its ARP request, speaks RoCE v2 only and ignores them: the WRITE is sent \
           eight times without an answer.",
}];

/// Length of a GRH.
const GRH_LEN: usize = 40;

/// Returns a RoCE v1 packet (annex A16) from 10.77.0.1 to 10.77.0.2.
fn packet(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let address = |n: u8| [&[0; 10][..], &[0xff, 0xff, 10, 77, 0, n]].concat();
    let mut transport = vec![0; MAX_HEADERS_LEN];
    let len = headers.emit(&mut transport);
    transport.truncate(len);
    transport.extend_from_slice(payload);
    let length = (transport.len() + ICRC_LEN) as u16;
    // Version 6, next header 27 (BTH), hop limit 64.
    let mut packet =
        [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[27, 64], &address(1), &address(2)].concat();
    packet.extend_from_slice(&transport);
    let mut masked = packet.clone();
    masked[0] |= 0x0f;
    masked[1..4].fill(0xff);
    masked[7] = 0xff;
    masked[GRH_LEN + 4] = 0xff;
    let mut sum = Icrc::default();
    sum.update(&[0xff; 8]);
    sum.update(&masked);
    packet.extend_from_slice(&sum.value().to_le_bytes());
    packet
}

fn roce_v1(_: u64) -> Vec<Vec<Shot>> {
    let (own, peer) = ([10, 77, 0, 1], [10, 77, 0, 2]);
    let macs = [own, peer].map(|ip| mac(ip.into()).0);
    let arp = |operation: u8, from: usize, to: [u8; 6]| {
        let ips = [own, peer];
        let target = if operation == 1 { [0; 6] } else { to };
        let header = [&to[..], &macs[from], &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
        let mut frame = [&header[..], &macs[from], &ips[from], &target, &ips[1 - from]].concat();
        frame.resize(60, 0);
        frame
    };
    let shot = |micros: u64, sent, frame| Shot { time: EPOCH + Duration::from_micros(micros), sent, frame };
    let mut shots = vec![shot(0, true, arp(1, 0, [0xff; 6])), shot(31, false, arp(2, 1, macs[0]))];
    let bth = Bth {
        // RC RDMA WRITE Only.
        opcode: Opcode(0x0a),
        pkey: PKey::DEFAULT,
        dest_qp: Qpn::new(0x1f3),
        psn: Psn::new(0x5e_2a10),
        ack_req: true,
        mig_req: true,
        ..Bth::default()
    };
    let reth = Reth { va: 0x7f3c_1000_2000, rkey: RKey(0x18_2400), dma_len: 64 };
    let v1 = packet(&Headers { bth, reth, ..Headers::default() }, &[0x5a; 64]);
    let frame = [&macs[1][..], &macs[0], &[0x89, 0x15], &v1].concat();
    shots.extend((0..8).map(|n| shot(250 + 67_500 * n, true, frame.clone())));
    vec![shots]
}
