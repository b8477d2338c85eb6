//! Capture files: pcap and pcapng, as they are or compressed by gzip or zstd, read as a stream.

mod blocks;
mod input;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pcap_file::{DataLink, PcapError};

use blocks::{Format, Located};
use input::Buffer;

/// Reason why a capture cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file cannot be opened or read.
    #[error("cannot read {name}: {source}")]
    Io {
        /// Name of the capture.
        name: String,
        /// The underlying system error.
        source: io::Error,
    },
    /// The file is empty.
    #[error(
        "{name} is empty; a capture begins with a header: did the capturing program end before it wrote any?"
    )]
    Empty {
        /// Name of the capture.
        name: String,
    },
    /// The first bytes are those of no supported format.
    #[error(
        "{name} is not a capture: it begins with {start:02x?}{hint}; supported are pcap and pcapng, also compressed by gzip or zstd"
    )]
    Format {
        /// Name of the capture.
        name: String,
        /// First bytes of the file.
        start: Vec<u8>,
        /// Probable kind of the file.
        hint: &'static str,
    },
    /// The file ends within a packet.
    #[error("{name} ends within packet {packet}: the file was cut, or is still being written")]
    Truncated {
        /// Name of the capture.
        name: String,
        /// Number of the incomplete packet.
        packet: u64,
    },
    /// Part of the file contradicts its format.
    #[error("{name} is damaged at packet {packet}: {reason}; later packets cannot be found")]
    Damaged {
        /// Name of the capture.
        name: String,
        /// Number of the packet.
        packet: u64,
        /// Contradiction.
        reason: String,
    },
}

/// A captured packet.
#[derive(Clone, Debug)]
pub struct Frame<'a> {
    /// Number of the packet in the file, from 1, as in Wireshark.
    pub number: u64,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Link type.
    pub link: DataLink,
    /// Captured bytes.
    pub bytes: &'a [u8],
    /// Comment, where the file has one.
    pub comment: Option<String>,
    /// Whether the host of the capture sent the packet (`true`) or received it, where the file tells that.
    pub is_outbound: Option<bool>,
    /// Number of the interface in the file.
    pub interface: u32,
}

/// A capture that is being read.
pub struct Capture {
    name: String,
    buffer: Buffer,
    format: Format,
    /// Number of packets read.
    packets: u64,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Capture({}, {} packets read)", self.name, self.packets)
    }
}

impl Capture {
    /// Opens a file; `-` is standard input.
    ///
    /// # Errors
    /// [`CaptureError`] if the file cannot be read or is not a capture.
    pub fn open(path: &Path) -> Result<Capture, CaptureError> {
        let name = path.display().to_string();
        if name == "-" {
            return Capture::read(io::stdin(), "standard input");
        }
        let file = File::open(path).map_err(|source| CaptureError::Io { name: name.clone(), source })?;
        Capture::read(file, &name)
    }

    /// Reads a capture called `name` from `reader`.
    ///
    /// # Errors
    /// [`CaptureError`] if the first bytes cannot be read or are not those of a capture.
    pub fn read(reader: impl Read + 'static, name: &str) -> Result<Capture, CaptureError> {
        let name = name.to_owned();
        let mut buffer = match input::decompressed(Box::new(reader)) {
            Ok(source) => Buffer::new(source),
            Err(source) => return Err(CaptureError::Io { name, source }),
        };
        loop {
            match Format::parse(buffer.bytes()) {
                Ok((format, header)) => {
                    buffer.consume(header);
                    return Ok(Capture { name, buffer, format, packets: 0 });
                }
                Err(PcapError::IncompleteBuffer) => match buffer.fill() {
                    Ok(0) if buffer.bytes().is_empty() => return Err(CaptureError::Empty { name }),
                    Ok(0) => return Err(CaptureError::Truncated { name, packet: 1 }),
                    Ok(_) => {}
                    Err(source) => return Err(CaptureError::Io { name, source }),
                },
                Err(_) => {
                    let start = buffer.bytes()[..buffer.bytes().len().min(8)].to_vec();
                    return Err(CaptureError::Format { name, hint: input::hint(&start), start });
                }
            }
        }
    }

    /// Returns the name of the capture.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the next packet; `None` at the end.
    ///
    /// # Errors
    /// [`CaptureError`] if the rest of the file cannot be read. The packets before it are valid.
    pub(crate) fn next_frame(&mut self) -> Option<Result<Frame<'_>, CaptureError>> {
        let number = self.packets + 1;
        let name = || self.name.clone();
        let located = loop {
            match self.format.next(self.buffer.bytes()) {
                Ok((consumed, packet)) => {
                    let start = self.buffer.consume(consumed);
                    if let Some(packet) = packet {
                        break Located { data: start + packet.data.start..start + packet.data.end, ..packet };
                    }
                }
                Err(PcapError::IncompleteBuffer) => match self.buffer.fill() {
                    Ok(0) if self.buffer.bytes().is_empty() => return None,
                    Ok(0) => return Some(Err(CaptureError::Truncated { name: name(), packet: number })),
                    Ok(_) => {}
                    Err(source) => return Some(Err(CaptureError::Io { name: name(), source })),
                },
                Err(e) => {
                    let reason = e.to_string();
                    return Some(Err(CaptureError::Damaged { name: name(), packet: number, reason }));
                }
            }
        };
        self.packets = number;
        Some(Ok(Frame {
            number,
            time: located.time,
            link: located.link,
            bytes: self.buffer.consumed(located.data),
            comment: located.comment,
            is_outbound: located.is_outbound,
            interface: located.interface,
        }))
    }
}
