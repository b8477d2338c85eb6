//! Fuzz target: analyses arbitrary bytes as a capture, and arbitrary packets with right ICRCs as a conversation
//! of two hosts. The analysis must not panic.
#![no_main]

use std::io::Cursor;
use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;
use urxe::wire::{BTH_LEN, Flow, ICRC_LEN, IpIdent, frame, icrc};
use urxe_decode::{Capture, Report};

fuzz_target!(|data: &[u8]| {
    let report = Report::read([Capture::read(Cursor::new(data.to_vec()), "any")]);
    let _ = report.to_string();
    let report = Report::read([Capture::read(Cursor::new(conversation(data)), "packets")]);
    assert_eq!(report.captures[0].error, None);
    let _ = report.to_string();
});

/// Returns a capture of packets, each from two bytes for its length, direction and time, and the bytes from
/// BTH to payload.
fn conversation(mut data: &[u8]) -> Vec<u8> {
    // pcap with nanoseconds, raw IP.
    let mut file = vec![0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0];
    let mut time: u64 = 0;
    while let Some(([control, gap], rest)) = data.split_first_chunk() {
        let len = usize::from(control & 0x3f).clamp(BTH_LEN, BTH_LEN.max(rest.len()));
        let (packet, rest) = rest.split_at(len.min(rest.len()));
        data = rest;
        time += 1 << (gap & 0x1f);
        let [a, b] = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
        let (src, dst) = if control & 0x80 == 0 { (a, b) } else { (b, a) };
        let flow = Flow { traffic_class: gap >> 5, ..Flow::new(src, dst, 0xc000) };
        let mut payload = packet.to_vec();
        payload.resize(payload.len().max(BTH_LEN).next_multiple_of(4) + ICRC_LEN, 0);
        let right = icrc::compute(&flow, 0, IpIdent::DONT_FRAGMENT, &payload);
        let end = payload.len() - ICRC_LEN;
        payload[end..].copy_from_slice(&right.to_le_bytes());
        let mut bytes = Vec::new();
        frame::append_ip_udp(&mut bytes, &flow, 0, payload.len());
        bytes.extend(payload);
        let fields = [
            (time / 1_000_000_000) as u32,
            (time % 1_000_000_000) as u32,
            bytes.len() as u32,
            bytes.len() as u32,
        ];
        fields.iter().for_each(|field| file.extend(field.to_le_bytes()));
        file.extend(bytes);
    }
    file
}
