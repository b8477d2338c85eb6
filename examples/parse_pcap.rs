//! Parsing: prints the RoCEv2 packets in a pcap or pcapng file, and verifies each packet's ICRC.
//!
//! Shows the `wire` module: frames, packets, the opcode table and the ICRC. Run it with
//! `cargo run --example parse_pcap [FILE]`; without FILE, it reads a capture of the kernel's rxe.

use std::error::Error;

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use urxe::wire::frame::{self, Checksums, Content};
use urxe::wire::{Packet, icrc};

/// Returns the Ethernet frames in a pcap or pcapng file. Captures of urxe contain IP packets, which get an
/// Ethernet header.
fn frames(file: &[u8]) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
    let (mut links, mut frames) = (Vec::new(), Vec::new());
    let mut add = |link, data: &[u8]| match (link, data.first().map(|byte| byte >> 4)) {
        (DataLink::RAW, Some(4)) => frames.push([[0; 12].as_slice(), &[0x08, 0x00], data].concat()),
        (DataLink::RAW, _) => frames.push([[0; 12].as_slice(), &[0x86, 0xdd], data].concat()),
        _ => frames.push(data.to_vec()),
    };
    if file.starts_with(&SECTION_HEADER) {
        let mut reader = PcapNgReader::new(file)?;
        while let Some(block) = reader.next_block() {
            match block? {
                Block::InterfaceDescription(interface) => links.push(interface.linktype),
                Block::EnhancedPacket(packet) => {
                    let link =
                        links.get(packet.interface_id as usize).ok_or("a packet without an interface")?;
                    add(*link, &packet.data);
                }
                _ => {}
            }
        }
    } else {
        let mut reader = PcapReader::new(file)?;
        let link = reader.header().datalink;
        while let Some(packet) = reader.next_packet() {
            add(link, &packet?.data);
        }
    }
    Ok(frames)
}

fn main() -> Result<(), Box<dyn Error>> {
    let rxe = concat!(env!("CARGO_MANIFEST_DIR"), "/pcaps/cm_rping.pcap");
    let path = std::env::args().nth(1).unwrap_or_else(|| rxe.into());
    let file = std::fs::read(&path)?;
    let (mut packets, mut valid) = (0, 0);
    for bytes in frames(&file)? {
        let Content::Roce(roce) = frame::parse(&bytes, Checksums::Verify)?.content else { continue };
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
