//! Fuzz target: decodes arbitrary bytes as a frame and as a packet. Decoding must not panic, encoding a
//! decoded packet must yield an equivalent one, and an IPv4 identification recovered from an ICRC must yield
//! that ICRC.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use urxe::wire::frame::{self, Checksums, Content};
use urxe::wire::{Flow, ICRC_LEN, IpIdent, MAX_HEADERS_LEN, Packet, icrc};

fuzz_target!(|data: &[u8]| {
    for checksums in [Checksums::Verify, Checksums::Trust] {
        if let Ok(frame) = frame::parse(data, checksums)
            && let Content::Roce(roce) = frame.content
        {
            let payload = &data[roce.payload.clone()];
            packet(&roce.flow, roce.ident, payload);
        }
    }
    let flow = |a: &str, b: &str| Flow::new(a.parse().unwrap(), b.parse().unwrap(), 50_000);
    packet(&flow("10.0.0.1", "10.0.0.2"), IpIdent::Unknown, data);
    packet(&flow("fd00::1", "fd00::2"), IpIdent::Unknown, data);
});

fn packet(flow: &Flow, ident: IpIdent, bytes: &[u8]) {
    checksum(flow, ident, bytes);
    let Ok(packet) = Packet::parse(bytes) else { return };
    let mut headers = [0; MAX_HEADERS_LEN];
    let len = packet.headers().emit(&mut headers);
    let encoded =
        [&headers[..len], packet.payload(), packet.padding(), &packet.icrc().to_le_bytes()].concat();
    // Bit 7 of a syndrome and the upper bytes of 24-bit fields are reserved and need not be preserved.
    assert_eq!(encoded.len(), bytes.len());
    let decoded = Packet::parse(&encoded).unwrap();
    assert_eq!((decoded.headers(), decoded.payload()), (packet.headers(), packet.payload()));
    assert_eq!((decoded.padding(), decoded.icrc()), (packet.padding(), packet.icrc()));
    let _ = packet.bth().opcode.to_string();
}

fn checksum(flow: &Flow, ident: IpIdent, bytes: &[u8]) {
    let has_icrc = (16..=65_000).contains(&bytes.len());
    match icrc::identify(flow, 0, bytes) {
        Some((id, flags)) => {
            assert!(icrc::verify(flow, IpIdent::Exact { id, flags }, 0, bytes));
            assert!(icrc::verify(flow, IpIdent::Unknown, 0, bytes));
        }
        None => {
            assert!(!icrc::verify(flow, IpIdent::Unknown, 0, bytes));
            assert!(!icrc::verify(flow, IpIdent::SENT, 0, bytes));
        }
    }
    let _ = icrc::verify(flow, ident, 0, bytes);
    if has_icrc {
        // With a valid ICRC, the identification is recovered whatever it was.
        let mut valid = bytes.to_vec();
        let (id, flags) = match flow.dst {
            IpAddr::V4(_) => (u16::from_be_bytes([bytes[0], bytes[1]]), IpIdent::DONT_FRAGMENT),
            IpAddr::V6(_) => (0, IpIdent::DONT_FRAGMENT),
        };
        let sum = icrc::compute(flow, id, flags, &valid);
        let end = valid.len() - ICRC_LEN;
        valid[end..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(icrc::identify(flow, 0, &valid), Some((id, flags)));
        // The ICRC covers the last byte before it, so it detects that a bit of that byte is flipped.
        valid[end - 1] ^= 1;
        assert!(!icrc::verify(flow, IpIdent::Exact { id, flags }, 0, &valid));
    }
}
