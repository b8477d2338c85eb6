//! Capture files of several kinds, as different tools write them.

use std::borrow::Cow;
use std::io::Write;
use std::process::{Command, Stdio};

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, Endianness, TsResolution};

use super::shot::Shot;

/// Kind of a capture file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Container {
    /// pcapng, Ethernet, nanoseconds.
    PcapNg,
    /// pcap, Ethernet, nanoseconds.
    PcapNanos,
    /// pcap, Ethernet, microseconds, big-endian.
    PcapMicros,
    /// pcapng, compressed by gzip.
    Gzip,
    /// pcapng, Ethernet, packets cut to this number of bytes.
    Cut(u32),
    /// pcapng, Linux cooked capture v2, as `tcpdump -i any` writes it.
    Cooked,
    /// pcapng, IP packets without a link layer.
    RawIp,
}

/// Link type of a Linux cooked capture v2.
const LINUX_SLL2: u32 = 276;
/// Limit of packets that are not cut.
const WHOLE: u32 = 262_144;

impl Container {
    pub fn extension(self) -> &'static str {
        match self {
            Container::PcapNanos | Container::PcapMicros => "pcap",
            Container::Gzip => "pcapng.gz",
            _ => "pcapng",
        }
    }

    /// Returns the description for the table of captures.
    pub fn describe(self) -> String {
        match self {
            Container::PcapNg => "pcapng".into(),
            Container::PcapNanos => "pcap, ns".into(),
            Container::PcapMicros => "pcap, µs".into(),
            Container::Gzip => "pcapng, gzip".into(),
            Container::Cut(len) => format!("pcapng, cut at {len} bytes"),
            Container::Cooked => "pcapng, Linux cooked v2".into(),
            Container::RawIp => "pcapng, raw IP".into(),
        }
    }

    /// Returns the file with the given packets.
    pub fn file(self, shots: &[Shot]) -> Vec<u8> {
        match self {
            Container::PcapNanos => pcap(shots, TsResolution::NanoSecond, Endianness::Little),
            Container::PcapMicros => pcap(shots, TsResolution::MicroSecond, Endianness::Big),
            Container::Gzip => gzip(&pcapng(shots, DataLink::ETHERNET, WHOLE)),
            Container::Cut(len) => pcapng(shots, DataLink::ETHERNET, len),
            Container::PcapNg => pcapng(shots, DataLink::ETHERNET, WHOLE),
            Container::RawIp => {
                let packets =
                    shots.iter().map(|shot| Shot { frame: shot.frame[14..].to_vec(), ..shot.clone() });
                pcapng(&packets.collect::<Vec<_>>(), DataLink::RAW, WHOLE)
            }
            Container::Cooked => {
                let packets = shots.iter().map(|shot| Shot { frame: cooked(shot), ..shot.clone() });
                pcapng(&packets.collect::<Vec<_>>(), DataLink::from(LINUX_SLL2), WHOLE)
            }
        }
    }
}

fn pcap(shots: &[Shot], ts_resolution: TsResolution, endianness: Endianness) -> Vec<u8> {
    let header = PcapHeader { ts_resolution, endianness, snaplen: WHOLE, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).expect("memory takes every write");
    for shot in shots {
        let packet = PcapPacket::new(shot.time, shot.frame.len() as u32, &shot.frame);
        writer.write_packet(&packet).expect("memory takes every write");
    }
    writer.into_writer()
}

fn pcapng(shots: &[Shot], link: DataLink, limit: u32) -> Vec<u8> {
    let mut writer = PcapNgWriter::new(Vec::new()).expect("memory takes every write");
    let mut interface = InterfaceDescriptionBlock::new(link, limit);
    // Nanoseconds, as a power of ten.
    interface.options = vec![InterfaceDescriptionOption::IfTsResol(9)];
    writer.write_pcapng_block(interface).expect("memory takes every write");
    for shot in shots {
        let len = shot.frame.len().min(limit as usize);
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: shot.time,
            original_len: shot.frame.len() as u32,
            data: Cow::Borrowed(&shot.frame[..len]),
            options: Vec::new(),
        };
        writer.write_pcapng_block(block).expect("memory takes every write");
    }
    writer.into_inner()
}

/// Replaces the Ethernet header of a packet by one of the Linux cooked capture v2.
fn cooked(shot: &Shot) -> Vec<u8> {
    let kind = if shot.sent { 4 } else { 0 };
    let mut header = vec![shot.frame[12], shot.frame[13], 0, 0, 0, 0, 0, 2, 0, 1, kind, 6];
    header.extend_from_slice(&shot.frame[6..12]);
    header.extend_from_slice(&[0, 0]);
    header.extend_from_slice(&shot.frame[14..]);
    header
}

/// Compresses by the program gzip.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut child = Command::new("gzip")
        .args(["-9", "--no-name"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("gzip is installed");
    child.stdin.take().expect("a pipe").write_all(bytes).expect("gzip reads its input");
    let out = child.wait_with_output().expect("gzip was started");
    assert!(out.status.success(), "gzip failed: {}", out.status);
    out.stdout
}
