//! Parsing: prints the RoCEv2 packets in a pcap file, and verifies each packet's ICRC.
//!
//! Shows the `wire` module: frames, packets, the opcode table and the ICRC. Reading the file takes twenty
//! lines. Run it with `cargo run --example parse_pcap [FILE]`; without FILE, it reads a capture of the
//! kernel's rxe.

use urxe::wire::frame::{self, Checksums, Content};
use urxe::wire::{Packet, icrc};

/// Returns the frames in a little-endian pcap file.
fn frames(file: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    const MICROSECONDS: u32 = 0xa1b2_c3d4;
    const NANOSECONDS: u32 = 0xa1b2_3c4d;
    let word = |at: usize| file.get(at..at + 4).map(|b| u32::from_le_bytes(b.try_into().expect("4 bytes")));
    if !matches!(word(0), Some(MICROSECONDS | NANOSECONDS)) {
        return Err("this is not a little-endian pcap file");
    }
    let (mut at, mut frames) = (24, Vec::new());
    while at < file.len() {
        let len = word(at + 8).ok_or("the file ends in a record header")? as usize;
        frames.push(file.get(at + 16..at + 16 + len).ok_or("the file ends in a record")?);
        at += 16 + len;
    }
    Ok(frames)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rxe = concat!(env!("CARGO_MANIFEST_DIR"), "/pcaps/cm_rping.pcap");
    let path = std::env::args().nth(1).unwrap_or_else(|| rxe.into());
    let file = std::fs::read(&path)?;
    let (mut packets, mut valid) = (0, 0);
    for bytes in frames(&file)? {
        let Content::Roce(roce) = frame::parse(bytes, Checksums::Verify)?.content else { continue };
        let payload = &bytes[roce.payload];
        let packet = Packet::parse(payload)?;
        let is_valid = icrc::verify(&roce.flow, roce.ident, 0, payload);
        let bth = packet.bth();
        println!(
            "{} -> {}  {:28} QP {} PSN {:8} {:4} bytes, ICRC {}",
            roce.flow.src,
            roce.flow.dst,
            bth.opcode.to_string(),
            bth.dest_qp,
            bth.psn.to_string(),
            packet.payload().len(),
            if is_valid { "valid" } else { "wrong" }
        );
        packets += 1;
        valid += usize::from(is_valid);
    }
    println!("{path}: {packets} packets, {valid} with a valid ICRC");
    assert!(packets > 0, "the file contains no RoCEv2 packet");
    assert_eq!(packets, valid);
    Ok(())
}
