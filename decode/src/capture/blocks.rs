//! Packets of pcap and pcapng files.

use std::ops::Range;

use pcap_file::pcap::PcapParser;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgParser};
use pcap_file::{DataLink, PcapError, TsResolution};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Position and attributes of a packet in the buffer.
pub(super) struct Located {
    pub(super) data: Range<usize>,
    pub(super) time: u64,
    pub(super) link: DataLink,
    pub(super) comment: Option<String>,
    pub(super) is_outbound: Option<bool>,
    pub(super) interface: u32,
}

/// Parser of one of the two formats.
pub(super) enum Format {
    Pcap(PcapParser),
    PcapNg {
        parser: PcapNgParser,
        /// Interfaces of the current section.
        interfaces: Vec<Interface>,
    },
}

impl Format {
    /// Parses the file header at the start of `bytes`. Also returns its length.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Format, usize), PcapError> {
        let (rest, format) = match bytes.first() {
            None => return Err(PcapError::IncompleteBuffer),
            Some(0x0a) => {
                let (rest, parser) = PcapNgParser::new(bytes)?;
                (rest, Format::PcapNg { parser, interfaces: Vec::new() })
            }
            Some(_) => {
                // The parser asks for the whole header before it looks at the first byte.
                let is_magic = |byte: &u8| matches!(byte, 0xa1 | 0xd4 | 0x4d);
                if !bytes.first().is_some_and(is_magic) {
                    return Err(PcapError::InvalidField("magic number"));
                }
                let (rest, parser) = PcapParser::new(bytes)?;
                (rest, Format::Pcap(parser))
            }
        };
        Ok((format, bytes.len() - rest.len()))
    }

    /// Parses what `bytes` begins with. Returns its length and, if it is a packet, the packet's position.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Result<(usize, Option<Located>), PcapError> {
        match self {
            Format::Pcap(parser) => {
                let (rest, packet) = parser.next_raw_packet(bytes)?;
                let header = parser.header();
                let unit = match header.ts_resolution {
                    TsResolution::MicroSecond => 1000,
                    TsResolution::NanoSecond => 1,
                };
                let located = Located {
                    data: range_in(bytes, &packet.data),
                    time: u64::from(packet.ts_sec) * NANOS_PER_SECOND + u64::from(packet.ts_frac) * unit,
                    // The upper bits tell the length of a frame check sequence.
                    link: DataLink::from(u32::from(header.datalink) & 0xffff),
                    comment: None,
                    is_outbound: None,
                    interface: 0,
                };
                Ok((bytes.len() - rest.len(), Some(located)))
            }
            Format::PcapNg { parser, interfaces } => {
                let (rest, block) = match parser.next_block(bytes) {
                    Ok(parsed) => parsed,
                    Err(PcapError::IncompleteBuffer) => return Err(PcapError::IncompleteBuffer),
                    // A block with an invalid option is skipped.
                    Err(e) => match parser.next_raw_block(bytes) {
                        Ok((rest, _)) => return Ok((bytes.len() - rest.len(), None)),
                        Err(_) => return Err(e),
                    },
                };
                let packet = packet_of(bytes, block, interfaces)?;
                Ok((bytes.len() - rest.len(), packet))
            }
        }
    }
}

/// Returns the position of a pcapng block's packet, if it has one.
fn packet_of(
    bytes: &[u8],
    block: Block<'_>,
    interfaces: &mut Vec<Interface>,
) -> Result<Option<Located>, PcapError> {
    let interface = |id: u32| interfaces.get(id as usize).copied().ok_or(PcapError::InvalidInterfaceId(id));
    let located = |interface: Interface, data: &[u8], timestamp: u64| Located {
        data: range_in(bytes, data),
        time: interface.time(timestamp),
        link: interface.link,
        comment: None,
        is_outbound: None,
        interface: 0,
    };
    Ok(match block {
        Block::SectionHeader(_) => {
            interfaces.clear();
            None
        }
        Block::InterfaceDescription(block) => {
            interfaces.push(Interface::from(&block));
            None
        }
        Block::EnhancedPacket(block) => {
            // The parser takes the units of the timestamp for nanoseconds.
            let timestamp = block.timestamp.as_nanos() as u64;
            let interface = interface(block.interface_id)?;
            let mut packet = located(interface, &block.data, timestamp);
            packet.interface = block.interface_id;
            for option in &block.options {
                match option {
                    EnhancedPacketOption::Comment(text) => {
                        let all = packet.comment.get_or_insert_default();
                        all.push_str(if all.is_empty() { "" } else { "; " });
                        all.push_str(text);
                    }
                    EnhancedPacketOption::Flags(flags) => {
                        packet.is_outbound = match flags & 3 {
                            1 => Some(false),
                            2 => Some(true),
                            _ => None,
                        };
                    }
                    _ => {}
                }
            }
            Some(packet)
        }
        Block::SimplePacket(block) => {
            let interface = interface(0)?;
            let len = block.data.len().min(block.original_len as usize);
            Some(located(interface, &block.data[..len], 0))
        }
        Block::Packet(block) => {
            let interface = interface(block.interface_id.into())?;
            Some(located(interface, &block.data, block.timestamp))
        }
        _ => None,
    })
}

/// Returns the position of `part` in `whole`; an empty range if `part` is not in it.
fn range_in(whole: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr().addr().wrapping_sub(whole.as_ptr().addr());
    match start.checked_add(part.len()) {
        Some(end) if end <= whole.len() => start..end,
        _ => 0..0,
    }
}

/// Interface of a section.
#[derive(Clone, Copy)]
pub(super) struct Interface {
    link: DataLink,
    /// Units of timestamps per second.
    units: u128,
    /// Seconds to add to timestamps.
    offset: i64,
}

impl From<&InterfaceDescriptionBlock<'_>> for Interface {
    fn from(block: &InterfaceDescriptionBlock<'_>) -> Interface {
        let mut interface = Interface { link: block.linktype, units: 1_000_000, offset: 0 };
        for option in &block.options {
            match *option {
                InterfaceDescriptionOption::IfTsResol(code) if code & 0x80 != 0 => {
                    interface.units = 1 << (code & 0x7f).min(64);
                }
                InterfaceDescriptionOption::IfTsResol(code) => {
                    interface.units = 10u128.pow(code.min(19).into())
                }
                InterfaceDescriptionOption::IfTsOffset(seconds) => interface.offset = seconds as i64,
                _ => {}
            }
        }
        interface
    }
}

impl Interface {
    /// Returns nanoseconds since 1970 for a timestamp in the interface's units.
    fn time(&self, timestamp: u64) -> u64 {
        let nanos = match self.units {
            1_000_000_000 => timestamp,
            units => (u128::from(timestamp) * u128::from(NANOS_PER_SECOND) / units) as u64,
        };
        nanos.saturating_add_signed(self.offset.saturating_mul(NANOS_PER_SECOND as i64))
    }
}
